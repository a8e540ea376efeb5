"""What fake tensors cannot know: values, and shapes that depend on values.

Values read back from the GPU are answered with a constant; data-dependent shapes with their
upper bound. Both leave a note in the trace, with the line of user code that asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.memory_format import suggested
from wavecast.frameworks.pytorch.capture.rnn import fused_gru_cell, fused_gru_cell_backward
from wavecast.frameworks.pytorch.capture.rnn_weights import flat_numel, flatten_weight, parts_of
from wavecast.frameworks.pytorch.user_lines import user_line

_aten = torch.ops.aten
_BAG_MAX = 2
_TRUE = "_wavecast_true"


class Assumptions:
    """Stand-ins for results that only data could give."""

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}
        self.compiled = False
        """Whether the step runs something that torch.compile would compile."""
        self._bounds: dict[str, Callable[..., Any]] = {
            "aten.equal": lambda *_: self._assumed("torch.equal", False),
            "aten.is_nonzero": lambda *_: self._assumed("a tensor's truth", False),
            "aten.nonzero": self._nonzero,
            "aten.masked_select": lambda tensor, mask: self._upper(tensor, (mask.numel(),)),
            "aten.index": self._index,
            "aten.index_put": self._index_put,
            "aten.index_put_": self._index_put,
            "aten._unique2": self._unique,
            "aten.unique_dim": self._unique,
            "aten.unique_consecutive": self._unique,
            "aten.bincount": self._bincount,
            "torchvision.nms": lambda boxes, *_: self._upper(boxes, (boxes.shape[0],), torch.int64),
        }
        self._direct: dict[Any, Callable[..., Any]] = {
            _aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
            _aten._local_scalar_dense.default: self._scalar,
            _aten._pack_padded_sequence.default: self._pack_padded_sequence,
            _aten.native_batch_norm.default: _native_batch_norm,
            _aten.cudnn_batch_norm.default: _cudnn_batch_norm,
            _aten.convolution.default: _convolution,
            _aten.convolution_backward.default: _convolution_backward,
            _aten._embedding_bag.default: _embedding_bag,
            _aten._embedding_bag_forward_only.default: _embedding_bag,
            _aten._cudnn_rnn.default: _cudnn_rnn,
            _aten._cudnn_rnn_flatten_weight.default: flatten_weight,
            _aten._thnn_fused_gru_cell.default: fused_gru_cell,
            _aten._thnn_fused_gru_cell_backward.default: fused_gru_cell_backward,
            _aten._ctc_loss.default: _ctc_loss,
            _aten._ctc_loss_backward.default: lambda _, log_probs, *__: torch.empty_like(log_probs),
            # The CPU's takes the memory format of the input, CUDA's that of the gradient.
            _aten.hardswish_backward.default: lambda grad, _: torch.empty_like(grad),
            # The CPU's refuses integers, CUDA's does not.
            _aten.histc.default: lambda tensor, bins=100, *_, **__: tensor.new_empty(bins),
        }
        if hasattr(_aten, "_grouped_mm"):
            self._direct[_aten._grouped_mm.default] = self._grouped_mm

    def find(self, func: Any) -> Callable[..., Any] | None:
        """The answer to an op for which torch has no fake implementation at all."""
        return self._direct.get(func)

    def knows(self, func: Any) -> bool:
        """Whether this op may be answered here, with a note each time."""
        return func in self._direct or _base(func) in self._bounds

    def bound(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The upper bound of an op whose result depends on data."""
        name = _base(func)
        answer = self._bounds.get(name)
        if answer is None:
            raise CaptureError(
                f"{name} at {user_line()} gives a result whose size depends on the data, and no "
                "upper bound is known for it; use a fixed-size form (padding, masks) in the step"
            )
        return answer(*args, **kwargs)

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Answer without a note: the answer is not used."""
        notes = dict(self.notes)
        yield
        self.notes = notes

    def note(self, text: str) -> None:
        """Remember something the reader of the trace must know, once."""
        self.notes.setdefault(text)

    def _assumed(self, what: str, value: Any) -> Any:
        self.note(f"assumed: {what} is {value} at {user_line()}")
        return value

    def _scalar(self, tensor: Any) -> Any:
        known = getattr(tensor, "constant", None)
        if known is not None:
            with no_dispatch():
                return known.item()
        return self.assume_value(tensor.dtype, getattr(tensor, _TRUE, False))

    def assume_true(self, tensor: Any) -> None:
        """Let a truth be True when it is read: False is what is assumed of others."""
        setattr(tensor, _TRUE, True)

    def assume_value(self, dtype: Any, truth: bool = False) -> Any:
        """The value that stands for one that only data could give."""
        if dtype is torch.bool:
            return self._assumed("a value read back", truth)
        return self._assumed("a value read back", 1.0 if dtype.is_floating_point else 1)

    def _upper(self, like: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
        self.note(f"upper bound: a result of {shape[0]} elements at {user_line()}")
        return like.new_empty(shape, dtype=dtype or like.dtype)

    def _selected(self, mask: Any) -> Any:
        """As many indices as a mask selects, or could select."""
        known = getattr(mask, "constant", None)
        if known is None:
            return self._upper(mask, (mask.numel(),), torch.int64)
        with no_dispatch():
            count = int(known.sum())
        return mask.new_empty((count,), dtype=torch.int64)

    def _nonzero(self, tensor: Any) -> Any:
        return self._upper(tensor, (tensor.numel(), tensor.dim()), torch.int64)

    def _plain_indices(self, indices: Any) -> list[Any]:
        """Boolean masks replaced by as many integer indices as they could select."""
        plain: list[Any] = []
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                plain += [self._selected(index)] * index.dim()
            else:
                plain.append(index)
        return plain

    def _index(self, tensor: Any, indices: Any) -> Any:
        return _aten.index.Tensor(tensor, self._plain_indices(indices))

    def _index_put(self, tensor: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
        return tensor if values is not None else None

    def _unique(self, tensor: Any, *args: Any, **_: Any) -> Any:
        count = tensor.numel()
        return (
            self._upper(tensor, (count,)),
            tensor.new_empty(tensor.shape, dtype=torch.int64),
            tensor.new_empty((count,), dtype=torch.int64),
        )

    def _bincount(self, tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
        size = max(minlength, 1)
        self.note(f"assumed: bincount has {size} bins (minlength) at {user_line()}")
        return tensor.new_empty((size,), dtype=weights.dtype if weights is not None else None)

    def _pack_padded_sequence(self, padded: Any, lengths: Any, batch_first: bool) -> Any:
        longest = padded.shape[1 if batch_first else 0]
        values = self.lengths(lengths, longest, "packed sequences")
        sizes = [sum(n > step for n in values) for step in range(max(values))]
        mode = padded.fake_mode
        with no_dispatch():
            counts = torch.LongTensor(sizes)
        known = mode.fake_tensor_converter.from_real_tensor(mode, counts, make_constant=True)
        return padded.new_empty((sum(sizes), *padded.shape[2:])), known

    def _grouped_mm(self, a: Any, b: Any, offs: Any = None, *args: Any, **kwargs: Any) -> Any:
        if offs is not None:
            self.note("assumed: the groups of grouped products (experts) are of one size")
        return _grouped_mm(a, b, offs, *args, **kwargs)

    def lengths(self, tensor: Any, bound: int, what: str) -> list[int]:
        """The whole numbers in a tensor, or an upper bound for each if they are not known."""
        known = getattr(tensor, "constant", None)
        if known is None:
            self.note(f"upper bound: all {what} {bound} long at {user_line()}")
            return [bound] * tensor.numel()
        with no_dispatch():
            return [int(n) for n in known.tolist()]


@cache
def _base(func: Any) -> str:
    return ".".join(str(func).split(".")[:2])


def _native_batch_norm(
    source: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> Any:
    """CUDA keeps the statistics of a half-precision batch in float32, the CPU does not."""
    count = source.shape[1] if training else 0
    dtype = torch.float32 if source.dtype in (torch.float16, torch.bfloat16) else source.dtype
    statistics = (source.new_empty(count, dtype=dtype) for _ in range(2))
    return torch.empty_like(source), *statistics


def _ctc_loss(log_probs: Any, targets: Any, _lengths: Any, target_lengths: Any, *_: Any) -> Any:
    """The losses, and the table of the forward pass over all states of the longest target."""
    steps, batch = log_probs.shape[:2]
    states = 2 * max(target_lengths) + 1
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, states))


def _cudnn_batch_norm(
    source: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any
) -> Any:
    """Statistics as precise as the weights, and no reserve (seen on an H200 with cuDNN 9.19)."""
    count = source.shape[1] if training else 0
    statistics = (weight.new_empty(count) for _ in range(2))
    return torch.empty_like(source), *statistics, source.new_empty(0, dtype=torch.uint8)


def _convolution(source: Any, weight: Any, *args: Any) -> Any:
    """The result in channels_last if either input is: cuDNN's rule, which the CPU's is not."""
    return _in_layout(suggested(source, weight), _aten.convolution.default(source, weight, *args))


def _convolution_backward(gradient: Any, source: Any, weight: Any, *args: Any) -> Any:
    layout = suggested(source, weight)
    d_source, d_weight, d_bias = _aten.convolution_backward.default(gradient, source, weight, *args)
    return _in_layout(layout, d_source), _in_layout(layout, d_weight), d_bias


def _in_layout(layout: Any, tensor: Any) -> Any:
    if tensor is None or suggested(tensor) == layout:
        return tensor
    return torch.empty_like(tensor, memory_format=layout)


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """CUDA keeps the positions of maxima only where it takes a maximum (EmbeddingBag.cu)."""
    bags, size = offsets.shape[0] - include_last_offset, weight.shape[1]
    return (
        weight.new_empty((bags, size)),
        torch.empty_like(indices),
        torch.empty_like(offsets),
        indices.new_empty((bags, size) if mode == _BAG_MAX else 0),
    )


def _grouped_mm(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """One product per group of rows (torch's fake version takes bf16 only, CUDA's all floats)."""
    shape: tuple[int, ...]
    if a.dim() == 2 and b.dim() == 2:
        shape = (offs.shape[0], a.shape[0], b.shape[1])
    elif a.dim() == 3 and b.dim() == 3:
        shape = (a.shape[0], a.shape[1], b.shape[2])
    else:
        shape = (a.shape[-2], b.shape[-1])
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


_RESERVED_PER_UNIT = {0: 1, 1: 1, 2: 5, 3: 6}
"""Numbers cuDNN keeps per step and hidden unit for the backward pass, by cell (0, 1: plain RNN,
2: LSTM, 3: GRU): read off the sizes it asked for on an H200."""


def _cudnn_rnn(
    source: Any,
    weights: Any,
    stride: int,
    buffer: Any,
    hidden: Any,
    cell: Any,
    mode: int,
    size: int,
    projected: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Any,
    noise: Any,
) -> Any:
    """Output, states, the memory reserved for the backward pass, and the weights in one piece."""
    if buffer is None:
        buffer = weights[0].new_empty(flat_numel(weights, stride))
    directions = 2 if bidirectional else 1
    output = source.new_empty((*source.shape[:-1], (projected or size) * directions))
    positions = source.numel() // source.shape[-1]
    units = positions * size * directions
    numbers = units * (_RESERVED_PER_UNIT[mode] * layers + layers - 1)
    if projected:  # what a step puts out, before and after it is projected
        numbers += positions * directions * layers * (size + projected)
    masks = units * (layers - 1) * directions // 8 if noise is not None else 0
    reserve = numbers * source.element_size() + masks + 256 if train else 0
    return (
        output,
        torch.empty_like(hidden),
        source.new_empty(0) if cell is None else torch.empty_like(cell),
        source.new_empty(reserve, dtype=torch.uint8),
        buffer,
    )


def _cudnn_rnn_backward(*args: Any) -> Any:
    """The gradients of input and states, always, and of the weights if wanted."""
    source, weights, stride, buffer, hidden, cell = args[:6]
    gradients: list[Any] = []
    if args[-1][3]:
        # Without biases, cuDNN's layout is not torch's, and torch makes copies.
        own = stride < 4
        gradients = (
            [torch.empty_like(w) for w in weights]
            if own
            else parts_of(torch.empty_like(buffer), weights)
        )
    return (
        torch.empty_like(source),
        torch.empty_like(hidden),
        None if cell is None else torch.empty_like(cell),
        gradients,
    )
