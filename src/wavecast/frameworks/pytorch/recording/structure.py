"""The present phase and module in a running training step, and the roles of its tensors."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from wavecast.frameworks.replacements import replacing
from wavecast.traces.step import Phase, Role


class HeldTensor(NamedTuple):
    """A tensor that a module or optimizer holds."""

    role: Role
    tensor: Any
    module: str
    """The module that owns it or its parameter."""
    parameter: str = ""
    """The parameter that it is, or to which it belongs."""


class _RunningModules(threading.local):
    """What runs in the present thread: the paths of the modules, and calls of optimizers."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.optimizer_depth = 0
        self.has_closure = False
        self.zeroing = False
        self.in_backward = False


class Structure:
    """Follows modules and optimizers by global hooks, without changes to the user's code."""

    def __init__(self) -> None:
        self._here = _RunningModules()
        self._roots: dict[str, Any] = {}
        self._paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._parameter_names: dict[int, str] = {}
        self._node_modules: dict[int, dict[int, str]] = {}
        """The modules of autograd's nodes, by thread and by sequence number in the thread."""
        self._optimizers: dict[int, Any] = {}
        self.follows: Callable[[], bool] = lambda: True
        """Whether the present thread is followed. Hooks see all threads of the process."""
        self.claim: Callable[[HeldTensor], None] = lambda held: None
        """Called with each gradient before an optimizer uses it."""
        self.adopt: Callable[[Any], None] = lambda optimizer: None
        """Called with each optimizer before it is used."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Follow the modules and optimizers that run inside the block."""
        self._here.stack.clear()
        self._here.optimizer_depth = 0  # a compiled step of an optimizer does not say that it ends
        self._node_modules.clear()
        zero_grad = torch.optim.Optimizer.zero_grad

        def counted_zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if not self.follows():
                zero_grad(optimizer, *args, **kwargs)
                return
            self.adopt(optimizer)
            # A compiled step of an optimizer calls no hook, so this may be where it is first seen.
            self._optimizers[id(optimizer)] = optimizer
            self._claim_gradients(optimizer)
            self._here.zeroing = True
            try:
                zero_grad(optimizer, *args, **kwargs)
            finally:
                self._here.zeroing = False

        with (
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
            optimizer_hooks.register_optimizer_step_pre_hook(self._enter_optimizer),
            optimizer_hooks.register_optimizer_step_post_hook(self._leave_optimizer),
            replacing() as replace,
        ):
            replace(torch.optim.Optimizer, zero_grad=counted_zero_grad)
            yield

    def forget(self) -> None:
        """Drop the references to the user's modules and optimizers."""
        self._roots.clear()
        self._optimizers.clear()
        self.adopt = lambda optimizer: None
        self.follows = lambda: True

    def place(self) -> tuple[Phase, str]:
        """The phase and the module path of the op that is being dispatched now."""
        node = torch._C._current_autograd_node()
        stack = self._here.stack
        if node is not None:
            if stack:  # activation checkpointing runs the forward pass again
                return Phase.BACKWARD, stack[-1]
            return Phase.BACKWARD, self._module_of(node)
        module = stack[-1] if stack else ""
        if self._here.in_backward:
            return Phase.BACKWARD, module
        # The autograd node of this op exists already and has the last sequence number given out.
        modules = self._node_modules.setdefault(threading.get_ident(), {})
        modules.setdefault(torch.autograd._get_sequence_nr() - 1, module)
        if stack:
            return Phase.FORWARD, module
        # A closure, which an optimizer calls, runs the forward pass inside of its step.
        in_closure = self._here.has_closure and torch.is_grad_enabled()
        if self._here.zeroing or (self._here.optimizer_depth and not in_closure):
            return Phase.OPTIMIZER, module
        return (Phase.FORWARD if torch.is_grad_enabled() else Phase.OTHER), module

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Count the ops inside the block to the backward pass, though no node of it runs."""
        with replacing() as replace:
            replace(self._here, in_backward=True)
            yield

    def held(self) -> Iterator[HeldTensor]:
        """The tensors of the modules and optimizers seen so far."""
        for optimizer in self._optimizers.values():
            for parameter, state in list(optimizer.state.items()):
                values = state.values() if isinstance(state, dict) else ()
                for value in values:
                    if isinstance(value, torch.Tensor):
                        yield self._of(Role.OPTIMIZER_STATE, value, parameter)
        for root, module in self._roots.items():
            for name, buffer in module.named_buffers():
                owner = _join(root, name.rpartition(".")[0])
                yield HeldTensor(Role.BUFFER, local_part(buffer), owner)
            for name, scale in quantization_tensors(module):
                yield HeldTensor(Role.BUFFER, scale, _join(root, name))
        for parameter in self._parameters():
            yield self._of(Role.PARAMETER, parameter, parameter)
            for gradient in _gradients_of(parameter):
                yield self._of(Role.GRADIENT, gradient, parameter)

    def path_of(self, module: Any) -> str:
        """The path of a module. One that is not known yet is called from outside of any module."""
        return self._paths.get(module) or self._name(module)

    def roots(self) -> list[Any]:
        """The modules that were called from outside of any module."""
        return list(self._roots.values())

    def _owner(self, parameter: Any) -> str:
        return self._parameter_names.get(id(parameter), "").rpartition(".")[0]

    def _of(self, role: Role, tensor: Any, parameter: Any) -> HeldTensor:
        name = self._parameter_names.get(id(parameter), "")
        return HeldTensor(role, local_part(tensor), self._owner(parameter), name)

    def _parameters(self) -> Iterator[Any]:
        for root in self._roots.values():
            yield from root.parameters()
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                yield from group["params"]

    def _module_of(self, node: Any) -> str:
        variable = getattr(node, "variable", None)  # AccumulateGrad
        if variable is not None:
            return self._owner(variable)
        number = node._sequence_nr()
        own = self._node_modules.get(threading.get_ident(), {})
        if number in own:
            return own[number]
        # The backward pass may run in another thread than the forward pass.
        others = (modules[number] for modules in self._node_modules.values() if number in modules)
        return next(others, "")

    def _enter_module(self, module: Any, _args: Any) -> None:
        if not self.follows():
            return
        self._here.stack.append(self.path_of(module))

    def _leave_module(self, _module: Any, _args: Any, _output: Any) -> None:
        if self._here.stack:
            self._here.stack.pop()

    def _name(self, module: Any) -> str:
        if self._here.stack:  # a module that no parent has registered
            path = f"{self._here.stack[-1]}.{type(module).__name__}"
            self._paths[module] = path
            return path
        root = type(getattr(module, "_orig_mod", module)).__name__  # the name without torch.compile
        count = sum(name.split("#")[0] == root for name in self._roots)
        root = f"{root}#{count + 1}" if count else root
        self._roots[root] = module
        for name, child in module.named_modules():
            self._paths.setdefault(child, _join(root, name))
        for name, parameter in module.named_parameters():
            self._parameter_names[id(parameter)] = _join(root, name)
        return self._paths[module]

    def _enter_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.follows():
            return
        self._here.has_closure = any(map(callable, (*args[1:], *kwargs.values())))
        self.adopt(optimizer)
        self._optimizers[id(optimizer)] = optimizer
        self._here.optimizer_depth += 1
        self._claim_gradients(optimizer)

    def _leave_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.follows():
            self._here.optimizer_depth -= 1
            self._claim_gradients(optimizer)  # those that a closure made

    def _claim_gradients(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.claim(self._of(Role.GRADIENT, parameter.grad, parameter))


def _gradients_of(parameter: Any) -> Iterator[Any]:
    """Its gradient, and the float32 one of a 16-bit weight, which Megatron calls `main_grad`."""
    if parameter.grad is not None:
        yield parameter.grad
    wide = getattr(parameter, "main_grad", None)
    if isinstance(wide, torch.Tensor):
        yield wide


def _join(root: str, name: str) -> str:
    return ".".join(part for part in (root, *name.split(".")) if part not in ("", "_orig_mod"))


def quantization_tensors(root: Any) -> Iterator[tuple[str, Any]]:
    """The scales and tables of quantized weights, with the path of their module.

    They are no buffers. bitsandbytes keeps them as attributes: `QuantState` of 4-bit weights,
    possibly with another one for the scales, and `MatmulLtState` of 8-bit weights.
    """
    for path, module in root.named_modules():
        weights = (p for p in module._parameters.values() if p is not None)
        holders = [getattr(weight, "quant_state", None) for weight in weights]
        holders.append(getattr(module, "state", None))
        while holders:
            holder = holders.pop()
            if type(holder).__module__.partition(".")[0] == "bitsandbytes":
                holders.append(getattr(holder, "state2", None))
                yield from ((path, v) for v in vars(holder).values() if isinstance(v, torch.Tensor))


def local_part(tensor: Any) -> Any:
    """The tensor whose memory this rank has: a part of a DTensor, or the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def key_of(tensor: Any) -> int:
    """A number that is equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)
