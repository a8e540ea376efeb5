"""The cost of elementwise ops and reductions: one pass over memory, a few FLOPs per element.

Such ops are bound by memory, so their FLOPs are nominal: 1 for a comparison, sum or product, 4 for
a short formula, 10 for a transcendental function, 40 for a special function.
"""

from __future__ import annotations

from wavecast.ops.registry import Cost, Kind, aten, cost, largest, read, streaming, written
from wavecast.traces.step import Op

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
    one, elements = read(op.inputs[:1]), largest(op)
    return Cost(14 * elements, 13 * one + 7 * elements, 6 * one + 7 * elements)


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
