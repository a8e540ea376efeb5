"""A step that runs on one rank of many, traced without the other ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.capture.placement import Placement
from wavecast.frameworks.pytorch.capture.values.assumptions import Assumptions
from wavecast.frameworks.pytorch.capture.values.places import gpu_numbers
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line
from wavecast.frameworks.replacements import environment_kept, replacing


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

    from wavecast.frameworks.pytorch.capture.collectives import (
        TracedCollectives,
        object_collectives,
    )

    recorder = placement.recorder
    with ExitStack() as stack:
        forget_shardings()
        stack.callback(forget_shardings)
        stack.enter_context(fake_process_groups(place))
        stack.enter_context(gpu_numbers({0, place.gpu}))

        replace = stack.enter_context(replacing())
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

    from wavecast.frameworks.pytorch.capture.collectives import (
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


# Process groups of one process that stands for a rank of many, while a step is traced.
#
# Torch's own `fake` backend answers every collective at once. While tracing, a group of any
# backend gets that backend, and the environment has the variables that `torchrun` would set for
# the rank.


_LARGEST_MACHINE = 8
"""How many GPUs a machine is assumed to have at most."""


_OWN = "_wavecast_own"
"""The attribute of a replaced function that has torch's own."""


@dataclass(frozen=True)
class RankPlace:
    """The rank that a traced step runs on."""

    ranks: int
    """How many ranks there are."""
    rank: int = 0

    def __post_init__(self) -> None:
        for name, least in (("ranks", 1), ("rank", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(
                    f"{name} is {value!r}; it must be a whole number of at least {least}"
                )
        if self.rank >= self.ranks:
            raise InvalidInput(
                f"rank is {self.rank}, but ranks={self.ranks} are numbered from 0 to "
                f"{self.ranks - 1}"
            )

    @property
    def machine(self) -> int:
        """How many ranks share a machine: at most eight, and as many on each machine."""
        return max(n for n in range(1, _LARGEST_MACHINE + 1) if self.ranks % n == 0)

    @property
    def gpu(self) -> int:
        """The number of the rank's GPU in its machine."""
        return self.rank % self.machine

    def environment(self) -> dict[str, str]:
        """The variables that `torchrun` sets for the rank."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(self.gpu),
            "LOCAL_WORLD_SIZE": str(self.machine),
            "GROUP_RANK": str(self.rank // self.machine),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }


@contextmanager
def fake_process_groups(place: RankPlace) -> Iterator[None]:
    """Let the process groups made inside the block be those of a rank of many.

    Groups from before the block are set aside, and come back after it.
    """
    from torch.distributed import distributed_c10d as c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # Inside of another trace, it is replaced already.
    make = getattr(c10d._new_process_group_helper, _OWN, c10d._new_process_group_helper)

    def rendezvous(*_: Any, **__: Any) -> Iterator[tuple[Any, int, int]]:
        yield FakeStore(), place.rank, place.ranks

    def new_group(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        """Torch's own function, with the fake backend in place of any other."""
        kwargs.pop("device_id", None)
        kwargs.pop("backend_options", None)
        kwargs.pop("pg_options", None)
        if not ranks:  # the group of all
            size, rank = place.ranks, place.rank
        with _disable_current_modes():
            group, store = make(size, rank, ranks, c10d.Backend("fake"), *args[:2], **kwargs)
        if group in c10d._world.pg_map:
            c10d._world.pg_map[group] = (_shown(backend), store)
        return group, store

    setattr(new_group, _OWN, make)
    with ExitStack() as stack:
        stack.enter_context(environment_kept())
        os.environ |= place.environment()
        # Torch adds the rank to errors.
        stack.enter_context(replacing())(sys, excepthook=sys.excepthook)
        stack.enter_context(_groups_set_aside())
        replace = stack.enter_context(replacing())
        replace(c10d, rendezvous=rendezvous, _new_process_group_helper=new_group)
        # Without NCCL torch has no such number, and warns.
        replace(c10d, default_pg_nccl_timeout=c10d.default_pg_timeout)
        yield


def _shown(backend: Any) -> str:
    """The name of the backend that code sees: NCCL's wherever it serves GPUs."""
    name = str(backend)
    return "nccl" if name in ("undefined", "fake") or "nccl" in name else name


_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag")


@contextmanager
def _groups_set_aside() -> Iterator[None]:
    """Run the block without process groups. Those that it makes end with it."""
    from torch.distributed import distributed_c10d as c10d

    world = c10d._world
    tables = {name: dict(getattr(world, name)) for name in _TABLES}
    default, count = world.default_pg, world.group_count
    _clear(c10d)
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            with _disable_current_modes():
                torch.distributed.destroy_process_group()
        _clear(c10d)
        for name, content in tables.items():
            getattr(world, name).update(content)
        for group, name in tables["pg_names"].items():
            c10d._register_process_group(name, group)
        c10d._update_default_pg(default)
        world.group_count = count


def _clear(c10d: Any) -> None:
    c10d._update_default_pg(None)
    for name in _TABLES:
        getattr(c10d._world, name).clear()
    c10d._unregister_all_process_groups()
    c10d._world.group_count = 0


# Stages of `torch.distributed.pipelining`, traced on one rank of many.
#
# Before its first step, a stage asks its neighbours for the shapes of what they will send. No
# other rank runs here, so the answers come from the stage's own arguments, from what other stages
# of this rank send, or from its outputs, whose gradients have the same shapes. All else is torch's
# own code.


def pipeline_replacements(assumptions: Assumptions) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each class of torch's pipelines that asks other ranks, with replacements of its functions."""
    from torch.distributed.pipelining.schedules import _PipelineSchedule
    from torch.distributed.pipelining.stage import PipelineStage

    exchange = _Shapes(assumptions)
    if hasattr(PipelineStage, "_recv_meta") and hasattr(_PipelineSchedule, "_warmup_p2p"):
        yield _PipelineSchedule, {"_warmup_p2p": _warmup}
        yield (
            PipelineStage,
            {
                "_recv_meta": lambda stage, source: exchange.received(stage, source),
                "_send_meta": lambda stage, meta, target: exchange.send(meta),
            },
        )


def _warmup(schedule: Any, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
    """Decide, without the votes of other ranks, whether shapes are given or found by a first run.

    The ranks would also open their connections here, which happens once, before the steps.
    """
    from torch.distributed.pipelining._utils import InferenceMode
    from torch.distributed.pipelining.stage import PipelineStage

    own = [stage for stage in stages if isinstance(stage, PipelineStage)]
    missing = any(InferenceMode.needs_dynamic(stage._user_meta, has_backward) for stage in own)
    for stage in own:
        stage._inference_mode = InferenceMode.DYNAMIC if missing else InferenceMode.STATIC


class _Shapes:
    """The shapes that stages of this rank send to their neighbours and receive from them."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._sent: Any = None
        """The shapes of what the last stage sends to another rank."""

    def send(self, meta: Any) -> None:
        from torch.distributed.pipelining._utils import _StageForwardMeta

        if isinstance(meta, _StageForwardMeta):
            self._sent = meta

    def received(self, stage: Any, source: int) -> Any:
        from torch.distributed.pipelining._utils import (
            _derive_grad_metas,
            _StageBackwardMeta,
            _StageForwardMeta,
        )

        if source > stage.stage_index:
            return _StageBackwardMeta(_derive_grad_metas(stage._stage_meta.outputs))
        if stage._user_meta.inputs is not None:
            return _StageForwardMeta(stage._user_meta.inputs)
        if self._sent is None:
            raise CaptureError(
                f"stage {stage.stage_index} of the pipeline, which runs at {user_line()}, does not "
                "know what it receives, because no other rank runs; give PipelineStage(...) its "
                "input_args and output_args, or trace rank 0"
            )
        self._assumptions.note_once(
            f"stage {stage.stage_index} of the pipeline was assumed to receive tensors of the "
            "shapes that an earlier stage of this rank sends"
        )
        return self._sent
