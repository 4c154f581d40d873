"""ONNX's Resize: multiplies the image by a matrix of weights (n_out, n_in) along each axis.

    row i      computes pixel i of the result from the input's pixels around the position x(i). The
               weights lie on a triangle (linear) or on Keys' cubic curve, or only the nearest pixel
               has a weight (nearest). If an image shrinks, antialias makes the triangle or the
               curve wider, by the factor 1 / scale
    x(i)       half_pixel  (i + 1/2) / scale - 1/2     align_corners  i (n_in - 1) / (n_out - 1)
               asymmetric  i / scale                   tf_crop_and_resize  align_corners in a part
                                                       of the image

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

import math

import numpy as np

from minidl.infer.onnx.operator import Known, Refused, from_arrays, operators

NEAREST = {"round_prefer_floor": lambda x: np.ceil(x - 0.5), "floor": np.floor, "ceil": np.ceil,
           "round_prefer_ceil": lambda x: np.floor(x + 0.5)}


@from_arrays
def Resize(x, roi: Known = None, scales: Known = None, sizes: Known = None, *, antialias=0,
           axes=None, coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75,
           exclude_outside=0, extrapolation_value=0.0, keep_aspect_ratio_policy="stretch",
           mode="nearest", nearest_mode="round_prefer_floor"):
    axes = [a % x.ndim for a in axes] if axes else list(range(x.ndim))
    have, dtype = [x.shape[a] for a in axes], x.dtype
    if sizes is not None and sizes.size:
        scales = [m / n for m, n in zip(sizes.tolist(), have, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            chosen = (min if keep_aspect_ratio_policy == "not_larger" else max)(scales)
            scales = [chosen] * len(axes)
            sizes = [math.floor(chosen * n + 0.5) for n in have]
    else:
        scales = [float(s) for s in scales]
        sizes = [math.floor(s * n) for s, n in zip(scales, have, strict=True)]
    parts = np.asarray([0.0, 1.0]).repeat(len(axes)) if roi is None or not roi.size else roi
    for i in reversed(range(len(axes))):
        n, m, part = have[i], int(sizes[i]), (parts[i], parts[i + len(axes)])
        at = _positions(n, m, scales[i], coordinate_transformation_mode, part)
        if mode == "nearest":
            x = x.take(np.clip(NEAREST[nearest_mode](at), 0, n - 1).astype(int), axes[i])
        elif n != m or scales[i] != 1 or not np.array_equal(at, np.arange(n)):
            weights = _weights(at, n, min(scales[i], 1.0) if antialias else 1.0, mode,
                               cubic_coeff_a, exclude_outside or antialias, not exclude_outside)
            x = np.moveaxis(np.moveaxis(x, axes[i], -1) @ weights.T, -1, axes[i])
        if coordinate_transformation_mode == "tf_crop_and_resize":
            outside = ((at < 0) | (at > n - 1)).reshape([-1 if d == axes[i] else 1
                                                         for d in range(x.ndim)])
            x = np.where(outside, extrapolation_value, x)
    return x.astype(dtype)


def _positions(n, m, scale, how, part):
    """Returns the positions of the result's m pixels, in the coordinates of the input's n pixels.
    how: the coordinate_transformation_mode. part: (first, last), the ends of the part of the input
    that is used, as fractions from 0 to 1."""
    i, wide = np.arange(m), scale * n
    if how == "align_corners":
        return i * (n - 1) / (wide - 1) if wide != 1 else i * 0.0
    if how == "asymmetric":
        return i / scale
    if how == "tf_crop_and_resize":
        first, last = (float(p) * (n - 1) for p in part)
        return first + i * (last - first) / (wide - 1) if wide != 1 else i + (last - first) / 2
    at = (i + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return at if m > 1 else i * 0.0
    if how == "half_pixel_symmetric":
        return at + n / 2 * (1 - m / wide)
    if how != "half_pixel":
        raise Refused(f"coordinate_transformation_mode {how} is not supported")
    return at


def _weights(at, n, narrow, mode, a, normalise, beyond):
    """Returns the matrix of weights (n_out, n_in) for one axis.

    at: the positions of the result's pixels.
    narrow: 1, or the scale if antialias makes the curve wider.
    a: the coefficient of the cubic curve.
    normalise: if True, each row is divided by its sum.
    beyond: if True, the last pixel inside the image gets the weights of the pixels outside. If
    False, these weights are 0."""
    radius = math.ceil((1 if mode == "linear" else 2) / narrow)
    places = np.floor(at).astype(int)[:, None] + np.arange(-radius, radius + 1)
    t = np.abs(places - at[:, None]) * narrow
    if mode == "linear":
        w = np.clip(1 - t, 0, None)
    else:
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        w = np.where(t <= 1, near, np.where(t < 2, far, 0))
    if not beyond:
        w = np.where((places >= 0) & (places < n), w, 0)
    w = w / w.sum(1, keepdims=True) if normalise else w
    rows = np.zeros((len(at), n))
    np.add.at(rows, (np.arange(len(at))[:, None], np.clip(places, 0, n - 1)), w)
    return rows


def Upsample(x, scales: Known, *, mode="nearest"):
    return Resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric",
                  nearest_mode="floor")


TABLE = operators(globals())
