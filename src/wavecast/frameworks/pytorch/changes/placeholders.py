"""Functions of torch that are replaced once a first run has shown what their results are used for.

Where a result is not computed any more, a placeholder stands for it: one element, seen as many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

VIEWS = frozenset({"view", "reshape", "flatten", "unflatten", "__getitem__", "unsqueeze"}) | (
    frozenset({"squeeze", "transpose", "permute", "expand", "narrow", "view_as", "select"})
)
"""Functions whose result sees the same elements in another shape."""
CASTS = frozenset({"to", "float", "half", "bfloat16", "type", "type_as"})
"""Functions whose result has another type, or is elsewhere."""


def name_of(func: Any) -> str:
    """The name of a function of torch."""
    return str(getattr(func, "__name__", ""))


def tensors_in(values: Any) -> list[Any]:
    """The tensors among the arguments of a function."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def returns_tensors(out: Any) -> bool:
    """Whether a result has tensors; sizes and types have none."""
    return bool(tensors_in(out))


def placeholder(like: Any, shape: Any) -> Any:
    """A tensor of a shape with the memory of one element."""
    with torch.no_grad():
        return like.detach().new_empty(1).expand(tuple(shape))


class SeenUses(ABC):
    """What the runs of one step have shown: the shapes whose results are used in one way only."""

    def __init__(self) -> None:
        self.known: frozenset[Any] = frozenset()

    @abstractmethod
    def mode(self) -> LearningMode:
        """The mode that looks at the functions of one run."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the block with functions replaced, as far as earlier runs have shown what they do.

        What this run shows is learned at each update of weights and at its end.
        """
        mode = self.mode()

        def learn(*_: Any) -> None:
            self.known |= mode.found()

        hook = optimizer_hooks.register_optimizer_step_post_hook(learn)
        try:
            with mode:
                yield
        finally:
            hook.remove()
        learn()


class LearningMode(TorchFunctionMode, ABC):
    """Looks at each call of a function of torch, and counts what begins and ends as expected."""

    def __init__(self, learned: SeenUses) -> None:
        super().__init__()
        self._learned = learned
        self._begun: Counter[Any] = Counter()
        self._ended: Counter[Any] = Counter()
        self._spoiled: set[Any] = set()
        self.followed: Any = WeakTensorKeyDictionary()
        """The results whose use is looked at, and what is known of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of a function of torch, or what stands for it."""
        kwargs, name = kwargs or {}, name_of(func)
        given = tensors_in((args, kwargs))
        if self.may_begin(name, given):
            return self.begun(func, args, kwargs, given)
        for tensor in given:
            if tensor in self.followed:
                return self.use(func, name, tensor, args, kwargs)
        out = func(*args, **kwargs)
        self.see(name, given, out)
        return out

    @abstractmethod
    def may_begin(self, name: str, given: list[Any]) -> bool:
        """Whether the result of a function may be one whose use is to be looked at."""

    @abstractmethod
    def begun(self, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        """The result of a function that may begin something."""

    @abstractmethod
    def use(self, func: Any, name: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function that is given a tensor whose use is looked at."""

    def see(self, name: str, given: list[Any], out: Any) -> None:
        """Look at the result of any other function."""

    def found(self) -> frozenset[Any]:
        """The keys of which each that began has ended, and none was used otherwise."""
        whole = (key for key, times in self._ended.items() if self._begun[key] == times)
        return frozenset(whole) - self._spoiled

    def begin(self, key: Any) -> bool:
        """Note that something of a key begins, and return whether it is replaced."""
        self._begun[key] += 1
        return key in self._learned.known

    def end(self, key: Any) -> bool:
        """Note that something of a key ended as expected, and return whether it is replaced."""
        self._ended[key] += 1
        return key in self._learned.known

    def spoil(self, key: Any) -> None:
        """Note that something of a key was used otherwise."""
        self._spoiled.add(key)

    def is_replaced(self, key: Any) -> bool:
        """Whether what has this key is replaced."""
        return key in self._learned.known
