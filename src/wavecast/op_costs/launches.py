"""How many kernels an op launches: torch 2.11 and cuDNN 9.19, counted on an H200.

The median of all its calls in measurements/h200, rounded down, copies and fills among them, of ops
that were seen more than twice and have more than one (`python -m training.launches`). Convolutions
and ops on lists are not here: their kernels depend on layouts, on algorithms and on the sizes of
the lists.
"""

from __future__ import annotations

from collections.abc import Mapping

from wavecast.op_costs import rnn
from wavecast.op_costs.registry import Kind, kind_of
from wavecast.trace import Op

COUNTED: Mapping[str, int] = {
    "aten.native_batch_norm": 3,
    "aten.native_layer_norm_backward": 2,
    "aten._fused_rms_norm_backward": 2,
    "aten.native_group_norm": 3,
    "aten.native_group_norm_backward": 5,
    "aten._safe_softmax": 5,
    "aten._softmax_backward_data": 2,
    "aten._scaled_dot_product_cudnn_attention": 2,
    "aten._scaled_dot_product_cudnn_attention_backward": 4,
    "aten._scaled_dot_product_efficient_attention_backward": 5,
    "aten._scaled_dot_product_flash_attention_backward": 5,
    "aten.max_pool2d_with_indices_backward": 2,
    "aten.max_pool3d_with_indices_backward": 3,
    "aten.adaptive_max_pool2d_backward": 2,
    "aten.avg_pool3d_backward": 2,
    "aten._adaptive_avg_pool2d_backward": 2,
    "aten.nll_loss_backward": 2,
    "aten.nll_loss2d_forward": 2,
    "aten.nll_loss2d_backward": 2,
    "aten.mse_loss": 2,
    "aten.mse_loss_backward": 2,
    "aten.smooth_l1_loss_backward": 2,
    "aten.binary_cross_entropy_with_logits": 6,
    "aten._ctc_loss": 4,
    "aten._ctc_loss_backward": 24,
    "aten.masked_fill": 2,
    "aten._thnn_fused_lstm_cell_backward_impl": 2,
    "aten.any": 2,
    "aten.cumsum": 2,
    "aten.topk": 2,
    "aten.sort": 17,
    "aten.multinomial": 14,
    "aten.eye": 2,
    "aten.roll": 2,
    "aten.im2col": 6,
    "aten.reflection_pad2d_backward": 2,
    "aten._pack_padded_sequence": 12,
    "aten.slice_backward": 2,
    "aten.select_backward": 2,
    "aten.unfold_backward": 3,
    "aten.scatter_add": 2,
    "aten.index_add": 2,
    "aten.embedding_dense_backward": 2,
    "aten._embedding_bag_backward": 13,
    "aten.upsample_bilinear2d_backward": 2,
    "aten.grid_sampler_2d_backward": 2,
}
SORTING = 20
"""Of ops that sort their places before they add to them."""
UNSORTED_LOOKUPS = 3072
"""Up to so many, the gradient of an embedding sorts none (Embedding.cu)."""


def counted(op: Op) -> int:
    """Kernels of one run of an op that has something to run, at least.

    Of recurrent layers cuDNN launches two per time step, layer and direction each way (1033 for 128
    steps of a bidirectional LSTM of two layers).
    """
    if kind_of(op.name) is Kind.RNN:
        return 2 * rnn.cell_steps(op)
    if op.base in ("aten.index_put", "aten.index_put_"):
        return SORTING if op.attr("accumulate", False) else 1
    if op.base == "aten.embedding_dense_backward" and _places(op) > UNSORTED_LOOKUPS:
        return SORTING
    if op.attr("training") is False:
        return 1
    # One more was seen where channels are neighbours in memory.
    more = "batch_norm" in op.base and "cudnn" not in op.base and _channels_last(op)
    return COUNTED.get(op.base, 1) + more


def _channels_last(op: Op) -> bool:
    tensors = [t for t in (*op.inputs, *op.outputs) if t.device != "cpu"]
    return bool(tensors) and max(tensors, key=lambda t: t.numel).channels_last


def _places(op: Op) -> int:
    """How many indices an op has."""
    return max((t.numel for t in op.inputs if "int" in t.dtype), default=0)
