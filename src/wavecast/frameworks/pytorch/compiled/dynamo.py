"""Torch's graph capture, Dynamo, inside of a trace: every private interface of it that we use.

Dynamo compiles the frames of the step while it runs. It must not see the modes, hooks and replaced
functions of the trace.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._C._dynamo import guards
from torch._dynamo import convert_frame, external_utils, output_graph, symbolic_convert, trace_rules
from torch._dynamo import guards as dynamo_guards
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.types import ConvertFrameReturn
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from wavecast.frameworks.pytorch.capture.values.host_values import is_made_by_python
from wavecast.frameworks.pytorch.capture.values.places import (
    CPU,
    GPU,
    ON_GPU,
    ON_HOST,
    place_of,
    put,
    put_on_gpu,
    tensors_in,
)
from wavecast.frameworks.replacements import replacing

_HOOKS = (
    *((module_hooks, f"_global_{name}") for name in ("forward_pre_hooks", "forward_hooks")),
    *((optimizer_hooks, f"_global_optimizer_{name}_hooks") for name in ("pre", "post")),
)
"""Where torch keeps the global hooks by which a trace follows modules and optimizers."""

_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_INSTALLED = "-packages"
"""A part of the folders of packages, which may lie within that of Python's library."""
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_CALLS = ("_call_impl", "_wrapped_call_impl", "inner", "compile_wrapper")
"""The functions in which torch calls modules and compiled code of the user."""
_ROOMS = ("frameworks", "targets", "traces", "ops", "hardware")
_OWN = tuple(f"{Path(__file__).parents[3] / room}{os.sep}" for room in _ROOMS)
_OF_TORCH = re.compile(r"G\['(__import_)?torch")
_FILTER = "guard_filter_fn"
_CURRENT_STREAM = "get_current_stream"
_BREAK_IN_LOOP = "raise_loop_graph_break"
_SET_FLAG = "set_is_in_mode_without_ignore_compile_internals"
_LOGS = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._higher_order_ops",
    "torch.fx",
)

# Torch's own functions, taken when this module is imported, before a trace replaces some of them.
# The switches of autocast stay replaced: CUDA's must turn on what casts fake tensors.
_PLAIN = {
    name: value
    for name, value in vars(torch).items()
    if callable(value) and name not in ("set_autocast_enabled", "clear_autocast_cache")
}

_PLAIN_METHODS = tuple(
    (owner, name, getattr(owner, name))
    for owner, name in (
        (torch.nn.Module, "__call__"),
        (torch.nn.TransformerEncoder, "forward"),
        (torch.Tensor, "isfinite"),
    )
)
"""Methods that a trace replaces. Dynamo leaves code of the trace out of its graphs."""


@contextmanager
def frames_compiled(
    outside: Callable[[Any], Any],
    on_error: Callable[[BaseException], bool],
    on_left: Callable[[Any], None],
) -> Iterator[None]:
    """Let Dynamo compile frames inside of `outside(frame)`, though a trace is under way.

    Args:
        outside: makes the context in which a frame is compiled.
        on_error: called with an error; returns whether the frame is to run as it is instead.
        on_left: called with code that Dynamo leaves as it is, since a graph breaks in a loop of it.
    """
    wrapper = convert_frame.CatchErrorsWrapper
    compile_frame = wrapper.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_called_by_trace(args[0].f_code, sys._getframe(1)):
            return ConvertFrameReturn()
        with outside(args[0]):
            try:
                return compile_frame(self, *args, **kwargs)
            except Exception as error:
                if on_error(error):
                    return ConvertFrameReturn()
                raise

    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        replace(wrapper, __call__=call)
        replace(dynamo_utils, run_node=_making_on_cpu(dynamo_utils.run_node))
        for module in (dynamo_utils, dynamo_guards):
            if hasattr(module, _CURRENT_STREAM):  # newer releases ask CUDA in C++ code
                replace(module, **{_CURRENT_STREAM: lambda _device: torch.cuda.current_stream()})
        manager = dynamo_guards.CheckFunctionManager
        replace(manager, __init__=_without_torch(manager.__init__))
        # Guards would notice that a mode is active, since it is not while a frame is compiled.
        if hasattr(guards, _SET_FLAG):
            replace(_python_dispatch, **{_FLAGS[-1]: False})
            getattr(guards, _SET_FLAG)(False)
            stack.callback(getattr(guards, _SET_FLAG), True)
        translator = symbolic_convert.InstructionTranslatorBase
        optimized = torch._dynamo.eval_frame.OptimizedModule
        replace(optimized, _initialize=_of_plain_methods(optimized._initialize))
        graph = output_graph.OutputGraph
        replace(graph, call_user_compiler=_with_fake_inputs(graph.call_user_compiler))
        stack.enter_context(_own_code_skipped())
        # Starting a process group clears what Dynamo has looked up.
        replace(
            trace_rules, get_torch_obj_rule_map=_LastingResult(trace_rules.get_torch_obj_rule_map())
        )
        if hasattr(translator, _BREAK_IN_LOOP):
            noticing = _noticing_code(getattr(translator, _BREAK_IN_LOOP), on_left)
            replace(translator, **{_BREAK_IN_LOOP: staticmethod(noticing)})
        for name in _LOGS:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        torch._dynamo.reset()
        stack.callback(torch._dynamo.reset)
        yield


def _noticing_code(
    original: Callable[..., Any], notice: Callable[[Any], None]
) -> Callable[..., Any]:
    """A function that is called with code, after `notice`."""

    def call(code: Any, *args: Any) -> Any:
        notice(code)
        return original(code, *args)

    return call


def _is_called_by_trace(code: Any, caller: Any) -> bool:
    """Whether code of Python's library or torch runs for the trace itself, as in a module's hook.

    On a GPU it does not run, and where one graph was asked for, Dynamo refuses what it cannot
    compile or compiles too often.
    """
    while caller is not None and code.co_name not in _CALLS:
        file = code.co_filename
        is_library = file.startswith(_LIBRARY) and _INSTALLED not in file
        if not is_library and not file.startswith(_TORCH):
            break
        code, caller = caller.f_code, caller.f_back
    return bool(code.co_filename.startswith(_OWN))


def look_up_functions() -> None:
    """Let Dynamo look up torch's functions now, before a trace replaces some of them.

    It refuses to look them up while one function stands for several of torch's.
    """
    trace_rules.get_torch_obj_rule_map()


class _LastingResult:
    """A cached function of torch's, whose result stays although its cache is cleared."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __call__(self) -> Any:
        return self._result

    def cache_clear(self) -> None:
        """Clear nothing."""


@contextmanager
def without_traces() -> Iterator[None]:
    """Run the block without the modes and hooks of the trace, as the compiler must."""
    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        stack.enter_context(_disable_current_modes())
        flags = [name for name in _FLAGS if hasattr(_python_dispatch, name)]
        replace(_python_dispatch, **dict.fromkeys(flags, False))
        for owner, name in _HOOKS:
            replace(owner, **{name: type(getattr(owner, name))()})
        now = vars(torch)
        replace(torch, **{name: f for name, f in _PLAIN.items() if now.get(name) is not f})
        replace(torch._subclasses, FakeTensor=FakeTensor)
        _put_back_methods(replace)
        yield


def _put_back_methods(replace: Callable[..., None]) -> None:
    for owner, name, method in _PLAIN_METHODS:
        if getattr(owner, name) is not method:
            replace(owner, **{name: method})


def _of_plain_methods(initialize: Callable[[Any], None]) -> Callable[[Any], None]:
    """The start of a compiled module, which keeps the method of the module that it calls later."""

    def call(module: Any) -> None:
        with replacing() as replace:
            _put_back_methods(replace)
            initialize(module)

    return call


def _without_torch(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of guards, without guards on torch's own state.

    Torch's hooks and some of its functions differ while a frame is compiled.
    """
    signature = inspect.signature(init)
    if _FILTER not in signature.parameters:
        return init

    def make(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        chosen = bound.arguments.get(_FILTER)

        def keep(entries: Sequence[Any]) -> list[bool]:
            kept = chosen(entries) if chosen is not None else [True] * len(entries)
            pairs = zip(kept, entries, strict=True)
            return [bool(k) and not _OF_TORCH.search(entry.name) for k, entry in pairs]

        bound.arguments[_FILTER] = keep
        init(*bound.args, **bound.kwargs)

    return make


def is_restart(error: BaseException) -> bool:
    """Whether an error of a backend asks Dynamo to begin again, with other choices."""
    return isinstance(error, torch._dynamo.exc.RestartAnalysis)


def is_user_error(error: BaseException) -> bool:
    """Whether a GPU would raise this error, too: the step asked for one graph and breaks it.

    The trace's own code, such as that of flex_attention, breaks graphs only here.
    """
    is_meant = isinstance(error, torch._dynamo.exc.Unsupported | torch._dynamo.exc.UserError)
    return is_meant and not any(room in str(error) for room in _OWN)


def graph_count() -> int:
    """How many graphs Dynamo has made in this process."""
    return int(dynamo_utils.counters["stats"]["unique_graphs"])


def graph_breaks() -> list[tuple[str, list[Any]]]:
    """The reasons for graph breaks and the stacks of the user's lines, since the trace began."""
    return [(r.reason, list(r.user_stack)) for r in output_graph.graph_break_reasons]


def compile_module(module: Any, mode: str | None = None) -> None:
    """Compile a module as `torch.compile(module, mode=mode)` does, but in its place.

    Torch would not capture the frames of its own modules, such as `nn.Sequential`, so the call is
    wrapped in a function that it captures.
    """
    module._compiled_call_impl = torch.compile(
        external_utils.wrap_inline(module._call_impl), mode=mode
    )


def is_compiled(module: Any) -> bool:
    """Whether the user's code has compiled this module."""
    is_wrapped = isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
    return is_wrapped or module._compiled_call_impl is not None


def modules_of(gm: Any, frame: Any) -> dict[str, Any]:
    """The modules whose code is in a graph and that the frame has in variables, by their names."""
    modules: dict[str, Any] = {}
    for node in gm.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        match = _VARIABLE.match(str(next(iter(stack.values()))[0])) if stack else None
        if match is None or match[0] in modules:
            continue
        value = frame.f_locals.get(match[1])
        for name in filter(None, match[2].split(".")):
            value = getattr(value, name, None)
        if isinstance(value, torch.nn.Module):
            modules[match[0]] = value
    return modules


_VARIABLE = re.compile(r"L\['(\w+)'\]((?:\.(?:__self__|_orig_mod))*)")
"""A local variable that is a module, or a bound method of one."""


@contextmanager
def _own_code_skipped() -> Iterator[None]:
    """Let Dynamo leave the code of the trace itself as it is."""
    before = list(trace_rules.SKIP_DIRS)
    for name in _ROOMS:
        trace_rules.add(f"wavecast.{name}")
    try:
        yield
    finally:
        trace_rules.SKIP_DIRS[:] = before
        trace_rules._recompile_re()


def _making_on_cpu(run_node: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo's trial run of one node, without making or moving a tensor to the GPU."""

    def run(tracer: Any, node: Any, args: Any, kwargs: Any, module: Any) -> Any:
        moved = tried(node, args, kwargs)
        if moved is not None:
            return moved
        if node.target not in MAKERS or "device" not in kwargs:
            return run_node(tracer, node, args, kwargs, module)
        options = {name: value for name, value in kwargs.items() if name != "device"}
        result = run_node(tracer, node, args, options, module)
        if isinstance(result, FakeTensor):
            put(result, ON_GPU if torch.device(kwargs["device"]).type == "cuda" else ON_HOST)
        return result

    return run


def _with_fake_inputs(call: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo's call of the backend, with inputs that are fake tensors of the compiler's own."""

    def call_user_compiler(graph: Any, gm: Any, inputs: Sequence[Any]) -> Any:
        mode = TracingContext.get().fake_mode
        fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]
        stay_on_device(gm)
        with in_backend():
            return call(graph, gm, fakes)

    return call_user_compiler


# Moves between devices in a graph of Dynamo's, which C++ code would take for real copies.
#
# C++ code sees all fake tensors on the CPU. There, `x.to("cuda")` of a tensor that is on the GPU
# already would copy it.


MAKERS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)
"""Functions that make a tensor from data. They cannot make one on a GPU that is not there."""

_MOVES = ("to", "cuda")


def tried(node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a move to the GPU that Dynamo tries; None if the node is no such move."""
    if node.op != "call_method" or node.target not in _MOVES:
        return None
    source, *rest = args
    if not isinstance(source, torch.Tensor) or not _goes_to_gpu(node.target, rest, kwargs):
        return None
    others, options = _without_gpu(rest), _without_gpu_by_name(kwargs)
    moved = source.to(*others, **options) if node.target == "to" and (others or options) else source
    if place_of(source) == ON_HOST:
        moved = moved.clone() if moved is source else moved
        put_on_gpu(moved)
    return moved


def stay_on_device(gm: Any) -> None:
    """Take out of a graph the moves to the device on which a tensor is already.

    A move from the host becomes an op that names the GPU, since C++ code would not move anything.
    """
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in MAKERS:
            node.kwargs = {name: v for name, v in node.kwargs.items() if name != "device"}
        elif node.op == "call_method" and node.target in _MOVES:
            values = [_value(argument) for argument in node.args]
            if isinstance(values[0], torch.Tensor) and place_of(values[0]) != ON_HOST:
                _stay(gm, node)
            elif _goes_to_gpu(node.target, values[1:], node.kwargs):
                _move(gm, node)
    gm.recompile()


def _value(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, torch.fx.Node) else argument


def _goes_to_gpu(method: str, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if method == "cuda":
        return True
    likes = [value for value in rest[:1] if isinstance(value, torch.Tensor)]
    if likes:
        return place_of(likes[0]) != ON_HOST
    return any(_is_gpu(value) for value in (*rest, *kwargs.values()))


def _without_gpu(rest: Sequence[Any]) -> list[Any]:
    return [value for value in rest if not _is_gpu(value)]


def _without_gpu_by_name(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if not _is_gpu(value)}


def _stay(gm: Any, node: Any) -> None:
    source, *rest = node.args
    rest, kwargs = _without_gpu(rest), _without_gpu_by_name(node.kwargs)
    is_cast = any(isinstance(value, torch.dtype) for value in (*rest, *kwargs.values()))
    # Another tensor as first argument gives its type.
    is_like = bool(rest) and isinstance(rest[0], torch.fx.Node)
    if node.target == "to" and (is_cast or "memory_format" in kwargs or is_like):
        node.args, node.kwargs = (source, *rest), kwargs
        return
    node.replace_all_uses_with(source)
    gm.graph.erase_node(node)


def _move(gm: Any, node: Any) -> None:
    dtype = node.meta["example_value"].dtype
    with gm.graph.inserting_before(node):
        options = {"dtype": dtype, "device": GPU}
        moved = gm.graph.call_function(_COPY, (node.args[0],), options)
    moved.meta = node.meta
    node.replace_all_uses_with(moved)
    gm.graph.erase_node(node)


_COPY = torch.ops.aten._to_copy.default


def _is_gpu(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith("cuda")
    return isinstance(value, torch.device) and value.type == "cuda"


# Fake tensors as the compiler sees them: on the GPU, although torch's C++ code sees the CPU.
#
# Dynamo and AOTAutograd run the model on fake tensors of their own. Torch's CPU build has no
# autograd for fake tensors of a GPU, so they are fake tensors of the CPU. Python code, such as
# decompositions and the user's `x.device`, must see the GPU. Torch's own fake-tensor code must see
# the CPU.


REAL_DEVICES = "_wavecast_real_devices"
"""The mark of a fake-tensor mode whose tensors have their true devices, as Inductor needs them."""

# Torch's own, taken when this module is imported: nothing is replaced yet.
_plain_device = FakeTensor.device.fget
_plain_new = FakeTensor.__new__
_METHODS = ("to", "cuda", "cpu", "numpy", "__array__", "tolist")
_plain_methods = {
    kind: {method: getattr(kind, method) for method in _METHODS}
    for kind in (FakeTensor, torch.Tensor)
}
_MOVE = torch.ops.prims.device_put.default
_plain_dispatch = FakeTensorMode.dispatch
_plain_from_tensor = FakeTensorMode.from_tensor


class CompilerDevices:
    """What the compiler's code sees of the devices of fake tensors."""

    def __init__(self) -> None:
        self._depth = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let Python code see the GPU, inside the block."""
        with replacing() as replace:
            replace(FakeTensorMode, dispatch=self._dispatching(), from_tensor=self._converting())
            # The methods that a trace replaces are no code for the compiler.
            for owner, methods in _plain_methods.items():
                own = {name: m for name, m in methods.items() if getattr(owner, name) is not m}
                replace(owner, **own)
            replace(
                FakeTensor,
                __new__=staticmethod(self._making()),
                device=property(self._device),
                is_cuda=property(lambda tensor: self._device(tensor).type == "cuda"),
                is_cpu=property(lambda tensor: self._device(tensor).type == "cpu"),
            )
            yield

    def _device(self, tensor: Any) -> Any:
        if self._depth or hasattr(tensor.fake_mode, REAL_DEVICES):
            return _plain_device(tensor)
        return CPU if place_of(tensor) == ON_HOST else GPU

    def _dispatching(self) -> Callable[..., Any]:
        def dispatch(
            mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if hasattr(mode, REAL_DEVICES):
                return _plain_dispatch(mode, func, types, args, kwargs)
            place = None if self._depth else _place_of_result(args, kwargs)
            if func is _MOVE:
                place = ON_GPU if torch.device(args[1]).type == "cuda" else ON_HOST
                args = (args[0], CPU, *args[2:])
            if isinstance(kwargs.get("device"), torch.device) and kwargs["device"].type == "cuda":
                kwargs = {**kwargs, "device": CPU}
            self._depth += 1
            try:
                out = _plain_dispatch(mode, func, types, args, kwargs)
            finally:
                self._depth -= 1
            if place is not None:
                for tensor in tensors_in(out):
                    if isinstance(tensor, FakeTensor):
                        put(tensor, place)
            return out

        return dispatch

    def _making(self) -> Callable[..., Any]:
        def new(cls: Any, mode: Any, elements: Any, device: Any, *args: Any, **options: Any) -> Any:
            if hasattr(mode, REAL_DEVICES) or self._depth:
                return _plain_new(cls, mode, elements, device, *args, **options)
            # Python code copies a tensor, and gives it the device that it sees.
            tensor = _plain_new(cls, mode, elements, CPU, *args, **options)
            put(tensor, ON_GPU if torch.device(device).type == "cuda" else ON_HOST)
            return tensor

        return new

    def _converting(self) -> Callable[..., Any]:
        def from_tensor(mode: Any, tensor: Any, **options: Any) -> Any:
            if hasattr(mode, REAL_DEVICES):
                return _plain_from_tensor(mode, tensor, **options)
            self._depth += 1
            try:
                fake = _plain_from_tensor(mode, tensor, **options)
            finally:
                self._depth -= 1
            if isinstance(fake, FakeTensor):
                put(fake, place_of(tensor))
            return fake

        return from_tensor


def share_memory(elements: Any, value: Any) -> None:
    """Let a tensor have the memory of another one, whose views are then views of it. Passes that
    renew the values of views would otherwise renew all that follows."""
    storage, offset = value.untyped_storage(), value.storage_offset()
    if value._has_symbolic_sizes_strides or type(storage.nbytes()) is not int:
        return
    needed = elements.untyped_storage().nbytes() + offset * elements.element_size()
    if storage.nbytes() >= needed:  # what is gathered from shards may have none yet
        elements.set_(storage, offset, elements.shape, elements.stride())


_in_backend = False
"""Whether the compiler works on a graph, and not on the user's code."""


@contextmanager
def in_backend() -> Iterator[None]:
    """Run the block as work on a graph. C++ code makes tensors there, on the CPU that it sees."""
    global _in_backend
    before, _in_backend = _in_backend, True
    try:
        yield
    finally:
        _in_backend = before


def _place_of_result(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    device = kwargs.get("device")
    if isinstance(device, torch.device) and device.type == "cuda":
        return ON_GPU
    places = {
        place_of(tensor)
        for tensor in (*tensors_in(args), *tensors_in(tuple(kwargs.values())))
        if isinstance(tensor, FakeTensor)
    }
    if not places:
        return ON_HOST if is_made_by_python(kwargs) and not _in_backend else None
    return ON_HOST if places == {ON_HOST} else ON_GPU
