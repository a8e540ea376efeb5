"""The cost of elementwise ops and reductions: one pass over memory, a few FLOPs per element.

Such ops are bound by memory, so their FLOPs are nominal: 1 for a comparison, sum or product, 4 for
a short formula, 10 for a transcendental function, 40 for a special function.
"""

from __future__ import annotations

from wavecast.ops.registry import (
    ALL,
    NONE,
    Cost,
    Kind,
    aten,
    cost,
    declare,
    integers,
    largest,
    read,
    streaming,
    written,
)
from wavecast.traces.step import Op, TensorSpec

_ELEMENTWISE = {
    1: """
        __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__
        __xor__ _add_relu _conj_physical _masked_scale _neg_view_copy abs absolute add and
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
        ceil clamp clamp_max clamp_min clip complex conj_physical copysign deg2rad eq
        fmax fmin floor frac ge greater greater_equal gt hardshrink hardshrink_backward hardtanh
        hardtanh_backward heaviside isfinite isinf isnan isneginf isposinf le less less_equal
        logical_and logical_not logical_or logical_xor lt masked_fill max.other maximum min.other
        minimum mul multiply native_dropout_backward ne neg negative not_equal nan_to_num
        nextafter rad2deg relu relu6 round rsub sgn sign signbit softshrink softshrink_backward
        square sub subtract threshold threshold_backward tril triu trunc fix where
    """,
    4: """
        _prelu_kernel _prelu_kernel_backward addcdiv addcmul addr div divide elu_backward
        floor_divide fmod frexp gcd glu_jvp hardsigmoid hardsigmoid_backward hardswish
        hardswish_backward hypot lcm ldexp leaky_relu leaky_relu_backward lerp linalg_cross
        reciprocal remainder rrelu rrelu_with_noise rrelu_with_noise_backward rsqrt
        sigmoid_backward sqrt tanh_backward true_divide
    """,
    10: """
        acos acosh angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan
        atan2 atanh celu cos cosh elu erf erfc exp exp2 expm1 float_power gelu gelu_backward glu
        glu_backward log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward logaddexp
        logaddexp2 logit logit_backward mish mish_backward polar pow selu sigmoid silu
        silu_backward sin sinc sinh softplus softplus_backward special_entr special_xlog1py tan
        tanh xlogy _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
        _thnn_fused_lstm_cell_backward_impl
    """,
    40: """
        digamma erfinv i0 igamma igammac lgamma mvlgamma polygamma special_airy_ai
        special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_digamma
        special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
        special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p
        special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_ndtr special_ndtri
        special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
        special_spherical_bessel_j0 special_zeta
    """,
}

# FLOPs per element of the input. `equal` is here, although torch tags it as pointwise, because it
# returns one bool.
_REDUCTIONS = {
    1: """
        _aminmax _cummax_helper _cummin_helper _is_all_true _is_any_true all amax amin aminmax any
        argmax argmin bincount count_nonzero cummax cummin cumprod cumsum equal hash_tensor histc
        histogram max mean min nanmean nansum prod sum trace
    """,
    4: """
        dist linalg__powsum linalg_vector_norm native_norm norm renorm std std_mean var var_mean
        _pdist_forward _pdist_backward
    """,
    10: "_logcumsumexp logcumsumexp logsumexp",
}

for _flops, _names in _ELEMENTWISE.items():
    streaming(Kind.ELEMENTWISE, _names, flops=_flops)

for _flops, _names in _REDUCTIONS.items():
    streaming(Kind.REDUCTION, _names, flops=_flops)

streaming(Kind.SOFTMAX, "_softmax _log_softmax _masked_softmax", flops=12)
streaming(
    Kind.SOFTMAX,
    "_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward",
    flops=4,
)


@cost("aten._safe_softmax", kind=Kind.SOFTMAX)
def _safe_softmax(op: Op) -> Cost:
    """A softmax, the rows whose scores are all hidden (two kernels), and the choice of 0 there."""
    scores, out, flags = read(op.inputs[:1]), written(op.outputs), largest(op)
    return Cost(15 * flags, 2 * scores + out + flags, 2 * out + flags)


@cost("aten.allclose", kind=Kind.REDUCTION)
def _allclose(op: Op) -> Cost:
    """The 14 kernels of `isclose` and `all`: six make a tensor as large as an input, and seven
    make booleans."""
    read_once, elements = read(op.inputs[:1]), largest(op)
    return Cost(14 * elements, 13 * read_once + 7 * elements, 6 * read_once + 7 * elements)


# Pointwise losses. Their reduction, if any, is a second kernel that reads the first one's result.
_LOSSES = {
    4: "mse_loss smooth_l1_loss huber_loss multi_margin_loss multilabel_margin_loss_forward",
    10: "binary_cross_entropy soft_margin_loss",
}
_UNREDUCED = 0
_MEAN = 1

streaming(
    Kind.LOSS,
    """
    mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
    soft_margin_loss_backward multi_margin_loss_backward multilabel_margin_loss_backward
    """,
    flops=4,
)


def _loss(op: Op, flops: int, temporaries: int) -> Cost:
    """The cost of a loss with `temporaries` tensors of its input's size between its kernels."""
    reduced = op.attr("reduction", _MEAN) != _UNREDUCED
    passed = read(op.inputs[:1]) * (temporaries if reduced else temporaries - 1)
    return Cost(flops * largest(op), read(op.inputs) + passed, written(op.outputs) + passed)


for _flops, _names in _LOSSES.items():

    @cost(*aten(_names), kind=Kind.LOSS)
    def _pointwise_loss(op: Op, flops: int = _flops) -> Cost:
        return _loss(op, flops, temporaries=1)


@cost("aten.binary_cross_entropy_with_logits", kind=Kind.LOSS)
def _binary_cross_entropy_with_logits(op: Op) -> Cost:
    """Several kernels, since ATen has none for it: log-sigmoid, 1 - target, product, mean, ..."""
    return _loss(op, flops=14, temporaries=4)


# The cost of normalisation. A second pass over a tensor counts as a second read.
#
# Batch and group normalisation first compute statistics, then apply them, so they read twice. A
# row of LayerNorm or RMSNorm fits on the chip, so the forward pass reads once. The backward pass
# has one kernel for the input and one for weight and bias, which both read gradient and input.


_FORWARD_FLOPS = 8
_BACKWARD_FLOPS = 12


def _passes(op: Op, data: tuple[TensorSpec, ...], flops: int, passes: int) -> Cost:
    """The cost of reading `data` this many times, and every other input once."""
    again = (passes - 1) * read(data)
    return Cost(flops * data[0].numel, read(op.inputs) + again, written(op.outputs))


@cost("aten.native_batch_norm", "aten.cudnn_batch_norm", kind=Kind.NORM)
@cost("aten._native_batch_norm_legit", "aten._native_batch_norm_legit_functional", kind=Kind.NORM)
def _batch_norm(op: Op) -> Cost:
    passes = 2 if op.attr("training", True) else 1
    return _passes(op, op.inputs[:1], _FORWARD_FLOPS, passes)


@cost("aten._batch_norm_with_update", "aten._batch_norm_with_update_functional", kind=Kind.NORM)
@cost("aten.native_group_norm", kind=Kind.NORM)
def _two_passes(op: Op) -> Cost:
    return _passes(op, op.inputs[:1], _FORWARD_FLOPS, passes=2)


@cost("aten.native_layer_norm", "aten._fused_rms_norm", kind=Kind.NORM)
@cost("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update", kind=Kind.NORM)
def _one_pass(op: Op) -> Cost:
    return _passes(op, op.inputs[:1], _FORWARD_FLOPS, passes=1)


@cost("aten.native_batch_norm_backward", "aten.cudnn_batch_norm_backward", kind=Kind.NORM)
@cost("aten.batch_norm_backward", kind=Kind.NORM)
def _batch_norm_backward(op: Op) -> Cost:
    trained = op.attr("train", True) and op.attr("update", True)
    return _passes(op, op.inputs[:2], _BACKWARD_FLOPS, passes=2 if trained else 1)


@cost("aten.native_group_norm_backward", "aten.native_layer_norm_backward", kind=Kind.NORM)
@cost("aten._fused_rms_norm_backward", kind=Kind.NORM)
def _backward(op: Op) -> Cost:
    wants = integers(op, "output_mask") or (1, 1)
    kernels = min(wants[0] + max(wants[1:]), 2)
    return _passes(op, op.inputs[:2], _BACKWARD_FLOPS, passes=max(kernels, 1))


# The parts of batch normalisation across GPUs, and weight normalisation.
streaming(
    Kind.NORM,
    """
    batch_norm_stats batch_norm_elemt batch_norm_update_stats batch_norm_backward_elemt
    batch_norm_gather_stats batch_norm_gather_stats_with_counts _weight_norm_interface
    _weight_norm_interface_backward
    """,
    flops=4,
)
streaming(Kind.NORM, "batch_norm_backward_reduce", flops=6)


# The cost of copies, fills, random numbers, views and synchronisations.


_VIEWS = """
    _assert_scalar _assert_tensor_metadata _conj _fused_sdp_choice _fw_primal
    _has_same_storage_numel _neg_view _nested_view_from_buffer _pin_memory _reshape_alias
    _sparse_broadcast_to _unsafe_view _use_cudnn_ctc_loss _version adjoint alias as_strided
    broadcast_to chunk conj detach diagonal empty empty_like empty_permuted empty_strided expand
    expand_as flatten imag is_pinned is_same_size lift lift_fresh mH mT matrix_H moveaxis movedim
    narrow new_empty new_empty_strided numpy_T permute pin_memory positive real record_stream
    requires_grad reshape reshape_as resize resize_as resolve_conj resolve_neg select set slice
    slice_inverse split split_with_sizes squeeze swapaxes swapdims sym_constrain_range
    sym_constrain_range_for_size t tensor_split transpose unbind unflatten unfold unsafe_chunk
    unsafe_split unsafe_split_with_sizes unsqueeze view view_as view_as_complex view_as_real
"""


def _nothing(op: Op) -> Cost:
    return Cost()


cost(*aten(_VIEWS), "_c10d_functional.wait_tensor", "profiler.*", kind=Kind.VIEW)(_nothing)
cost("aten._local_scalar_dense", "cuda.*", kind=Kind.SYNC)(_nothing)
cost("host.*", kind=Kind.OPTIMIZER)(_nothing)  # on the host: no kernel, and no memory of the GPU


streaming(
    Kind.COPY,
    """
    _chunk_cat _coalesced _cudnn_rnn_flatten_weight _jagged_to_padded_dense_forward _lazy_clone
    _pack_padded_sequence _padded_dense_to_jagged_forward _stack _to_copy _to_dense
    _transform_bias_rescale_qkv alias_copy as_strided_copy block_diag cat channel_shuffle clone
    col2im contiguous detach_copy diag diagonal_copy expand_copy flip im2col narrow_copy
    permute_copy pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
    reflection_pad3d repeat replication_pad1d replication_pad2d replication_pad3d roll rot90
    select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy stack t_copy tile to
    transpose_copy unbind_copy unfold_copy unsqueeze_copy view_as_complex_copy view_as_real_copy
    view_copy
    """,
)
# The first input is the target, which is written and not read.
streaming(Kind.COPY, "copy _copy_from", reads=slice(1, None))
# The inputs are the gradient, and the forward input of which only the shape is used.
streaming(
    Kind.COPY,
    """
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    """,
    reads=slice(1),
)
streaming(
    Kind.FILL,
    """
    _efficientzerotensor _new_zeros_with_same_feature_meta arange bartlett_window blackman_window
    eye fft_fftfreq fft_rfftfreq fill fill_diagonal full full_like hamming_window hann_window
    kaiser_window linspace logspace new_full new_ones new_zeros ones ones_like range
    scalar_tensor tril_indices triu_indices vander zero zeros zeros_like
    """,
    reads=NONE,
)
# Philox random numbers: about ten integer rounds for four numbers.
streaming(
    Kind.RANDOM,
    """
    bernoulli_ cauchy exponential geometric log_normal normal_ rand rand_like randint randint_like
    randn randn_like random uniform _cudnn_init_dropout_state _philox_normal _philox_uniform
    """,
    flops=10,
    reads=NONE,
)
streaming(
    Kind.RANDOM,
    """
    _dirichlet_grad _fused_dropout _sample_dirichlet _standard_gamma _standard_gamma_grad
    bernoulli binomial multinomial native_dropout normal normal_functional poisson
    """,
    flops=10,
)

# The kind is known, but the cost does not follow from the shapes alone.
declare(
    Kind.LINEAR_ALGEBRA,
    aten("""
        _cholesky_solve_helper _linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals
        _linalg_slogdet _linalg_solve_ex _linalg_svd cholesky_inverse cholesky_solve geqrf
        linalg_eig linalg_eigvals linalg_householder_product linalg_ldl_factor_ex
        linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve
        linalg_matrix_exp linalg_qr lu_unpack ormqr triangular_solve
    """),
)


def copies_pinned(op: Op) -> bool:
    """Whether a copy between host and GPU is of pinned memory, which the GPU can reach itself.

    "pin_memory" is recorded where the source is pinned. torch pins what it copies to the host
    without blocking (TensorConversions.cpp).
    """
    to_host = bool(op.outputs) and op.outputs[0].device == "cpu" and op.base == "aten._to_copy"
    free = bool(op.attr("non_blocking", False))
    return bool(op.attr("pin_memory", False)) or (to_host and free)


# The cost of optimizers: foreach ops on lists of tensors, and fused ops with a whole update.


_FOREACH = {
    1: """
        abs add ceil clamp_max clamp_min floor frac maximum minimum mul neg round sign sub trunc
        max
    """,
    4: "addcdiv addcmul div lerp norm powsum reciprocal rsqrt sqrt",
    10: """
        acos asin atan cos cosh erf erfc exp expm1 log log10 log1p log2 pow sigmoid sin sinh tan
        tanh
    """,
    40: "lgamma",
}


def _foreach(names: str, flops: int = 0, reads: slice = ALL) -> None:
    """Register `_foreach` ops, whose first list has one tensor for each output."""

    def formula(op: Op) -> Cost:
        elements = sum(t.numel for t in op.inputs[: len(op.outputs)]) if flops else 0
        return Cost(flops * elements, read(op.inputs[reads]), written(op.outputs))

    cost(*(f"aten._foreach_{name}" for name in names.split()), kind=Kind.OPTIMIZER)(formula)


for _optimizer_flops, _optimizer_names in _FOREACH.items():
    _foreach(_optimizer_names, _optimizer_flops)
_foreach("clone")
_foreach("zero", reads=NONE)


@cost("aten._foreach_copy", kind=Kind.OPTIMIZER)
def _foreach_copy(op: Op) -> Cost:
    return Cost(0, read(op.inputs[len(op.inputs) // 2 :]), written(op.outputs))


streaming(Kind.OPTIMIZER, "_amp_update_scale", flops=1)


@cost("aten._amp_foreach_non_finite_check_and_unscale", kind=Kind.OPTIMIZER)
def _unscale(op: Op) -> Cost:
    """Every gradient is checked and multiplied by 1 / scale."""
    return Cost(2 * sum(t.numel for t in op.inputs), read(op.inputs), written(op.outputs))


def _parameters(op: Op, lists: int) -> int:
    """The number of parameters, when the inputs are `lists` lists of tensors and a few more."""
    shapes = [t.shape for t in op.inputs]
    most = len(shapes) // lists
    counts = range(most, max(0, most - 2), -1)
    return next((n for n in counts if shapes[:n] == shapes[n : 2 * n]), most)


def _fused(op: Op, states: int, steps: bool, flops: int) -> Cost:
    """Parameters and states are read and written; gradients are read, and written if unscaled."""
    lists = 2 + states + steps
    count = _parameters(op, lists)
    updated = [*op.inputs[:count], *op.inputs[2 * count : (2 + states) * count]]
    after = len(op.inputs) - lists * count - ("tensor_lr" in op.name)
    unscaled = op.inputs[count : 2 * count] if after == 2 else ()
    elements = sum(t.numel for t in op.inputs[:count])
    return Cost(flops * elements, read(op.inputs), written((*updated, *unscaled)))


@cost(*aten("_fused_adam _fused_adamw"), kind=Kind.OPTIMIZER)
def _fused_adam(op: Op) -> Cost:
    return _fused(op, states=3 if op.attr("amsgrad", False) else 2, steps=True, flops=16)


@cost("aten._fused_sgd", kind=Kind.OPTIMIZER)
def _fused_sgd(op: Op) -> Cost:
    return _fused(op, states=1 if op.attr("momentum", 0.0) else 0, steps=False, flops=6)


@cost("aten._fused_adagrad", kind=Kind.OPTIMIZER)
def _fused_adagrad(op: Op) -> Cost:
    return _fused(op, states=1, steps=True, flops=8)


# The cost of collectives for one GPU: the traffic of its memory.


@cost("nccl.*", "c10d.*", "_c10d_functional.*", "c10d_functional.*", kind=Kind.COLLECTIVE)
def _collective(op: Op) -> Cost:
    """The traffic between GPUs depends on their number and is not counted here."""
    return Cost(0, read(op.inputs), written(op.outputs))


# The cost of bitsandbytes' ops: 4-bit and 8-bit weights, and optimizers with 8-bit state.
#
# Nobody measured these ops for Wavecast. Their FLOPs and bytes follow from their shapes and from
# bitsandbytes' source (release 0.50); predictors treat them like other ops of their kind.


FUSED = "bitsandbytes.gemm_4bit"
"""A matmul with a weight that stays packed."""
INT8 = "bitsandbytes.int8_linear_matmul"
"""A matmul of int8 matrices, (m, k) and (n, k)."""

_HALF_BYTES = 2
_HALF = "float16"


def unpacked_weight(op: Op) -> TensorSpec:
    """The weight of a matmul with a packed one, (k, n), as it is computed with."""
    rows, columns = integers(op, "shapeB")
    return TensorSpec((columns, rows), op.inputs[0].dtype, (1, columns))


@cost("bitsandbytes.dequantize_4bit", kind=Kind.ELEMENTWISE)
def _dequantize_4bit(op: Op) -> Cost:
    """A value from a table and a multiplication for each element; a scale for each block."""
    return Cost(2 * op.outputs[0].numel, read(op.inputs[:2]), written(op.outputs))


@cost("bitsandbytes.dequantize_blockwise", kind=Kind.ELEMENTWISE)
def _dequantize_blockwise(op: Op) -> Cost:
    return Cost(2 * op.outputs[0].numel, read(op.inputs[:3]), written(op.outputs))


@cost(
    "bitsandbytes.quantize_4bit",
    "bitsandbytes.quantize_blockwise",
    "bitsandbytes.int8_vectorwise_quant",
    "bitsandbytes.int8_vectorwise_dequant",
    kind=Kind.ELEMENTWISE,
)
def _quantize(op: Op) -> Cost:
    """The largest of each block or row, and the nearest value in the table for each element."""
    return Cost(10 * op.inputs[0].numel, read(op.inputs), written(op.outputs))


@cost(FUSED, kind=Kind.MATMUL)
def _gemm_4bit(op: Op) -> Cost:
    flops = 2 * op.inputs[0].numel * unpacked_weight(op).shape[-1]
    return Cost(flops, read(op.inputs), written(op.outputs))


@cost("bitsandbytes.gemv_4bit", kind=Kind.REDUCTION)
def _gemv_4bit(op: Op) -> Cost:
    """A matmul with a vector, which uses no tensor core."""
    flops = 2 * op.inputs[0].numel * unpacked_weight(op).shape[-1]
    return Cost(flops, read(op.inputs[:4]), written(op.outputs))


@cost(INT8, kind=Kind.MATMUL)
def _int8_matmul(op: Op) -> Cost:
    a, b = op.inputs[:2]
    return Cost(2 * a.numel * b.shape[0], read((a, b)), written(op.outputs))


@cost("bitsandbytes.int8_mm_dequant", kind=Kind.ELEMENTWISE)
def _int8_dequant(op: Op) -> Cost:
    """One kernel that writes float16, and others for a bias or a result of another type."""
    out = op.outputs[0]
    half_bytes = _HALF_BYTES * out.numel
    biased = len(op.inputs) > 3 and op.inputs[3].dtype != _HALF
    more = half_bytes * ((out.dtype != _HALF) + biased)
    return Cost(4 * out.numel, read(op.inputs) + more, written(op.outputs) + more)


@cost("bitsandbytes.optimizer_update_32bit", kind=Kind.OPTIMIZER)
@cost("bitsandbytes.optimizer_update_8bit_blockwise", kind=Kind.OPTIMIZER)
def _updated_parameter(op: Op) -> Cost:
    """The gradient comes first and is only read; parameter and state are read and written."""
    return Cost(16 * op.inputs[0].numel, read(op.inputs), written(op.inputs[1:]))
