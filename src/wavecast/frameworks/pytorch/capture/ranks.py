"""A step that runs on one rank of many, traced without the other ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.capture.object_collectives import object_collectives
from wavecast.frameworks.pytorch.capture.pipelines import pipeline_replacements
from wavecast.frameworks.pytorch.capture.placement import Placement
from wavecast.frameworks.pytorch.capture.places import gpu_numbers
from wavecast.frameworks.pytorch.capture.process_groups import RankPlace, fake_process_groups
from wavecast.frameworks.pytorch.capture.replacements import replacing
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder


def forget_shardings() -> None:
    """Clear DTensor's cache of shardings, which refers to process groups that may be gone.

    Its keys are shapes of meshes. A later mesh of the same shape would get the groups of this one.
    """
    from torch.distributed.tensor import debug

    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()


@contextmanager
def one_rank(place: RankPlace, placement: Placement) -> Iterator[None]:
    """Let the step run as one rank of many: its collectives are recorded and change nothing."""
    if not hasattr(getattr(torch._C, "_distributed_c10d", None), "FakeWork"):
        raise InvalidInput(
            f"ranks={place.ranks}: torch {torch.__version__} lacks what tracing one of several "
            "ranks needs; use torch 2.9 or later, built with torch.distributed"
        )
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor, _sharding_prop
    from torch.distributed.tensor import _random as tensor_random

    from wavecast.frameworks.pytorch.capture.collectives import TracedCollectives

    recorder = placement.recorder
    with ExitStack() as stack:
        forget_shardings()
        stack.callback(forget_shardings)
        stack.enter_context(fake_process_groups(place))
        stack.enter_context(gpu_numbers({0, place.gpu}))

        replace = replacing(stack)
        replace(torch.cuda, device_count=lambda: place.machine)
        replace(torch.accelerator, device_count=lambda: place.machine)
        replace(torch.distributed, is_nccl_available=lambda: True)
        collectives = TracedCollectives(placement, recorder)
        replace(placement, collectives=collectives.handlers() | _copies_of_fsdp(placement))
        stack.enter_context(collectives.works.answering())
        replace(placement, wrappers=(DTensor, AsyncCollectiveTensor))
        for wrapper, inner in ((DTensor, "_local_tensor"), (AsyncCollectiveTensor, "elem")):
            replace(wrapper, **_places_of_inner(inner))
        make = AsyncCollectiveTensor.__new__
        replace(AsyncCollectiveTensor, __new__=staticmethod(_made_on_cpu(make, placement)))
        _replace_data_parallel(replace, recorder)
        # The device of a mesh that the code does not name.
        replace(torch._C, _get_accelerator=lambda *_: torch.device("cuda"))
        for module in _modules_with("_are_we_tracing"):
            # Torch would wait at once for what it takes for a part of a compiled program.
            replace(module, _are_we_tracing=lambda: False)
        for module in _modules_with("is_rng_supported_mesh"):
            # DTensor would read the state of the GPU's random generator.
            replace(module, is_rng_supported_mesh=lambda _: False)
        replace(tensor_random, _rng_tracker=None)
        # DTensor of torch 2.9 would try ops in a mode of its own, which our tensors do not fit.
        replace(_sharding_prop, FakeTensorMode=lambda: detect_fake_mode() or FakeTensorMode())
        for module in (torch.distributed, torch.distributed.distributed_c10d):
            replace(module, **object_collectives(placement.assumptions))
        for owner, functions in pipeline_replacements(placement.assumptions):
            replace(owner, **functions)
        replace(torch.UntypedStorage, resize_=_resizing(recorder, torch.UntypedStorage.resize_))
        engine = _Engine(torch.autograd.Variable._execution_engine, recorder)
        replace(torch.autograd.Variable, _execution_engine=engine)
        yield


def _places_of_inner(inner: str) -> dict[str, Any]:
    """Properties of a tensor that wraps another one: it is where that is."""

    def shown(name: str) -> Any:
        return property(lambda tensor: getattr(getattr(tensor, inner), name))

    return {name: shown(name) for name in ("device", "is_cuda", "is_cpu")}


def _made_on_cpu(make: Callable[..., Any], placement: Placement) -> Callable[..., Any]:
    """A constructor that sees the CPU: torch's CPU build aborts for wrappers on a GPU."""

    def new(*args: Any, **kwargs: Any) -> Any:
        with placement.torchs_own():
            return make(*args, **kwargs)

    return new


def _modules_with(name: str) -> list[Any]:
    """The modules of torch.distributed that have a function of this name."""
    prefix = "torch.distributed."
    known = [module for path, module in list(sys.modules.items()) if path.startswith(prefix)]
    return [module for module in known if name in vars(module)]


def _copies_of_fsdp(placement: Placement) -> dict[Any, Callable[..., Any]]:
    """FSDP's ops that copy weights and gradients, recorded as the aten ops that they run on a GPU.

    They are written in Python.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as own

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with placement:
                return function(*args, **kwargs)

        return run

    functions = {
        "all_gather_copy_in": own.all_gather_copy_in_cuda,
        "split_with_sizes_copy": own.split_with_sizes_copy,
        "chunk_cat": own.chunk_cat,
    }
    ops = torch.ops.fsdp
    return {getattr(ops, name).default: inside(code) for name, code in functions.items()}


def _replace_data_parallel(replace: Callable[..., None], recorder: OpRecorder) -> None:
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from wavecast.frameworks.pytorch.capture.reducer import (
        TracedLogger,
        TracedReducer,
        broadcast_coalesced,
    )

    replace(
        dist,
        Reducer=partial(TracedReducer, recorder),
        Logger=TracedLogger,
        _broadcast_coalesced=broadcast_coalesced,
        _verify_params_across_processes=lambda *_, **__: None,
        _register_comm_hook=lambda reducer, state, hook: reducer.register_hook(state, hook),
    )
    # It asks for the version of CUDA that torch was built for.
    replace(DistributedDataParallel, _check_comm_hook=lambda *_: None)


class _Engine:
    """Autograd's engine, whose callbacks at the end of a backward pass belong to that pass."""

    def __init__(self, engine: Any, recorder: OpRecorder) -> None:
        self._engine = engine
        self._structure = recorder.structure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        def call() -> None:
            with self._structure.in_backward():
                callback()

        self._engine.queue_callback(call)


def _resizing(recorder: OpRecorder, resize: Any) -> Any:
    """`UntypedStorage.resize_`, with which FSDP frees gathered weights and makes room for them."""

    def resize_(storage: Any, size: int) -> Any:
        resized = resize(storage, size)
        recorder.resize(storage, int(size))
        return resized

    return resize_
