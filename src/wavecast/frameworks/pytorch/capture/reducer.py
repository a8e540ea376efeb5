"""The reducer of DistributedDataParallel: gradients in buckets, reduced during the backward pass.

Torch's own (`c10d/reducer.cpp`) needs the memory of gradients. This one does the same to fake
tensors: buckets are reduced in order, each when its last gradient is ready; after the first
backward pass they are rebuilt in the order in which the gradients became ready; at the end of each
backward pass the present stream waits for all of them, and the gradients are copied back.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line


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


@dataclass(frozen=True)
class _Options:
    """The arguments of torch's reducer that are used here."""

    expect_sparse: Sequence[bool]
    limits: Sequence[int]
    find_unused: bool
    as_views: bool


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
        self._options = _Options(
            expect_sparse_gradient,
            limits or [first_bucket_bytes_cap, bucket_bytes_cap],
            find_unused_parameters,
            gradient_as_bucket_view,
        )
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
        elif self._options.find_unused and not self._static:
            used = _leaves_of(outputs)
            self._unused = {n for n, p in enumerate(self._params) if id(p) not in used}
        for number in sorted(self._unused):
            self._reduce_ready(number)

    def _rebuild_buckets(self) -> bool:
        wanted = self._static or not self._options.find_unused
        if self._has_rebuilt or not wanted or len(self._ready_order) != len(self._params):
            return False
        order = self._ready_order
        assignment, _ = dist._compute_bucket_assignment_by_size(
            [self._params[n] for n in order],
            list(self._options.limits),
            [self._options.expect_sparse[n] for n in order] if self._options.expect_sparse else [],
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
            if self._options.as_views and grad is not None:
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
        if self._options.find_unused and not self._static:
            self._reduce_used()
        with torch.no_grad():
            for bucket in self._buckets:
                reduced = bucket.future.wait()
                if isinstance(reduced, torch.Tensor) and reduced is not bucket.buffer():
                    bucket.buffer().copy_(reduced.view(-1))
                for number in bucket.variables:
                    self._copy_back(bucket, number)

    def _copy_back(self, bucket: Bucket, number: int) -> None:
        param = self._params[number]
        if self._options.as_views or number in self._unused or param.grad is None:
            return
        param.grad.copy_(bucket.view(number))

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
