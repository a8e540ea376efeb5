"""Collectives of a traced step, recorded as NCCL runs them: kind, bytes, ranks and stream.

A collective with `async_op=True` runs on a stream of its process group, which first waits for the
present stream; whoever waits for the result makes the present stream wait. One without it runs on
the present stream (torch's `ProcessGroupNCCL.cpp`, since torch 2.8).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._mode_utils import no_dispatch

from wavecast.frameworks.pytorch.capture.placement import Placement
from wavecast.frameworks.pytorch.capture.places import GPU, on_gpu, put_on_gpu, tensors_in
from wavecast.frameworks.pytorch.capture.works import Sent, Works
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.traces.step import Scalar

_c10d = torch.ops.c10d
_functional = torch.ops._c10d_functional


class TracedCollectives:
    """Answers torch's collective ops on fake tensors and records them."""

    def __init__(self, placement: Placement, recorder: OpRecorder) -> None:
        self._placement = placement
        self._recorder = recorder
        self.works = Works()
        self._streams: dict[str, int] = {}
        """The stream of each process group, by its name."""
        self._sent: dict[int, Sent] = {}
        """The functional collectives that nobody has waited for yet, by their result's storage."""

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        """The function that answers each op."""
        made: dict[Any, Callable[..., Any]] = {}
        for op, (name, sources, targets) in _IN_PLACE.items():
            made[op] = self._in_place(op, name, sources, targets)
        for op, (name, shape) in _MAKING.items():
            made[op] = self._making(op, name, shape)
        made[_functional.wait_tensor.default] = self._wait_tensor
        if hasattr(_functional, "_wrap_tensor_autograd"):
            made[_functional._wrap_tensor_autograd.default] = self._wrap
        made[_c10d.barrier.default] = self._barrier
        for op in (_c10d.send, _c10d.recv_, _c10d.recv_any_source_):
            made[op.default] = self._between_two(op.default)
        if hasattr(torch.ops._dtensor, "shard_dim_alltoall"):
            op = torch.ops._dtensor.shard_dim_alltoall.default
            made[op] = self._making(op, "all_to_all", _resharded)
        return made

    def send(
        self,
        name: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        group: Any,
        own: bool,
        ranks: Sequence[int] = (),
    ) -> Sent | None:
        """Record a collective. None if its tensors are on the host.

        Args:
            name: what it does, as in "all_reduce".
            inputs: the tensors of this rank that it reads.
            outputs: those that it writes.
            group: the process group.
            own: whether it runs on the stream of the group, not on the present one.
            ranks: the ranks that take part, if not all of the group.
        """
        if not any(on_gpu(tensor) for tensor in (*inputs, *outputs)):
            return None
        recorder = self._recorder
        stream, event = recorder.stream, None
        if own:
            stream = self._stream_of(group)
            recorder.mark("cuda.stream_wait", stream, stream=recorder.stream)
        ranks = ranks or dist.get_process_group_ranks(group)
        attrs: list[tuple[str, Scalar]] = [("ranks", len(ranks)), ("stride", _stride(ranks))]
        recorder.meet([*inputs, *outputs])
        with recorder.on_stream(stream):
            recorder.record(f"nccl.{name}", list(inputs), list(outputs), attrs)
        if own:
            event = recorder.count_event()
            recorder.mark("cuda.event_record", stream, event=event)
        return Sent(recorder, stream, event, tuple(map(weakref.ref, outputs)))

    def _stream_of(self, group: Any) -> int:
        if group.group_name not in self._streams:
            self._recorder.streams += 1
            self._streams[group.group_name] = self._recorder.streams
        return self._streams[group.group_name]

    def _in_place(self, op: Any, name: str, sources: str, targets: str) -> Callable[..., Any]:
        """An op of c10d, which writes to tensors that it gets and returns a handle."""

        def run(*args: Any, **kwargs: Any) -> Any:
            given = _arguments(op, args, kwargs)
            inputs = list(tensors_in(given[sources]))
            outputs = list(tensors_in(given[targets]))
            group = dist.ProcessGroup.unbox(given["process_group"])
            work = self.works.work(self._sent_now(name, inputs, outputs, group, given))
            return work if len(op._schema.returns) == 1 else (given[targets], work)

        return run

    def _sent_now(
        self, name: str, inputs: list[Any], outputs: list[Any], group: Any, given: dict[str, Any]
    ) -> Sent | None:
        own = bool(given.get("async_op", True))
        if name in ("all_gather", "reduce_scatter") and len(inputs) != len(outputs):
            return self._through_one_tensor(name, inputs, outputs, group, own)
        return self.send(name, inputs, outputs, group, own)

    def _through_one_tensor(
        self, name: str, inputs: list[Any], outputs: list[Any], group: Any, own: bool
    ) -> Sent | None:
        """A collective on a list of tensors, which NCCL runs on one tensor, with copies."""
        if not any(on_gpu(tensor) for tensor in (*inputs, *outputs)):
            return None
        many = outputs if name == "all_gather" else inputs
        with self._placement, torch.no_grad():
            flat = many[0].new_empty((len(many), *many[0].shape))
            if name == "reduce_scatter":
                for part, tensor in zip(flat.unbind(), inputs, strict=True):
                    part.copy_(tensor)
                return self.send(name, [flat], outputs, group, own)
            sent = self.send(name, inputs, [flat], group, own)
            stream = sent.stream if sent is not None else None
            with self._recorder.on_stream(stream):
                for part, tensor in zip(flat.unbind(), outputs, strict=True):
                    tensor.copy_(part)
            return sent

    def _making(self, op: Any, name: str, shape: Any) -> Callable[..., Any]:
        """A functional op, which allocates its result and is waited for with `wait_tensor`."""

        def run(*args: Any, **kwargs: Any) -> Any:
            given = _arguments(op, args, kwargs)
            first = next(iter(given.values()))
            inputs = list(tensors_in(first))
            group = given["group_name"]
            group = _resolve_process_group(group) if isinstance(group, str) else group
            if "out" in given:
                outputs = [given["out"]]
            elif op._schema.name.endswith("_"):
                outputs = inputs
            else:
                outputs = [self._fresh(t, shape(t, given, group.size())) for t in inputs]
            sent = self.send(name, inputs, outputs, group, own=True)
            if sent is not None:
                for tensor in outputs:
                    self._sent[tensor.untyped_storage()._cdata] = sent
            return outputs if isinstance(first, list | tuple) else outputs[0]

        return run

    def _fresh(self, tensor: Any, shape: Sequence[int]) -> Any:
        if not isinstance(tensor, FakeTensor):  # it is on the host, and has values
            with no_dispatch():
                return tensor.new_zeros(shape)
        with self._placement.torchs_own():
            made = tensor.new_empty(shape)
        if on_gpu(tensor):
            put_on_gpu(made)
            self._recorder.follow(made)
        return made

    @staticmethod
    def _wrap(tensor: Any) -> Any:
        """The result of a functional collective, which waits when it is used."""
        return AsyncCollectiveTensor(tensor)

    def _wait_tensor(self, tensor: Any) -> Any:
        sent = self._sent.pop(tensor.untyped_storage()._cdata, None)
        if sent is not None:
            sent.wait()
        return tensor

    def _between_two(self, op: Any) -> Callable[..., Any]:
        """A send to another rank, or a receive from one."""

        def run(*args: Any, **kwargs: Any) -> Any:
            given = _arguments(op, args, kwargs)
            group = dist.ProcessGroup.unbox(given["process_group"])
            ranks = dist.get_process_group_ranks(group)
            here = group.rank()
            other = given.get("dst", given.get("src", (here + 1) % len(ranks)))
            pair = sorted((ranks[here], ranks[other]))
            tensors = list(tensors_in(given["tensors"]))
            if op is _c10d.send.default:
                sent = self.send("send", tensors, [], group, own=True, ranks=pair)
            else:
                sent = self.send("recv", [], tensors, group, own=True, ranks=pair)
            return self.works.work(sent)

        return run

    def _barrier(self, *args: Any, **kwargs: Any) -> Any:
        """NCCL's barrier: a reduction of one element, for which the host waits."""
        given = _arguments(_c10d.barrier.default, args, kwargs)
        group = dist.ProcessGroup.unbox(given["process_group"])
        if "nccl" in dist.get_backend(group):
            with self._placement:
                token = torch.zeros(1, device=GPU)
            sent = self.send("all_reduce", [token], [token], group, own=True)
            self._recorder.mark("cuda.stream_synchronize", sent.stream if sent else None)
        return self.works.work(None)


def _arguments(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in op._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _stride(ranks: Sequence[int]) -> int:
    """How far apart the ranks of a group are, on average."""
    if len(ranks) < 2:
        return 1
    return max(round((max(ranks) - min(ranks)) / (len(ranks) - 1)), 1)


def _same(tensor: Any, given: dict[str, Any], size: int) -> Sequence[int]:
    return tuple(tensor.shape)


def _gathered(tensor: Any, given: dict[str, Any], size: int) -> Sequence[int]:
    return (tensor.shape[0] * size, *tensor.shape[1:]) if tensor.dim() else (size,)


def _scattered(tensor: Any, given: dict[str, Any], size: int) -> Sequence[int]:
    return (tensor.shape[0] // size, *tensor.shape[1:])


def _exchanged(tensor: Any, given: dict[str, Any], size: int) -> Sequence[int]:
    sizes = given["output_split_sizes"]
    return (sum(sizes), *tensor.shape[1:]) if sizes else tuple(tensor.shape)


def _resharded(tensor: Any, given: dict[str, Any], size: int) -> Sequence[int]:
    shape = list(tensor.shape)
    shape[given["gather_dim"]] *= size
    shape[given["shard_dim"]] //= size
    return tuple(shape)


def _known(namespace: Any, table: dict[str, Any]) -> dict[Any, Any]:
    """The ops of this release of torch, with what the table says of each."""
    return {
        getattr(namespace, name).default: value
        for name, value in table.items()
        if hasattr(namespace, name)
    }


# Name in the trace, the argument that is read, and the argument that is written.
_IN_PLACE: dict[Any, tuple[str, str, str]] = _known(
    _c10d,
    {
        "allreduce_": ("all_reduce", "tensors", "tensors"),
        "allreduce_coalesced_": ("all_reduce", "tensors", "tensors"),
        "broadcast_": ("broadcast", "tensors", "tensors"),
        "reduce_": ("reduce", "tensors", "tensors"),
        "allgather_": ("all_gather", "input_tensors", "output_tensors"),
        "_allgather_base_": ("all_gather", "input_tensor", "output_tensor"),
        "allgather_coalesced_": ("all_gather", "input_list", "output_lists"),
        "allgather_into_tensor_coalesced_": ("all_gather", "inputs", "outputs"),
        "reduce_scatter_": ("reduce_scatter", "input_tensors", "output_tensors"),
        "_reduce_scatter_base_": ("reduce_scatter", "input_tensor", "output_tensor"),
        "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs", "outputs"),
        "gather_": ("gather", "input_tensors", "output_tensors"),
        "scatter_": ("scatter", "input_tensors", "output_tensors"),
        "alltoall_": ("all_to_all", "input_tensors", "output_tensors"),
        "alltoall_base_": ("all_to_all", "input", "output"),
    },
)

# Name in the trace, and the shape of the result.
_MAKING: dict[Any, tuple[str, Any]] = _known(
    _functional,
    {
        "all_reduce": ("all_reduce", _same),
        "all_reduce_": ("all_reduce", _same),
        "all_reduce_coalesced": ("all_reduce", _same),
        "all_reduce_coalesced_": ("all_reduce", _same),
        "broadcast": ("broadcast", _same),
        "broadcast_": ("broadcast", _same),
        "all_gather_into_tensor": ("all_gather", _gathered),
        "all_gather_into_tensor_out": ("all_gather", _gathered),
        "all_gather_into_tensor_coalesced": ("all_gather", _gathered),
        "reduce_scatter_tensor": ("reduce_scatter", _scattered),
        "reduce_scatter_tensor_out": ("reduce_scatter", _scattered),
        "reduce_scatter_tensor_coalesced": ("reduce_scatter", _scattered),
        "all_to_all_single": ("all_to_all", _exchanged),
    },
)
