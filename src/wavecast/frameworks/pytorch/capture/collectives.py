"""Collectives of a traced step, recorded as NCCL runs them: kind, bytes, ranks and stream.

A collective with `async_op=True` runs on a stream of its process group, which first waits for the
present stream; whoever waits for the result makes the present stream wait. One without it runs on
the present stream (torch's `ProcessGroupNCCL.cpp`, since torch 2.8).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import FakeWork, _resolve_process_group
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._mode_utils import no_dispatch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.placement import Placement
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.places import GPU, on_gpu, put_on_gpu, tensors_in
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.frameworks.replacements import replacing
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
        handlers: dict[Any, Callable[..., Any]] = {}
        for op, (name, sources, targets) in _IN_PLACE.items():
            handlers[op] = self._in_place(op, name, sources, targets)
        for op, (name, shape) in _MAKING.items():
            handlers[op] = self._making(op, name, shape)
        handlers[_functional.wait_tensor.default] = self._wait_tensor
        if hasattr(_functional, "_wrap_tensor_autograd"):
            handlers[_functional._wrap_tensor_autograd.default] = AsyncCollectiveTensor
        handlers[_c10d.barrier.default] = self._barrier
        for op in (_c10d.send, _c10d.recv_, _c10d.recv_any_source_):
            handlers[op.default] = self._between_two(op.default)
        if hasattr(torch.ops._dtensor, "shard_dim_alltoall"):
            op = torch.ops._dtensor.shard_dim_alltoall.default
            handlers[op] = self._making(op, "all_to_all", _resharded)
        return handlers

    def send(
        self,
        name: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        group: Any,
        own: bool,
        ranks: Sequence[int] = (),
    ) -> Sent | None:
        """Record a collective, such as "all_reduce". None if its tensors are on the host.

        With `own`, it runs on the stream of the group, not on the present one. `ranks` are those
        that take part, if not all of the group do.
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
            own = bool(given.get("async_op", True))
            is_of_list = name in ("all_gather", "reduce_scatter") and len(inputs) != len(outputs)
            send = self._through_one_tensor if is_of_list else self.send
            work = self.works.work(send(name, inputs, outputs, group, own))
            return work if len(op._schema.returns) == 1 else (given[targets], work)

        return run

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
            result = tensor.new_empty(shape)
        if on_gpu(tensor):
            put_on_gpu(result)
            self._recorder.follow(result)
        return result

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


# The handles of collectives that a traced step has issued: what it waits for, and how.


@dataclass(frozen=True)
class Sent:
    """A collective that was issued, and how to wait for it."""

    recorder: OpRecorder
    stream: int
    event: int | None
    """The event that was recorded after it. None if it runs on the stream that issued it."""
    results: tuple[weakref.ref[Any], ...] = ()
    """The tensors that it writes. They are not kept: their memory is followed."""

    def wait(self) -> None:
        """Let the present stream wait for the result."""
        if self.event is not None:
            self.recorder.mark("cuda.stream_wait", event=self.event)


class Works:
    """The handles of the collectives of one trace: `work.wait()`, `work.get_future()`.

    They are torch's own, which cannot be derived from safely, with methods that look up here what
    they stand for.
    """

    def __init__(self) -> None:
        self._sent: dict[int, tuple[Any, Sent]] = {}

    def work(self, sent: Sent | None) -> Any:
        """The handle of a collective, as torch's dispatcher wants it."""
        work = FakeWork()
        if sent is not None:
            # The handle is kept: Python's object for it is found again only while it lives.
            self._sent[id(work)] = (work, sent)
        return work.boxed()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let the handles answer for the collectives of this trace, inside the block."""

        def sent_of(work: Any) -> Sent | None:
            return self._sent.get(id(work), (None, None))[1]

        def wait(work: Any, timeout: Any = None) -> bool:
            sent = sent_of(work)
            if sent is not None:
                sent.wait()
            return True

        def result(work: Any) -> list[Any]:
            sent = sent_of(work)
            return [] if sent is None else [tensor() for tensor in sent.results]

        def get_future(work: Any) -> Any:
            return SentFuture(sent_of(work), result(work))

        methods = {
            "wait": wait,
            "synchronize": lambda work: wait(work) and None,
            "block_current_stream": lambda work: wait(work) and None,
            "is_completed": lambda work: True,
            "is_success": lambda work: True,
            "result": result,
            "get_future": get_future,
        }
        with replacing() as replace:
            replace(FakeWork, **methods)
            try:
                yield
            finally:
                self._sent.clear()


class SentFuture(torch.futures.Future[Any]):
    """The future of a collective. Its callbacks run on the stream of the collective."""

    def __init__(self, sent: Sent | None, value: Any) -> None:
        super().__init__()
        self._sent = sent
        self.set_result(value)

    def wait(self) -> Any:
        """The value. The present stream waits for it."""
        if self._sent is not None:
            self._sent.wait()
        return self.value()

    def then(self, callback: Any) -> Any:
        """The future of what a callback makes of this one."""
        if self._sent is None:
            return SentFuture(None, callback(self))
        recorder, before = self._sent.recorder, len(self._sent.recorder)
        event = self._sent.event
        with recorder.on_stream(self._sent.stream):
            value = callback(_ReachedFuture(self.value()))
            if event is not None and len(recorder) > before:  # it has issued further work
                event = recorder.count_event()
                recorder.mark("cuda.event_record", event=event)
        return SentFuture(Sent(recorder, self._sent.stream, event), value)


class _ReachedFuture:
    """What a callback of a future sees: one whose result is there."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        return self._value

    wait = value

    def done(self) -> bool:
        return True


# Collectives of Python objects: every rank is assumed to have what the traced one has.


def object_collectives(assumptions: Assumptions) -> dict[str, Callable[..., Any]]:
    """The functions of `torch.distributed` that send or gather objects, by name."""

    def note(*_: Any, **__: Any) -> None:
        assumptions.note(
            f"the step sends Python objects between ranks at {user_line()}; all ranks were assumed "
            "to have what the traced one has"
        )

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        note()
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
        note()
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter_object_list(received: list[Any], sent: Any = None, *_: Any, **__: Any) -> None:
        if sent is None:
            _refuse("receives objects that another rank scatters")
        note()
        received[0] = sent[0]

    def recv_object_list(*_: Any, **__: Any) -> None:
        _refuse("receives objects from another rank")

    functions = (all_gather_object, gather_object, scatter_object_list, recv_object_list)
    unchanged = dict.fromkeys(("broadcast_object_list", "send_object_list"), note)
    return unchanged | {function.__name__: function for function in functions}


def _refuse(action: str) -> None:
    raise CaptureError(
        f"the step {action} at {user_line()}, which cannot be traced, because no other rank runs; "
        "make them on this rank; for a pipeline, trace the whole model and predict it with "
        "parallel=Parallel(pipeline=4)"
    )


# The reducer of DistributedDataParallel: gradients in buckets, reduced during the backward pass.
#
# Torch's own (`c10d/reducer.cpp`) needs the memory of gradients. This one does the same to fake
# tensors: buckets are reduced in order, each when its last gradient is ready; after the first
# backward pass they are rebuilt in the order in which the gradients became ready; at the end of
# each backward pass the present stream waits for all of them, and the gradients are copied back.


class Bucket:
    """Gradients that are reduced together: what a communication hook gets."""

    def __init__(self, index: int, params: Sequence[Any], variables: Sequence[int]) -> None:
        self.variables = tuple(variables)
        """The numbers of its parameters, in order."""
        self.pending = set(variables)
        self.future: Any = None
        self.last = False
        self._index = index
        self._params = [params[number] for number in variables]
        first = self._params[0]
        total = sum(param.numel() for param in self._params)
        self._buffer = torch.zeros(total, dtype=first.dtype, device=first.device)
        self._views = self._split(self._buffer)

    def _split(self, buffer: Any) -> list[Any]:
        parts = torch.split(buffer, [param.numel() for param in self._params])
        return [part.view(param.shape) for part, param in zip(parts, self._params, strict=True)]

    def view(self, variable: int) -> Any:
        """The part of the bucket that holds the gradient of a parameter."""
        return self._views[self.variables.index(variable)]

    def index(self) -> int:
        """The place in the order of reductions."""
        return self._index

    def buffer(self) -> Any:
        """All gradients as one tensor."""
        return self._buffer

    def set_buffer(self, buffer: Any) -> None:
        """Put another tensor in the place of the gradients."""
        self._buffer = buffer
        self._views = self._split(buffer)

    def gradients(self) -> list[Any]:
        """The gradients one by one."""
        return list(self._views)

    def parameters(self) -> list[Any]:
        """The parameters."""
        return list(self._params)

    def is_last(self) -> bool:
        """Whether it is reduced last."""
        return self.last


class TracedReducer:
    """What `torch.distributed.Reducer` does, on fake tensors."""

    def __init__(
        self,
        recorder: OpRecorder,
        params: Sequence[Any],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: Any,
        expect_sparse_gradient: Sequence[bool] = (),
        bucket_bytes_cap: int = 25 << 20,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: Any = None,
        first_bucket_bytes_cap: int = 1 << 20,
        *rest: Any,
    ) -> None:
        self._recorder = recorder
        limits = rest[2] if len(rest) > 2 and rest[2] else None
        self.group = process_group
        self._expect_sparse = expect_sparse_gradient
        self._limits = limits or [first_bucket_bytes_cap, bucket_bytes_cap]
        self._find_unused = find_unused_parameters
        self._as_views = gradient_as_bucket_view
        self._params = list(params)
        self._hook: Callable[[Any], Any] | None = None
        self._static = False
        self._uses: Counter[int] = Counter()
        """For each parameter of a static graph, how many gradients a backward pass adds to it."""
        self._is_counted = False
        self._arrived: Counter[int] = Counter()
        self._expects_hooks = False
        self._has_rebuilt = False
        self._ready_order: list[int] = []
        self._unused: set[int] = set()
        self._next = 0
        self._buckets: list[Bucket] = []
        self._make_buckets(bucket_indices)
        for number, param in enumerate(self._params):
            param.register_post_accumulate_grad_hook(self._noticing(number))

    def _make_buckets(self, assignment: Sequence[Sequence[int]]) -> None:
        self._buckets = [Bucket(i, self._params, b) for i, b in enumerate(assignment)]
        self._buckets[-1].last = True
        self._bucket_of = {n: bucket for bucket in self._buckets for n in bucket.variables}

    def _noticing(self, number: int) -> Callable[[Any], None]:
        # A parameter must not keep the reducer, which keeps the parameter.
        reducer = weakref.ref(self)

        def notice(_: Any) -> None:
            alive = reducer()
            if alive is not None:
                alive._mark_ready(number)

        return notice

    # What DistributedDataParallel calls.

    def prepare_for_forward(self) -> None:
        """Called before each forward pass."""

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        """Expect the gradients of a backward pass."""
        self._expects_hooks, self._next, self._unused = True, 0, set()
        self._arrived.clear()
        for bucket in self._buckets:
            bucket.pending, bucket.future = set(bucket.variables), None
        if self._is_counted:
            self._unused = {n for n in range(len(self._params)) if not self._uses[n]}
        elif self._find_unused and not self._static:
            used = _leaves_of(outputs)
            self._unused = {n for n, p in enumerate(self._params) if id(p) not in used}
        for number in sorted(self._unused):
            self._reduce_ready(number)

    def _rebuild_buckets(self) -> bool:
        is_rebuilt_later = self._find_unused and not self._static
        if self._has_rebuilt or is_rebuilt_later or len(self._ready_order) != len(self._params):
            return False
        order = self._ready_order
        assignment, _ = dist._compute_bucket_assignment_by_size(
            [self._params[n] for n in order],
            list(self._limits),
            [self._expect_sparse[n] for n in order] if self._expect_sparse else [],
            order,
        )
        with self._recorder.silence():  # it is done once in a training
            self._make_buckets(assignment)
        self._has_rebuilt = True
        return True

    def _set_static_graph(self) -> None:
        self._static = True

    def _delay_all_reduce(self) -> None:
        """Reduce all gradients at the end of the first backward pass of a static graph."""
        if not self._expects_hooks or self._is_counted:
            return
        self._is_counted = True
        self._reduce_used()
        for number in range(len(self._params)):
            self._reduce_ready(number)
        self._finish()

    def set_logger(self, logger: Any) -> None:
        """Take the logger, which is not used."""

    def register_hook(self, state: Any, hook: Any) -> None:
        """Let a communication hook reduce the buckets."""
        self._hook = lambda bucket: hook(state, bucket)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CaptureError(
            f"DistributedDataParallel at {user_line()} uses {name.strip('_')}, which cannot be "
            "traced; leave the option out"
        )

    # What happens in the backward pass.

    def _mark_ready(self, number: int) -> None:
        if not self._expects_hooks:
            return  # under no_sync
        self._arrived[number] += 1
        if self._static and not self._is_counted:
            self._uses[number] += 1
            return
        if self._arrived[number] == 1 and not self._has_rebuilt:
            self._ready_order.append(number)
        if self._arrived[number] >= self._uses[number]:
            self._reduce_ready(number)
            if self._next == len(self._buckets):
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _reduce_ready(self, number: int) -> None:
        """Put a gradient into its bucket, and reduce the buckets that are full."""
        bucket = self._bucket_of[number]
        if number not in bucket.pending:
            raise CaptureError(
                f"a parameter of DistributedDataParallel gets a second gradient at {user_line()} "
                "before the first is reduced, which DistributedDataParallel refuses, too"
            )
        bucket.pending.remove(number)
        self._fill(bucket, number)
        while self._next < len(self._buckets) and not self._buckets[self._next].pending:
            self._reduce(self._buckets[self._next])
            self._next += 1

    def _fill(self, bucket: Bucket, number: int) -> None:
        view, grad = bucket.view(number), self._params[number].grad
        with torch.no_grad():
            if number in self._unused or grad is None:
                view.zero_()
            elif grad.untyped_storage()._cdata == view.untyped_storage()._cdata:
                if self._hook is None:
                    view.div_(self.group.size())
            elif self._hook is not None:
                view.copy_(grad)
            else:
                torch.mul(grad, 1.0 / self.group.size(), out=view)
            if self._as_views and grad is not None:
                self._params[number].grad = view

    def _reduce(self, bucket: Bucket) -> None:
        if self._hook is not None:
            bucket.future = self._hook(bucket)
            return
        work = dist.all_reduce(bucket.buffer(), group=self.group, async_op=True)
        bucket.future = work.get_future().then(lambda future: future.value()[0])

    def _finish(self) -> None:
        """Wait for all reductions, and copy the gradients back."""
        self._expects_hooks = False
        if self._find_unused and not self._static:
            self._reduce_used()
        with torch.no_grad():
            for bucket in self._buckets:
                reduced = bucket.future.wait()
                if isinstance(reduced, torch.Tensor) and reduced is not bucket.buffer():
                    bucket.buffer().copy_(reduced.view(-1))
                for number in () if self._as_views else bucket.variables:
                    grad = self._params[number].grad
                    if number not in self._unused and grad is not None:
                        grad.copy_(bucket.view(number))

    def _reduce_used(self) -> None:
        """All-reduce the flags that say which parameters were used."""
        used = torch.ones(len(self._params), dtype=torch.int32)
        on_gpu = used.to(self._params[0].device, non_blocking=True)
        dist.all_reduce(on_gpu, group=self.group, async_op=True).wait()


class TracedLogger:
    """`torch.distributed.Logger`, which keeps nothing."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def broadcast_coalesced(group: Any, tensors: Sequence[Any], buffer_size: int, src: int = 0) -> None:
    """Copy tensors from one rank to all, joined into a few: `dist._broadcast_coalesced`."""
    assignment, _ = dist._compute_bucket_assignment_by_size(list(tensors), [buffer_size])
    under_way: list[tuple[Any, Any, Sequence[int]]] = []

    def finish() -> None:
        work, flat, numbers = under_way.pop(0)
        work.wait()
        parts = torch.split(flat, [tensors[n].numel() for n in numbers])
        for part, number in zip(parts, numbers, strict=True):
            tensors[number].copy_(part.view(tensors[number].shape))

    with torch.no_grad():
        for numbers in assignment:
            flat = torch.cat([tensors[n].reshape(-1) for n in numbers])
            work = dist.broadcast(flat, group=group, group_src=src, async_op=True)
            under_way.append((work, flat, numbers))
            if len(under_way) >= 2:  # as many as torch keeps under way
                finish()
        while under_way:
            finish()


def _leaves_of(outputs: Sequence[Any]) -> set[int]:
    """The ids of the tensors whose gradients the backward pass of some outputs makes."""
    waiting = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen, leaves = set(waiting), {id(t) for t in outputs if t.is_leaf}
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(id(variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return leaves
