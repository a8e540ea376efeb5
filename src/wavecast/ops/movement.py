"""The cost of copies, fills, random numbers, views and synchronisations."""

from __future__ import annotations

from wavecast.ops.registry import NONE, Cost, Kind, aten, cost, declare, streaming
from wavecast.traces.step import Op

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
