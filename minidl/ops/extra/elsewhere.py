"""PyTorch's names that minidl does without, and what to write instead.

    minidl.mm            AttributeError: minidl has no 'mm'; use minidl.matmul(a, b), or a @ b
    x.unflatten(0, s)    AttributeError: Tensor has no 'unflatten'; use x.reshape(...)

Names of layers are in minidl/nn/__init__.py, those of optimizers in minidl/optim/__init__.py.
Test: tests/test_other_names.py
"""

import difflib

# Several names may have the same answer; {x} is the tensor, or minidl's function of it.
INSTEAD = {
    "mm mv": "a @ b", "addmm addmv baddbmm addbmm": "c + a @ b", "addr ger": "outer(a, b)",
    "inner vdot": "(a * b).sum(-1)", "tensordot kron": "einsum", "chain_matmul": "a @ b @ c",
    "addcmul": "a + value * b * c", "addcdiv": "a + value * b / c", "lerp": "a + w * (b - a)",
    "cross": "einsum or roll", "trace": "einsum('ii->', x)", "dist": "(a - b).norm()", "less": "lt",
    "cdist": "(a[:, None] - b[None]).norm(2, -1)", "absolute": "abs", "negative": "neg",
    "multiply": "mul", "subtract": "sub", "divide true_divide": "div", "greater": "gt",
    "greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "clip": "clamp", "arccos": "acos",
    "clamp_min": "clamp(min=...)", "clamp_max": "clamp(max=...)", "concat concatenate": "cat",
    "fmax": "maximum", "fmin": "minimum", "logical_xor": "(a != 0) ^ (b != 0)", "arcsin": "asin",
    "arctan": "atan", "rsub": "other - input", "hstack column_stack": "cat(..., dim=1)",
    "vstack row_stack": "cat(..., dim=0)", "dstack": "cat(..., dim=2)", "select": "x[..., i]",
    "movedim moveaxis": "permute(...)", "swapdims": "transpose(a, b)", "tile": "repeat",
    "narrow": "x[..., start:start + length]", "expand_as": "expand(other.shape)",
    "view_as": "view(other.shape)", "reshape_as": "reshape(other.shape)", "type_as": "to(other)",
    "unflatten": "reshape(...)", "ravel": "flatten()", "atleast_1d atleast_2d": "reshape(...)",
    "H adjoint mH": "x.mT", "fliplr": "flip(1)", "flipud": "flip(0)", "put": "scatter",
    "rot90": "flip(...) and transpose(...)", "unfold": "a slice for each place, and stack",
    "as_strided": "slices and reshape", "diag": "diagonal(), or x * minidl.eye(n)",
    "diag_embed diagflat": "x[..., None] * minidl.eye(n)", "take": "x.reshape(-1)[index]",
    "tensor_split hsplit vsplit dsplit split_with_sizes": "split(sizes, dim)", "msort": "sort(0)",
    "take_along_dim": "gather(dim, index)", "index_put": "scatter, or x[index] = y under no_grad",
    "masked_scatter": "where", "scatter_reduce index_reduce": "scatter_add, or sort and loop",
    "argwhere": "nonzero()", "isin": "(a[..., None] == b).any(-1)", "aminmax": "amin and amax",
    "equal": "(a == b).all().item()", "count_nonzero": "(x != 0).sum(dim)", "square_": "x.mul_(x)",
    "var_mean": "var and mean", "std_mean": "std and mean", "nansum": "where(isnan(x), 0, x).sum()",
    "nanmean": "where(isnan(x), 0, x).sum() / (~isnan(x)).sum()", "diff": "x[1:] - x[:-1]",
    "nan_to_num": "where(isfinite(x), x, 0)", "quantile": "sort(), and the element you want",
    "cumprod": "log().cumsum(dim).exp(), for positive numbers", "sgn": "sign", "signbit": "x < 0",
    "logcumsumexp": "exp().cumsum().log()", "cummax cummin": "a loop over maximum",
    "trunc fix": "div(1, rounding_mode='trunc')", "frac": "x - x.div(1, rounding_mode='trunc')",
    "fmod": "a - b * a.div(b, rounding_mode='trunc')", "logaddexp": "stack([a, b]).logsumexp(0)",
    "hypot": "(a * a + b * b).sqrt()", "erfc": "1 - erf(x)", "logit": "log(x / (1 - x))",
    "deg2rad": "x * math.pi / 180", "rad2deg": "x * 180 / math.pi", "detach_": "x = x.detach()",
    "atan2 arctan2": "atan(a / b), with the quadrant by hand", "ndimension": "dim(), or x.ndim",
    "expit special": "sigmoid, erf, log1p ...", "histc histogram": "bucketize and bincount",
    "register_hook": "register_post_accumulate_grad_hook of a leaf, or retain_grad() of a result",
    "is_cuda is_cpu get_device": "x.device", "nelement": "numel()", "itemsize": "element_size()",
    "stride": "x.data.strides, in bytes", "data_ptr storage untyped_storage": "x.data, the array",
    "is_floating_point": "x.dtype.kind == 'f'", "bfloat16": "x.to(minidl.bfloat16)",
    "short": "x.to(minidl.int16)", "char": "x.to(minidl.int8)", "byte": "x.to(minidl.uint8)",
    "new_zeros": "minidl.zeros(..., dtype=x.dtype, device=x.device)", "broadcast_tensors": "expand",
    "new_ones": "minidl.ones(..., dtype=x.dtype, device=x.device)", "numel": "x.numel()",
    "new_full new_tensor new_empty new": "minidl.full or minidl.tensor(..., dtype=x.dtype)",
    "pin_memory": "minidl.memory.host_memory", "resize_ set_": "x = x.reshape(...)",
    "to_sparse": "a dense tensor; sparse ones are not here", "detach": "x.detach()",
    "apply_ map_ map2_": "the ops, or x.numpy()", "random_": "x.copy_(minidl.randint(...))",
    "exponential_": "-minidl.log(minidl.rand(...))", "broadcast_shapes": "numpy.broadcast_shapes",
    "mode kthsmallest": "unique(return_counts=True)", "is_tensor": "isinstance(x, minidl.Tensor)",
    "is_same_size": "a.shape == b.shape", "from_file frombuffer asarray": "from_numpy",
    "to_dlpack": "x.__dlpack__()", "dtype": "numpy.dtype", "Size": "a tuple",
    "device": "a string: 'cpu', 'cuda', 'cuda:0'", "LongTensor": "tensor(..., dtype=minidl.int64)",
    "FloatTensor": "tensor(..., dtype=minidl.float32)", "save": "minidl.snapshot, or numpy.savez",
    "load": "minidl.snapshot, or numpy.load", "compile jit": "minidl.fuse", "finfo": "numpy.finfo",
    "vmap": "a batch dimension", "inference_mode": "no_grad", "linalg": "numpy.linalg on x.numpy()",
    "autograd": "minidl.Function, minidl.grad", "distributed": "minidl.comm, minidl.parallel",
    "utils": "minidl.data, minidl.memory.recompute", "get_rng_state": "minidl.Generator.get_state",
    "set_num_threads get_num_threads": "the environment variable OMP_NUM_THREADS",
    "fft": "numpy.fft on x.numpy()", "autocast GradScaler": "minidl.amp", "iinfo": "numpy.iinfo",
    "svd qr inverse det cholesky slogdet lstsq solve": "numpy.linalg on x.numpy()", "celu": "elu",
    "set_default_dtype get_default_dtype": "dtype= where the tensor is made", "rrelu": "leaky_relu",
    "dropout1d dropout2d dropout3d": "dropout of (N, C, 1, 1), times the input",
    "adaptive_avg_pool1d avg_pool1d": "the 2d form of x.unsqueeze(-2)", "hardtanh": "clamp(-1, 1)",
    "conv3d conv_transpose3d max_pool3d avg_pool3d": "the 2d form, slice by slice",
    "relu6": "relu(x).clamp(max=6)", "softmin": "softmax(-x, dim)", "logsigmoid": "-softplus(-x)",
    "hardsigmoid": "(x / 6 + 0.5).clamp(0, 1)", "hardswish": "x * (x / 6 + 0.5).clamp(0, 1)",
    "softsign": "x / (1 + x.abs())", "tanhshrink": "x - x.tanh()", "upsample": "interpolate",
    "threshold": "where(x > threshold, x, value)", "pixel_shuffle": "reshape and permute",
    "gumbel_softmax": "softmax(x - log(-log(rand_like(x))), dim)",
    "upsample_bilinear upsample_nearest": "interpolate(..., mode=...)",
    "multi_head_attention_forward": "nn.MultiheadAttention",
    "triplet_margin_loss": "relu(pairwise_distance(a, p) - pairwise_distance(a, n) + 1).mean()",
    "margin_ranking_loss": "relu(-y * (a - b)).mean()", "hinge_embedding_loss": "where and relu",
    "cosine_embedding_loss": "cosine_similarity", "poisson_nll_loss": "(x.exp() - t * x).mean()",
    "gaussian_nll_loss": "((x - t) ** 2 / v + v.log()).mean() / 2", "is_nonzero": "bool(x)",
    "acosh asinh atanh arccosh arcsinh arctanh": "log, as in log(x + (x * x + 1).sqrt())",
    "angle conj conj_physical resolve_conj resolve_neg real imag isreal is_complex is_conj is_neg "
    "cdouble cfloat chalf": "two tensors; complex numbers are not here",
    "lgamma digamma polygamma mvlgamma igamma igammac i0 erfinv sinc":
    "scipy.special on x.numpy(); with a gradient as a Function (minidl/function.py shows one)",
    "eig symeig geqrf lu lu_solve logdet matrix_exp matrix_power orgqr ormqr pinverse "
    "triangular_solve cholesky_inverse cholesky_solve corrcoef cov": "numpy.linalg on x.numpy()",
    "bitwise_left_shift bitwise_right_shift gcd lcm frexp ldexp nextafter copysign heaviside "
    "float_power xlogy logaddexp2 positive": "numpy's of this name on x.numpy()",
    "isneginf isposinf": "x == -math.inf", "is_signed": "x.dtype.kind",
    "nanmedian nanquantile": "median of x[~isnan(x)]", "renorm": "x / x.norm(...) * wanted",
    "hardshrink": "where(abs(x) > threshold, x, 0)", "unique_consecutive": "x[x[1:] != x[:-1]]",
    "select_scatter slice_scatter diagonal_scatter as_strided_scatter index fill_diagonal "
    "slice_inverse": "x[index] = y under no_grad, or where",
    "stft istft": "scipy.signal on x.numpy()", "cauchy_ geometric_ log_normal_": "x.copy_(...)",
    "narrow_copy unsafe_chunk unsafe_split unsafe_split_with_sizes": "x[..., start:stop], or split",
    "sum_to_size": "sum(dims, keepdim)",
    "resize resize_as share_memory_": "x = x.reshape(...), or minidl.memory.host_memory",
    "coalesce indices values ccol_indices col_indices crow_indices row_indices sparse_dim "
    "dense_dim sparse_mask sparse_resize_ sparse_resize_and_clear_ resize_as_sparse_ is_coalesced "
    "is_sparse is_sparse_csr smm sspaddmm to_dense to_padded_tensor to_sparse_bsc to_sparse_bsr "
    "to_sparse_coo to_sparse_csc to_sparse_csr nonzero_static is_nested":
    "a dense tensor, and nonzero()",
    "dequantize int_repr q_scale q_zero_point q_per_channel_axis q_per_channel_scales "
    "q_per_channel_zero_points qscheme is_quantized": "minidl.comm.codec, or int8_linear",
    "is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_vulkan is_xla is_xpu ipu mtia xpu "
    "to_mkldnn": "x.device, which is 'cpu' or 'cuda'",
    "is_inference is_distributed is_set_to is_shared is_pinned retains_grad output_nr volatile "
    "grad_dtype name layout reinforce record_stream module_load as_subclass hash_tensor":
    "what docs/map.md names for it",
    "storage_offset storage_type const_data_ptr dim_order new_empty_strided": "x.data, the array",
}
ADVICE = {name: instead for names, instead in INSTEAD.items() for name in names.split()}


def no_such_name(place, name, known, advice=ADVICE, doc="minidl/ops/__init__.py"):
    """The AttributeError for a name that `place` lacks: what to use instead of PyTorch's thing of
    this name, or the name that was meant."""
    text = f"{place} has no {name!r}"
    if name.startswith("_"):
        return AttributeError(text)
    if name in advice:
        text += f"; use {advice[name]}"
    elif name.endswith("_") and name[:-1] in {*known, *advice}:
        text += f"; write x = x.{name[:-1]}(...), or x.copy_(...) of it under no_grad"
    elif close := difflib.get_close_matches(name, known, 1, 0.8):
        text += f"; did you mean {close[0]!r}?"
    else:
        text += (f"; what there is: {doc}. Build it of that, or as a Function with its own "
                 "gradient (minidl/function.py shows one)")
    return AttributeError(text)
