"""The standard normal distribution: P(x) = (1 + erf(x / sqrt 2)) / 2, and its derivative P'.

float64: erf is exact to a few units of the last digit. Three rational functions R compute it, each
for a range of |x|:

    |x| < 0.47:  erf  = x R(x^2)       up to 4:  erfc = e^(-x^2) R(x)
                                      beyond:   erfc = e^(-x^2) (1/sqrt(pi) - R(1/x^2)/x^2) / x

float32: one formula without branches, P(-z) = e^(-z^2/2) Q(t), where t = 1 / (1 + 0.275 z) and Q is
a polynomial of degree 6. The error is below 5e-9, a sixth of float32's rounding error. P and P'
both need e^(-z^2/2), which is computed once.
Source: W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23
(1969). The float32 form is from C. Hastings, "Approximations for Digital Computers" (1955). Our
polynomial has a larger degree and its own coefficients, so the error is 40 times smaller.
Test: tests/ops/test_activations.py
"""

import math

import numpy as np

# Cody's coefficients: (numerator, denominator), the highest power first.
_SMALL = (
    [1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3],
    [1, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3],
)
_MIDDLE = (
    [2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3],
    [1, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3],
)
_LARGE = (
    [1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
     1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4],
    [1, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1,
     6.05183413124413191e-2, 2.33520497626869185e-3],
)


def erf(x):
    """Returns the error function of a float64 NumPy array, exact to a few units of the last
    digit."""
    z = np.minimum(np.abs(x), 6.0)  # erf(6) is 1 in float64
    small, large = z < 0.46875, z > 4
    y = np.empty_like(x)
    y[small] = z[small] * _ratio(_SMALL, z[small] ** 2)
    middle = z[~small & ~large]
    y[~small & ~large] = 1 - np.exp(-middle * middle) * _ratio(_MIDDLE, middle)
    v = z[large]
    w = 1 / (v * v)
    y[large] = 1 - np.exp(-v * v) * (1 / math.sqrt(math.pi) - w * _ratio(_LARGE, w)) / v
    return np.copysign(y, x)


def erf_by(xp, x):
    """Returns the error function of any floating array, in its dtype."""
    if xp is not np:
        from cupyx.scipy import special

        return special.erf(x)
    return erf(x.astype(np.float64, copy=False)).astype(x.dtype, copy=False)


def _ratio(coefficients, x):
    above, below = coefficients
    return np.polyval(above, x) / np.polyval(below, x)


SCALE = 0.275
COEFFICIENTS = [-0.11485808656480655, 0.45199775294287686, -0.3309919038699306, 0.33393113000718,
                0.04211192675999126, 0.11780918548828627]  # the coefficients of t^6, t^5, ... t


def cdf_and_pdf(xp, x):
    """Returns (P(x), P'(x)), two new arrays. x is float32 or float64."""
    with np.errstate(over="ignore"):  # if x * x is inf, e^-inf is 0, which is right
        pdf = x * x
    pdf *= -0.5
    pdf = xp.exp(pdf, out=pdf)
    if xp is not np:
        from cupyx.scipy.special import ndtr

        cdf = ndtr(x)
    elif x.dtype == np.float64:
        cdf = erf(x * math.sqrt(0.5))
        cdf += 1
        cdf *= 0.5
    else:
        t = np.abs(x)
        t *= SCALE
        t += 1
        np.reciprocal(t, out=t)
        cdf = t * COEFFICIENTS[0]
        for c in COEFFICIENTS[1:]:
            cdf += c
            cdf *= t
        cdf *= pdf  # cdf is now P(-|x|)
        np.subtract(0.5, cdf, out=cdf)
        # The same as np.copysign(cdf, x), for which NumPy 2.4 has no vector code.
        cdf.view(np.int32)[...] |= x.view(np.int32) & np.int32(-(2**31))
        cdf += 0.5
    pdf *= 1 / math.sqrt(2 * math.pi)
    return cdf, pdf
