"""The user's own parallel code is traced on one rank, and its collectives are those of torch."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import networks
import numpy as np
import pytest
import torch
from networks import Step, minimize, mlp, training
from parallel_code import (
    MODELS,
    RANKS,
    Exchange,
    ddp_step,
    exchanges,
    fsdp_step,
    group,
    issued,
    plain_step,
    tensor_step,
    two_axes_step,
)
from torch import distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import wavecast
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.capture import capture
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.steps.player import play_streams
from wavecast.traces.step import Call, Phase, Role, Trace

checkpointed = partial(checkpoint, use_reentrant=True)
HERE = r"tests/frameworks/pytorch/capture/test_ranks\.py:\d+"
every_model = pytest.mark.parametrize(
    "name",
    [name if name == "gpt2" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)


def traced(make_step: Callable[[], Step], **options: Any) -> Trace:
    """The trace of a step whose process group is started here."""

    def make() -> Step:
        dist.init_process_group("nccl")
        return make_step()

    return capture(make, ranks=RANKS, **options)


def sizes(collectives: list[Exchange]) -> list[tuple[str, int, int]]:
    return [(each.name, each.given, each.got) for each in collectives]


def spread_sizes(name: str, shard: int = 0) -> list[tuple[str, int, int]]:
    """The collectives of the plain step, spread over the ranks."""
    step = spread(capture(partial(plain_step, name)), Parallel(data=RANKS, shard=shard))
    return sizes(exchanges(step.groups[0].parts[0].last))


def on_gpu(run: Callable[[Any], Any], **options: Any) -> Trace:
    """The trace of a function of a tensor on the GPU, with a process group."""
    return traced(networks.on_gpu(run, 64), **options)


def named(trace: Trace, name: str) -> list[Call]:
    return [call for call in trace if call.op.name == name]


# What torch issues.


@every_model
def test_ddp_reduces_the_buckets_that_torchs_reducer_builds(name: str) -> None:
    trace = traced(partial(ddp_step, name))
    # Gloo with one rank runs torch's own reducer on real tensors.
    real = issued(partial(ddp_step, name, "cpu"), "gloo", warm_up=2)
    assert sizes(exchanges(trace)) == sizes(real)
    assert {each.ranks for each in exchanges(trace)} == {RANKS}
    reductions = [each for each in sizes(exchanges(trace)) if each[0] == "all_reduce"]
    assert len(reductions) > 1
    assert reductions == spread_sizes(name)


@every_model
def test_fsdp_gathers_and_scatters_what_torch_does_on_real_tensors(name: str) -> None:
    collectives = exchanges(capture(partial(fsdp_step, name), ranks=RANKS))
    assert collectives == issued(partial(fsdp_step, name, "cpu"))
    assert {each.name for each in collectives} == {"all_gather", "reduce_scatter"}
    assert sizes(collectives) == spread_sizes(name, shard=3)


def test_fsdp_gathers_in_the_dtype_of_its_policy() -> None:
    collectives = exchanges(capture(partial(fsdp_step, "llama", mixed=True), ranks=RANKS))
    assert collectives == issued(partial(fsdp_step, "llama", "cpu", mixed=True))


@every_model
def test_tensor_parallel_layers_exchange_what_torch_does_on_real_tensors(name: str) -> None:
    collectives = exchanges(capture(partial(tensor_step, name), ranks=RANKS))
    assert collectives == issued(partial(tensor_step, name, "cpu"))
    assert collectives


def test_sharding_and_splitting_together_exchange_what_torch_does() -> None:
    trace = capture(two_axes_step, ranks=RANKS)
    assert sizes(exchanges(trace)) == sizes(issued(partial(two_axes_step, "cpu")))
    groups = Counter((c.op.name, *(v for _, v in c.op.attrs)) for c in trace if "nccl" in c.op.name)
    assert groups["nccl.all_gather", 4, 2] > 0
    assert groups["nccl.all_reduce", 2, 1] > 0


def test_fully_shard_finds_the_gpu_and_takes_a_model_without_memory() -> None:
    def make_step() -> Step:
        with torch.device("meta"):
            model = mlp()
        fully_shard(model)
        model.to_empty(device="cuda")
        for layer in (model[0], model[2]):
            layer.reset_parameters()
        x = torch.randn(4, 8, device="cuda")
        return minimize(lambda: model(x).sum(), torch.optim.SGD(model.parameters(), lr=0.1))

    assert [each.name for each in exchanges(traced(make_step))] == ["all_gather", "reduce_scatter"]


def test_batch_norm_is_synchronised() -> None:
    def make_step() -> Step:
        plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(plain).cuda()
        x = torch.randn(4, 3, 16, 16, device="cuda")
        return lambda: (model.zero_grad(), model(x).sum().backward())

    # Means, deviations and a count of each rank forward; two sums for each channel backward.
    collectives = sizes(exchanges(traced(make_step)))
    assert collectives == [("all_gather", 17 * 4, 17 * 4 * RANKS), ("all_reduce", 16 * 4, 16 * 4)]


# Streams and waits.


def test_ddp_reduces_beside_the_backward_pass_and_waits_at_its_end() -> None:
    trace = traced(partial(ddp_step, "llama"))
    calls = list(trace)
    [stream] = {call.stream for call in named(trace, "nccl.all_reduce")}
    assert stream != 0
    first = next(i for i, call in enumerate(calls) if call.op.name == "nccl.all_reduce")
    assert calls[first - 1].op.name == "cuda.stream_wait"
    assert calls[first - 1].stream == stream
    assert calls[first - 1].op.attr("stream") == 0
    recorded = {c.op.attr("event") for c in trace if c.op.name == "cuda.event_record"}
    waits = [i for i, c in enumerate(calls) if c.op.name == "cuda.stream_wait" and c.stream == 0]
    assert [calls[i].op.attr("event") in recorded for i in waits] == [True, True]
    last_product = max(i for i, c in enumerate(calls) if c.op.base == "aten.mm")
    assert first < last_product < waits[0]
    assert {c.phase for c in calls[first : waits[-1]]} == {Phase.BACKWARD}


def test_play_streams_hides_reductions_behind_the_backward_pass() -> None:
    trace = traced(partial(ddp_step, "llama"))
    calls = list(trace)
    issue_s = np.zeros(len(calls))
    slow = [10.0 if c.op.name == "nccl.all_reduce" else 0.0 for c in calls]
    fast = [1.0 if c.op.base == "aten.mm" else s for c, s in zip(calls, slow, strict=True)]
    alone, beside = (play_streams(calls, issue_s, np.array(t), ()) for t in (slow, fast))
    assert alone.exposed_s == pytest.approx(20)
    assert beside.exposed_s < 20


def test_work_that_is_waited_for_later_runs_on_the_stream_of_its_group() -> None:
    def run(x: Any) -> None:
        work = dist.all_reduce(x, async_op=True)
        x * 2
        work.wait()
        dist.all_reduce(x)

    trace = on_gpu(run)
    beside, here = named(trace, "nccl.all_reduce")
    assert beside.stream != 0
    assert here.stream == 0
    names = [call.op.name for call in trace]
    event = named(trace, "cuda.event_record")[0].op.attr("event")
    after = names.index("aten.mul.Tensor") + 1
    assert trace.calls[after].op.attr("event") == event


def test_the_marks_of_streams_and_events_say_what_they_wait_for() -> None:
    def make_step() -> Step:
        x = torch.zeros(8, device="cuda")
        side = torch.cuda.Stream()

        def step() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x * 2
            torch.cuda.current_stream().wait_event(side.record_event())
            torch.cuda.Event().wait()  # it was never recorded, so CUDA does not wait

        return step

    trace = capture(make_step)
    first, second = named(trace, "cuda.stream_wait")
    [record] = named(trace, "cuda.event_record")
    assert (first.stream, first.op.attr("stream")) == (record.stream, 0)
    assert (second.stream, second.op.attr("event")) == (0, record.op.attr("event"))


# Plain collectives.


def _lists(x: Any) -> None:
    dist.all_gather([torch.empty_like(x) for _ in range(RANKS)], x)


COLLECTIVES: dict[str, tuple[Callable[[Any], Any], tuple[int, int]]] = {
    "all_reduce": (dist.all_reduce, (256, 256)),
    "broadcast": (lambda x: dist.broadcast(x, 0), (256, 256)),
    "all_gather": (_lists, (256, 2048)),
    "reduce_scatter": (lambda x: dist.reduce_scatter(x[:8], list(x.chunk(RANKS))), (256, 32)),
    "all_to_all": (lambda x: dist.all_to_all_single(torch.empty_like(x), x), (256, 256)),
    "send": (lambda x: dist.send(x, 1), (256, 0)),
    "recv": (lambda x: dist.recv(x, 3), (0, 256)),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_each_collective_has_its_bytes(name: str) -> None:
    run, moved = COLLECTIVES[name]
    [collective] = exchanges(on_gpu(run))
    assert (collective.name, (collective.given, collective.got)) == (name, moved)


@pytest.mark.filterwarnings("ignore:Running all_reduce on global rank 0")
def test_a_group_is_recorded_as_ranks_and_their_stride() -> None:
    def run(x: Any) -> None:
        dist.all_reduce(x, group=dist.new_group([0, 2, 4, 6]))
        dist.all_reduce(x, group=dist.new_group([1, 3]))  # this rank is not in it
        dist.send(x, 4)

    calls = [call for call in on_gpu(run) if call.op.name.startswith("nccl.")]
    assert [dict(call.op.attrs) for call in calls] == [
        {"ranks": 4, "stride": 2},
        {"ranks": 2, "stride": 4},
    ]


def test_a_barrier_waits_for_the_gpu() -> None:
    trace = on_gpu(lambda x: (x * 2, dist.barrier()))
    assert [call.op.name for call in trace if call.syncs] == ["cuda.stream_synchronize"]


def test_functional_collectives_are_waited_for_when_their_result_is_used() -> None:
    from torch.distributed import _functional_collectives as functional

    name = "all_gather_single" if hasattr(functional, "all_gather_single") else "all_gather_tensor"

    def run(x: Any) -> None:
        gathered = getattr(functional, name)(x, 0, dist.group.WORLD)
        x * 2
        gathered + 1

    trace = on_gpu(run)
    names = [call.op.name for call in trace]
    assert sizes(exchanges(trace)) == [("all_gather", 256, 2048)]
    waiting = names.index("cuda.stream_wait", names.index("aten.mul.Tensor"))
    assert waiting < names.index("aten.add.Tensor")


def test_tensors_and_objects_on_the_host_are_not_recorded() -> None:
    def run(x: Any) -> None:
        counts = torch.ones(3)
        dist.all_reduce(counts)
        said: list[Any] = [None] * RANKS
        dist.all_gather_object(said, {"lr": 0.1})
        assert said[3] == {"lr": 0.1}
        dist.broadcast_object_list(said)
        x * counts.numel()

    trace = on_gpu(run)
    assert [call.op.name for call in trace] == ["aten.mul.Tensor"]
    assert all("all ranks were assumed to have" in note for note in trace.notes)


# DistributedDataParallel's options.


def _wrapped(
    run: Callable[[Any, Any], Any] = lambda model, x: model(x).sum().backward(),
    inner: Callable[[], Any] = mlp,
    **options: Any,
) -> Trace:
    def make_step() -> Step:
        model = DistributedDataParallel(inner().cuda(), device_ids=[0], **options)
        x = torch.randn(4, 8, device="cuda")
        return lambda: (model.zero_grad(), run(model, x))

    return traced(make_step)


def test_a_static_graph_is_reduced_as_by_torchs_reducer() -> None:
    step = partial(ddp_step, "gpt2", static_graph=True)
    for warm_up in (0, 1, 3):  # the third rebuilds the buckets, by a broadcast that comes once
        real = issued(partial(step, "cpu"), "gloo", warm_up=warm_up)
        assert sizes(exchanges(traced(step, warm_up=warm_up))) == sizes(real)


def test_a_static_graph_may_leave_parameters_out_and_use_others_twice() -> None:
    def make_step() -> Step:
        layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        used = layers[0]
        layers.forward = lambda x: checkpointed(used, checkpointed(used, x))
        model = DistributedDataParallel(layers.cuda(), static_graph=True)
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        return lambda: (model.zero_grad(), model(x).sum().backward())

    collectives = exchanges(traced(make_step))
    assert sum(each.given for each in collectives) == 2 * (64 + 8) * 4


def test_no_sync_reduces_only_after_the_last_micro_batch() -> None:
    def run(model: Any, x: Any) -> None:
        with model.no_sync():
            model(x).sum().backward()
        model(x).sum().backward()

    trace = _wrapped(run)
    assert len(exchanges(trace)) == 1
    products = [i for i, c in enumerate(trace) if c.op.base == "aten.mm"]
    reduction = next(i for i, c in enumerate(trace) if c.op.name == "nccl.all_reduce")
    assert sum(i < reduction for i in products) == len(products)


def test_a_communication_hook_reduces_in_its_own_dtype() -> None:
    def make_step() -> Step:
        model = DistributedDataParallel(mlp().cuda())
        model.register_comm_hook(None, bf16_compress_hook)
        x = torch.randn(4, 8, device="cuda")
        return lambda: (model.zero_grad(), model(x).sum().backward())

    [reduction] = named(traced(make_step), "nccl.all_reduce")
    assert reduction.op.inputs[0].dtype == "bfloat16"


def test_unused_parameters_are_reduced_as_zeros_and_told_to_the_others() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    collectives = exchanges(_wrapped(inner=Half, find_unused_parameters=True))
    assert sum(each.given for each in collectives) == 2 * (64 + 8) * 4 + 4 * 4


# Memory.


def test_an_fsdp_rank_holds_its_share_and_frees_what_it_gathers() -> None:
    plain = capture(partial(plain_step, "llama"))
    rank = capture(partial(fsdp_step, "llama"), ranks=RANKS)

    def held(trace: Trace, role: Role) -> int:
        return sum(a.nbytes for a in trace.allocations if a.role is role and a.born is None)

    for role in (Role.PARAMETER, Role.OPTIMIZER_STATE):
        assert held(rank, role) == pytest.approx(held(plain, role) / RANKS, rel=0.01)
    gathered = [a for a in rank.allocations if a.role is Role.INTERMEDIATE and a.born is not None]
    assert all(a.freed is not None for a in gathered)
    assert wavecast.memory(rank).peak_bytes < wavecast.memory(plain).peak_bytes


def test_ddp_adds_the_memory_of_its_buckets() -> None:
    plain, rank = capture(partial(plain_step, "llama")), traced(partial(ddp_step, "llama"))
    weights = sum(a.nbytes for a in plain.allocations if a.role is Role.PARAMETER)
    added = wavecast.memory(rank).peak_bytes - wavecast.memory(plain).peak_bytes
    assert added == pytest.approx(weights, rel=0.02)


# The machine that the step sees.


def test_the_step_sees_the_rank_that_was_asked_for() -> None:
    seen: dict[str, Any] = {}

    def make_step() -> Step:
        dist.init_process_group("nccl", device_id=torch.device("cuda", 5))
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        mesh = dist.init_device_mesh("cuda", (2, 8), mesh_dim_names=("data", "model"))
        seen.update(
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            backend=dist.get_backend(),
            local=os.environ["LOCAL_RANK"],
            gpus=torch.cuda.device_count(),
            coordinate=tuple(mesh.get_coordinate() or ()),
        )
        x = torch.zeros(8, device="cuda:5")
        return lambda: dist.all_reduce(x, group=mesh.get_group("data"))

    [collective] = [
        c for c in capture(make_step, ranks=16, rank=13) if c.op.name.startswith("nccl.")
    ]
    assert seen == {
        "rank": 13,
        "world": 16,
        "backend": "nccl",
        "local": "5",
        "gpus": 8,
        "coordinate": (1, 5),
    }
    assert dict(collective.op.attrs) == {"ranks": 2, "stride": 8}


def test_everything_is_as_before_after_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    before = dict(os.environ), sys.excepthook, dist.Reducer, torch.UntypedStorage.resize_
    step = partial(ddp_step, "gpt2")
    assert traced(step) == traced(step)
    assert not dist.is_initialized()
    with pytest.raises(CaptureError, match="division by zero"):
        traced(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert not dist.is_initialized()
    assert before == (dict(os.environ), sys.excepthook, dist.Reducer, torch.UntypedStorage.resize_)


@pytest.mark.slow
@pytest.mark.parametrize("make_step", [ddp_step, fsdp_step, tensor_step])
def test_a_trace_of_ranks_leaves_no_tensor_behind(make_step: Callable[[str], Step]) -> None:
    traced(partial(make_step, "gpt2"))
    gc.collect()
    assert not any(issubclass(type(o), FakeTensor) for o in gc.get_objects())


def test_process_groups_from_before_come_back() -> None:
    with group("gloo"):
        outside = dist.group.WORLD
        assert len(exchanges(on_gpu(dist.all_reduce))) == 1
        assert dist.group.WORLD is outside
        assert dist.get_world_size() == 1
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1, 1, 1]


def test_a_traced_step_may_trace_another_one_with_other_ranks() -> None:
    inner: list[Trace] = []

    def run(x: Any) -> None:
        inner.append(capture(lambda: _start(4), ranks=4))
        dist.all_reduce(x)

    outer = on_gpu(run)
    assert [each.ranks for each in exchanges(outer)] == [RANKS]
    assert [each.ranks for each in exchanges(inner[-1])] == [4]


def _start(ranks: int) -> Step:
    dist.init_process_group("nccl")
    assert dist.get_world_size() == ranks
    x = torch.zeros(8, device="cuda")
    return lambda: dist.all_reduce(x)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_nothing_of_the_iteration_before_lives_on_under_dtensor(name: str) -> None:
    trace = traced(partial(tensor_step, name))
    made_before = [a for a in trace.allocations if a.born is None and a.freed is not None]
    assert {a.role for a in made_before} <= {Role.GRADIENT}
    results = {i for i, call in enumerate(trace) if call.op.name == "nccl.all_reduce"}
    born = {a.born for a in trace.allocations if a.role is Role.INTERMEDIATE}
    # Memory is there when the collective begins, and the wait before it.
    assert all(born & {position, position - 1} for position in results)


# What is refused.


def test_fsdp1_is_refused_with_its_successor() -> None:
    with pytest.raises(CaptureError, match=rf"FullyShardedDataParallel at {HERE}.*fully_shard"):
        traced(lambda: FullyShardedDataParallel(mlp().cuda()))


def test_without_ranks_the_refusal_names_them() -> None:
    for start in (lambda: dist.init_process_group("nccl"), lambda: fully_shard(mlp().cuda())):
        with pytest.raises(CaptureError, match=rf"{HERE}.*ranks=8 \(--ranks 8\)"):
            capture(start)


@pytest.mark.parametrize(
    ("ranks", "rank", "message"),
    [
        (0, 0, "ranks is 0"),
        (True, 0, "ranks is True"),
        (8, -1, "rank is -1"),
        (8, 8, "from 0 to 7"),
    ],
)
def test_ranks_that_cannot_be_are_refused(ranks: Any, rank: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        capture(training(mlp), ranks=ranks, rank=rank)


def test_ranks_change_nothing_for_a_step_without_parallel_code() -> None:
    assert capture(training(mlp), ranks=8).calls == capture(training(mlp)).calls


def test_a_trace_of_ranks_is_predicted_with_its_own_collectives() -> None:
    trace = traced(partial(ddp_step, "llama"))
    with pytest.raises(InvalidInput, match=r"among 8 GPUs.*Parallel\(data=8\)"):
        wavecast.predict(trace, "h100-sxm-80gb")
    with pytest.raises(InvalidInput, match=r"among 8 ranks itself.*Parallel\(data=8\)"):
        wavecast.predict(trace, "h100-sxm-80gb", parallel=wavecast.Parallel(data=4))
    step = wavecast.predict(trace, "h100-sxm-80gb", parallel=wavecast.Parallel(data=8))
    assert step.spread is not None
    ops = Counter(c.op for c in step.spread.groups[0].parts[0].last)
    assert ops == Counter(c.op for c in trace)
    assert step.stages[0].communication_s > 0


SCRIPT = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    x = torch.randn(8, 64, device="cuda")
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_script_for_torchrun_runs_as_one_rank(tmp_path: Any) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT, encoding="utf-8")
    run = wavecast.run_script(file, ranks=RANKS)
    assert sizes(exchanges(run.trace)) == [("all_reduce", 65 * 64 * 4, 65 * 64 * 4)]
    assert not dist.is_initialized()
