"""A training step whose code was changed: each change is a context in which the step runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizer_hooks
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from wavecast.frameworks.pytorch.changes.learned_uses import (
    ChunkedLoss,
    FusedAttention,
)
from wavecast.frameworks.pytorch.compiled import dynamo
from wavecast.frameworks.replacements import replacing

# Changes of data loaders: larger batches, and batches of a few samples that are repeated.


@contextmanager
def twice_the_batch() -> Iterator[None]:
    """Build data loaders with twice the batch."""
    original = DataLoader.__init__

    def build(self: Any, dataset: Any, batch_size: Any = 1, *args: Any, **named: Any) -> None:
        has_own = named.get("batch_sampler") is None and batch_size is not None
        original(self, dataset, 2 * batch_size if has_own else batch_size, *args, **named)

    with replacing() as replace:
        replace(DataLoader, __init__=build)
        yield


_LOADED = 64
"""How many samples of a batch are loaded, if few are enough."""
_LEAST_BATCHES = 8
"""How many full batches every data loader has then."""


@contextmanager
def few_samples() -> Iterator[None]:
    """Load the first samples of each batch and repeat them; no dataset is too small for a batch.

    So a script can be asked for a batch that its data or this machine's time would not allow.
    """
    fetch, draw, count = _MapDatasetFetcher.fetch, BatchSampler.__iter__, BatchSampler.__len__

    def fetched(self: Any, index: Any) -> Any:
        if not self.auto_collation or len(index) <= _LOADED:
            return fetch(self, index)
        first, many = index[:_LOADED], getattr(self.dataset, "__getitems__", None)
        samples = many(first) if many else [self.dataset[position] for position in first]
        return self.collate_fn(list(islice(cycle(samples), len(index))))

    def drawn(self: Any) -> Iterator[Any]:
        if count(self) > _LEAST_BATCHES:
            yield from draw(self)
            return
        whole = BatchSampler(self.sampler, self.batch_size, drop_last=False)
        indices = cycle(list(chain.from_iterable(draw(whole))))
        for _ in range(_LEAST_BATCHES):
            yield list(islice(indices, self.batch_size))

    def counted(self: Any) -> int:
        return max(int(count(self)), _LEAST_BATCHES)

    with replacing() as replace:
        replace(_MapDatasetFetcher, fetch=fetched)
        replace(BatchSampler, __iter__=drawn, __len__=counted)
        yield


# Changes of the optimizer: its form, and how it clears gradients.


_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


@contextmanager
def optimizers_with(**form: bool) -> Iterator[None]:
    """Build optimizers in another form: `fused=True` or `foreach=True`."""
    with replacing() as replace:
        for kind in _FUSED:
            if "__init__" in vars(kind):
                replace(kind, __init__=_built(kind.__init__, form))
        yield


def _built(original: Callable[..., None], form: dict[str, bool]) -> Callable[..., None]:
    def build(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        kept = {name: value for name, value in kwargs.items() if name not in ("fused", "foreach")}
        original(self, params, *args, **kept, **form)

    return build


@contextmanager
def zeroed_by_none() -> Iterator[None]:
    """Clear gradients by freeing them, not by writing zeros."""
    with replacing() as replace:
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            replace(kind, zero_grad=_freeing(kind.zero_grad))
        yield


def _freeing(original: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        original(self, set_to_none=True)

    return zero_grad


# Changes of precision: autocast around the forward pass, and TF32 for float32 matmuls.


class Autocasting:
    """Autocast around forward passes, in float16 with a scaler of gradients that steps share."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._scaler: Any = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run forward passes of the block under autocast.

        The backward pass and the optimizer run outside of it, as torch's recipe has them. Weights
        are cast once in each step.
        """
        if self._dtype is torch.float16 and self._scaler is None:
            self._scaler = torch.amp.GradScaler("cuda")
        hook = optimizer_hooks.register_optimizer_step_pre_hook(self._before_update)
        with hook, replacing() as replace, torch.autocast("cuda", self._dtype):
            replace(torch.autograd, backward=self._scaled(torch.autograd.backward))
            yield

    def _scaled(self, backward: Callable[..., None]) -> Callable[..., None]:
        def run(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with torch.autocast("cuda", enabled=False):
                if self._scaler is not None and isinstance(tensors, torch.Tensor):
                    tensors = self._scaler.scale(tensors)
                backward(tensors, *args, **kwargs)

        return run

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        torch.clear_autocast_cache()
        if self._scaler is not None:
            with torch.autocast("cuda", enabled=False):
                self._scaler.unscale_(optimizer)
                self._scaler.update()


@contextmanager
def rounding_to_tf32() -> Iterator[None]:
    """Round the operands of float32 matmuls and convolutions to TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


# Changes of how modules are called: in channels-last format, or with checkpointed blocks.


Call = Callable[..., Any]


@contextmanager
def channels_last() -> Iterator[None]:
    """Keep the weights and images of modules with convolutions in channels-last format."""
    converted: set[int] = set()

    def call(original: Call, module: Any, args: Any, kwargs: Any) -> Any:
        if not any(isinstance(part, nn.Conv2d) for part in module.modules()):
            return original(module, *args, **kwargs)
        if id(module) not in converted:
            converted.add(id(module))
            module.to(memory_format=torch.channels_last)
        args, kwargs = pytree.tree_map(_images_last, (args, kwargs))
        return original(module, *args, **kwargs)

    with _outermost_calls(call):
        yield


def _images_last(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value


@contextmanager
def compiled() -> Iterator[None]:
    """Compile the modules that are called with gradients, each at its first call."""

    def call(original: Call, module: Any, args: Any, kwargs: Any) -> Any:
        trains = torch.is_grad_enabled() and any(True for _ in module.parameters())
        if trains and not dynamo.is_compiled(module):
            dynamo.compile_module(module)
        return original(module, *args, **kwargs)

    with _outermost_calls(call):
        yield


@contextmanager
def checkpointed(every: int) -> Iterator[None]:
    """Checkpoint repeated blocks of the models that are called: each, or each second one."""
    blocks: dict[int, Any] = {}
    looked_at: set[int] = set()

    def look(original: Call, module: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in looked_at:
            looked_at.add(id(module))
            blocks.update({id(block): block for block in _repeated(module)[::every]})
        return original(module, *args, **kwargs)

    running: set[int] = set()
    original_call = nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in blocks or id(module) in running or not torch.is_grad_enabled():
            return original_call(module, *args, **kwargs)

        def run(*inner: Any, **named: Any) -> Any:
            running.add(id(module))
            try:
                return original_call(module, *inner, **named)
            finally:
                running.discard(id(module))

        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        replace(nn.Module, __call__=call)
        stack.enter_context(_outermost_calls(look))
        yield


def _repeated(root: Any) -> list[Any]:
    """The outermost blocks of one class that a list of a model has, at least two of them."""
    blocks: list[Any] = []
    waiting = [root]
    while waiting:
        module = waiting.pop(0)
        children = list(module.children())
        alike = {type(child) for child in children}
        inner = any(True for child in children for _ in child.children())
        is_list = isinstance(module, nn.ModuleList | nn.Sequential)
        if is_list and inner and len(children) > 1 and len(alike) == 1:
            blocks += children
            continue
        waiting += children
    return blocks


@contextmanager
def _outermost_calls(call: Callable[[Call, Any, Any, Any], Any]) -> Iterator[None]:
    """Let a function make the calls of modules that come from outside of all modules."""
    original = nn.Module.__call__
    depth = 0

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth:
            return original(module, *args, **kwargs)
        depth += 1
        try:
            return call(original, module, args, kwargs)
        finally:
            depth -= 1

    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        replace(nn.Module, __call__=called)
        yield


Active = Callable[[], AbstractContextManager[Any]]


def _new_changes() -> dict[str, Active]:
    """The changes by name, each with a memory of its own for one step."""
    attention, loss = FusedAttention(), ChunkedLoss()
    return {
        "bf16": Autocasting(torch.bfloat16).active,
        "fp16": Autocasting(torch.float16).active,
        "tf32": rounding_to_tf32,
        "channels_last": channels_last,
        "sdpa": attention.active,
        "chunked_loss": loss.active,
        "fused_optimizer": partial(optimizers_with, fused=True),
        "foreach_optimizer": partial(optimizers_with, foreach=True),
        "set_to_none": zeroed_by_none,
        "compile": compiled,
        "twice_the_batch": twice_the_batch,
        "few_samples": few_samples,
        "checkpointing": partial(checkpointed, every=1),
        "checkpointing_half": partial(checkpointed, every=2),
    }


CODE_CHANGES = frozenset(_new_changes())
"""The names of the changes."""


@contextmanager
def changing(names: Iterable[str]) -> Iterator[None]:
    """Run the block, which trains for several steps, with these changes."""
    known = _new_changes()
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(known[name]())
        yield


def changed(
    make_step: Callable[[], Callable[[], Any]], names: Iterable[str]
) -> Callable[[], Callable[[], Any]]:
    """The function that builds a step, with these changes in what it builds and runs."""
    chosen = tuple(names)
    if not chosen:
        return make_step

    def make() -> Callable[[], Any]:
        known = _new_changes()
        active = [known[name] for name in chosen]
        with _all(active):
            step = make_step()

        def run() -> Any:
            with _all(active):
                return step()

        return run

    return make


@contextmanager
def _all(active: Iterable[Active]) -> Iterator[None]:
    with ExitStack() as stack:
        for change in active:
            stack.enter_context(change())
        yield
