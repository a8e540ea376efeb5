"""torch.cuda while a step is traced, and that everything is restored afterwards."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Step, forward, mlp, names, on_gpu, training
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer as optimizers

import wavecast
from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Call, Trace


def _trace(body: Any, **options: Any) -> Trace:
    return capture(on_gpu(body), **options)


def _named(trace: Trace, name: str) -> list[Call]:
    return [call for call in trace if call.op.name == name]


def test_what_the_users_code_asks_about_the_gpu_is_noted() -> None:
    def notes(ask: Any) -> tuple[str, ...]:
        def make_step() -> Step:
            x = torch.ones(4, 8 if ask() else 4, device="cuda")
            return lambda: x + 1

        return capture(make_step, capability=(7, 5)).notes

    [note] = notes(lambda: torch.cuda.get_device_capability() >= (8, 0))
    assert "compute capability is asked for at " in note
    assert "test_machine.py" in note
    assert "; 7.5 was answered" in note
    [note] = notes(lambda: torch.cuda.get_device_properties(0).total_memory > 1 << 30)
    assert "compute capability 7.5, 80 GiB was answered" in note
    [note] = notes(lambda: torch.cuda.mem_get_info()[0])
    assert "80 GiB was answered" in note
    assert notes(lambda: torch.cuda.get_device_name()) == ()


@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
def test_bf16_is_emulated_on_old_gpus(capability: tuple[int, int]) -> None:
    def ask(x: Any) -> None:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        assert torch.cuda.is_bf16_supported()
        assert native == (capability >= (8, 0))
        x + 1

    _trace(ask, capability=capability)


def test_the_machine_has_one_gpu_of_the_capability_asked_for() -> None:
    def ask(x: Any) -> None:
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_capability() == (7, 5)
        assert torch.cuda.get_device_properties(0).major == 7
        assert torch.cuda.is_bf16_supported()
        assert torch.backends.cudnn.is_available()
        assert "7.5" in torch.cuda.get_device_name()
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator().type == "cuda"
        torch.cuda.empty_cache()
        torch.cuda.manual_seed_all(1)
        torch.cuda.reset_peak_memory_stats()
        with torch.cuda.device(0):
            x + torch.cuda.max_memory_allocated()

    assert _trace(ask, capability=(7, 5)).capability == (7, 5)


def test_functions_of_torch_cuda_answer_where_they_are_defined_too() -> None:
    def ask(x: Any) -> None:
        assert torch.cuda.random.get_rng_state().dtype is torch.uint8
        assert torch.cuda.memory.max_memory_allocated() == 0
        x + 1

    _trace(ask)


def test_views_in_inference_mode_can_be_made_again() -> None:
    def count(x: Any) -> None:
        with torch.inference_mode():
            x[None].eq(0).sum()
            y = x + 1
            y[None].eq(0).sum()

    assert names(_trace(count, warm_up=2))["aten.sum"] == 2


def test_waiting_for_the_gpu_is_recorded_and_synchronises() -> None:
    def wait(x: Any) -> None:
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        x + event.elapsed_time(torch.cuda.Event(enable_timing=True))

    trace = _trace(wait)
    waits = [call.op.name for call in trace if call.syncs]
    assert waits == ["cuda.synchronize", "cuda.stream_synchronize", "cuda.event_synchronize"]


def test_marks_for_a_profiler_are_nothing() -> None:
    def run(x: Any) -> None:
        torch.cuda.profiler.start()
        torch.cuda.nvtx.range_push("step")
        with torch.cuda.nvtx.range("add"):
            x + 1
        torch.cuda.nvtx.range_pop()

    assert names(_trace(run)) == {"aten.add": 1}


def test_a_model_in_data_parallel_of_one_gpu_is_the_model() -> None:
    wrapped = capture(training(lambda: nn.DataParallel(mlp())))
    assert names(wrapped) == names(capture(training(mlp)))


def test_code_scripted_while_tracing_is_traced_as_python() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(2.0, device=x.device)

    assert names(forward(lambda x: torch.jit.script(scaled)(x), (4, 8)))["aten.mul"] > 0


def test_ops_carry_the_stream_they_run_on() -> None:
    def on_streams(x: Any) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            y.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        y + 1

    trace = _trace(on_streams)
    (multiply,), (add,) = _named(trace, "aten.mul.Tensor"), _named(trace, "aten.add.Tensor")
    assert multiply.stream != 0
    assert add.stream == 0
    assert len(_named(trace, "cuda.stream_wait")) == 2


def test_a_value_read_back_synchronises_and_is_noted_with_its_line() -> None:
    def read(x: Any) -> None:
        if x.sum().item() > 0.5:
            x + 1

    trace = _trace(read)
    assert [c.op.base for c in trace if c.syncs] == ["aten._local_scalar_dense"]
    assert len(trace.notes) == 1
    assert trace.notes[0].startswith("the step reads a GPU value at ")
    assert trace.notes[0].endswith("; 1.0 was assumed")
    assert "test_machine.py" in trace.notes[0]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("make_scaler", [torch.amp.GradScaler, torch.cuda.amp.GradScaler])
def test_a_gradient_scaler_unscales_checks_and_updates(make_scaler: Any) -> None:
    def make_step() -> Step:
        model, x = mlp().cuda(), torch.randn(4, 8, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = make_scaler()
        assert scaler.is_enabled()

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(x).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

        return step

    trace = capture(make_step)
    counts = names(trace)
    assert counts["aten._amp_foreach_non_finite_check_and_unscale_"] == 1
    assert counts["aten._amp_update_scale_"] == 1
    assert counts["aten._foreach_add_"] == 1
    assert [c.op.base for c in trace if c.syncs] == ["aten._local_scalar_dense"]


def _precision_of(trace: Trace, base: str) -> set[Any]:
    return {call.op.attr("precision") for call in trace if call.op.base == base}


def _conv_and_matmul() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4))


@pytest.mark.parametrize(
    ("switch", "matmul", "convolution"),
    [
        ("pass", "ieee", "tf32"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "tf32", "tf32"),
        ("torch.backends.cudnn.allow_tf32 = False", "ieee", "ieee"),
        ("torch.set_float32_matmul_precision('high')", "tf32", "tf32"),
        ("torch.set_float32_matmul_precision('highest')", "ieee", "tf32"),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "tf32", "tf32"),
        ("torch.backends.cudnn.conv.fp32_precision = 'ieee'", "ieee", "ieee"),
        ("torch.backends.fp32_precision = 'tf32'", "tf32", "tf32"),
    ],
)
def test_the_tf32_switches_decide_the_precision(switch: str, matmul: str, convolution: str) -> None:
    before = _switch_state()

    def make_step() -> Step:
        exec(switch, {"torch": torch})
        return training(_conv_and_matmul, (2, 3, 8, 8))()

    trace = capture(make_step)
    assert _precision_of(trace, "aten.addmm") == {matmul}
    assert _precision_of(trace, "aten.mm") == {matmul}
    assert _precision_of(trace, "aten.convolution") == {convolution}
    assert _precision_of(trace, "aten.convolution_backward") == {convolution}
    assert _switch_state() == before


@pytest.mark.parametrize("on", [True, False])
def test_a_convolution_says_whether_cudnn_tries_its_algorithms(on: bool) -> None:
    def make_step() -> Any:
        torch.backends.cudnn.benchmark = on
        layer = torch.nn.Conv2d(3, 4, 3).cuda()
        source = torch.randn(2, 3, 8, 8, device="cuda")
        return lambda: layer(source).sum().backward()

    convolutions = [
        call.op for call in capture(make_step) if call.op.base.startswith("aten.convolution")
    ]
    assert [op.attr("benchmark", False) for op in convolutions] == [on, on]


def test_half_precision_products_carry_no_float32_precision() -> None:
    trace = capture(training(_conv_and_matmul, (2, 3, 8, 8), dtype=torch.bfloat16))
    assert _precision_of(trace, "aten.addmm") == {None}


def _switch_state() -> list[Any]:
    return [
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.is_autocast_enabled("cpu"),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.fp32_precision,
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.get_rng_state().sum().item(),
    ]


def _torch_state() -> list[Any]:
    """Everything that tracing replaces."""
    owners = [
        torch,
        torch._C._nn,
        torch.cuda,
        torch.accelerator,
        torch.Tensor,
        FakeTensor,
        torch.nn.Module,
    ]
    owners += [torch.amp.GradScaler, torch.optim.Optimizer, torch.nn.RNNBase]
    owners += [torch.backends.cudnn.m, torch.utils._foreach_utils, optimizers]
    owners += [torch._subclasses.fake_tensor, torch._subclasses, torch.nn.utils.clip_grad]
    contents: list[Any] = [dict(vars(owner)) for owner in owners]
    contents.append(list(torch.utils._foreach_utils._foreach_supported_types))
    hooks = torch.nn.modules.module
    contents.append((dict(hooks._global_forward_pre_hooks), dict(hooks._global_forward_hooks)))
    contents.append(torch.overrides._get_current_function_mode_stack())
    return contents


def _turn_every_switch() -> None:
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.enable_flash_sdp(False)
    torch.manual_seed(1)
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("fails", [False, True], ids=["traced", "failed"])
def test_torch_is_afterwards_as_it_was_before(fails: bool) -> None:
    def make_step() -> Step:
        _turn_every_switch()
        model, x = mlp(), torch.randn(4, 8)

        def step() -> None:
            with torch.autocast("cuda", torch.float16), torch.cuda.stream(torch.cuda.Stream()):
                model(x).sum().backward()
                if fails:
                    raise ValueError("enough")

        return step

    capture(training(mlp))  # imports and caches of the first use
    switches, state = _switch_state(), _torch_state()
    if fails:
        with pytest.raises(CaptureError, match="enough"):
            capture(make_step)
    else:
        capture(make_step)
    assert _switch_state() == switches
    for now, before in zip(_torch_state(), state, strict=True):
        assert now == before


def test_real_training_works_after_tracing() -> None:
    def loss_after_training() -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Flatten())
        model = nn.Sequential(model, nn.LSTM(24, 6))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(2, 1, 8))[0].float().pow(2).sum()
            loss.backward()
            optimizer.step()
        return float(loss.item())

    before = loss_after_training()
    capture(training(mlp, dtype=torch.float16))
    assert loss_after_training() == before
    assert not torch.cuda.is_available()


def test_tracing_twice_gives_equal_traces() -> None:
    make_step = training(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        (2, 3, 8, 8),
        lambda p: torch.optim.AdamW(p),
        torch.bfloat16,
    )
    assert capture(make_step) == capture(make_step)


def test_a_trace_leaves_no_memory_behind() -> None:
    def fake_tensors() -> set[int]:
        gc.collect()
        return {id(o) for o in gc.get_objects() if type(o) is FakeTensor}

    # Another test's script may have made a cycle through torch's C++ code, which nothing frees.
    before = fake_tensors()
    capture(training(mlp))
    assert fake_tensors() <= before


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda: torch.cuda.get_device_capability() >= (8, 0), 2),
        (lambda: torch.cuda.get_device_properties(0).major >= 8, 2),
        (lambda: torch.cuda.is_bf16_supported(including_emulation=False), 2),
        (lambda: torch.cuda.mem_get_info()[0] > 0, 1),
        (lambda: True, 1),
    ],
)
def test_code_that_asks_for_the_capability_is_traced_for_each_family(
    ask: Any, expected: int, tmp_path: Path
) -> None:
    def make_step() -> Step:
        x = torch.ones(4, 8 if ask() else 4, device="cuda")
        return lambda: x + 1

    traces = wavecast.trace(make_step, gpus=["t4", "h100-sxm-80gb"])
    assert len(traces.traces) == expected
    widths = [trace.calls[0].op.outputs[0].shape[1] for trace in traces.traces]
    assert widths == ([4, 8] if expected == 2 else [8])
    traces.traces[0].save(tmp_path / "step.json.gz")
    assert wavecast.load_trace(tmp_path / "step.json.gz") == traces.traces[0]


def test_torch_is_a_build_for_cuda_that_agrees_with_itself() -> None:
    def step() -> None:
        assert tuple(map(int, torch.version.cuda.split("."))) >= (12, 0)
        assert torch.backends.cuda.is_built()
        assert torch.backends.cudnn.version() > 90000
        assert torch.cuda.nccl.version() > (2, 20)
        major, minor = torch.cuda.get_device_capability()
        assert f"sm_{major}{minor}" in torch.cuda.get_arch_list()
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
        properties = torch.cuda.get_device_properties(0)
        assert "L2_cache_size" in str(properties)
        assert not properties.is_integrated
        torch.backends.cuda.preferred_linalg_library("cusolver")
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch.cuda.set_sync_debug_mode("warn")
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.cudart().cudaMemGetInfo(0) == torch.cuda.mem_get_info()
        assert not torch.cuda.memory_snapshot()

    before = torch.version.cuda, torch.cuda.is_available()

    def run(x: Any) -> None:
        step()
        x + 1

    _trace(run)
    assert (torch.version.cuda, torch.cuda.is_available()) == before


def test_the_gpu_has_a_generator_of_its_own() -> None:
    def step(x: Any) -> None:
        host = torch.get_rng_state()
        [generator] = torch.cuda.default_generators
        generator.set_state(torch.cuda.get_rng_state())  # as Megatron's tensor parallel seeds do
        generator.graphsafe_set_state(generator.graphsafe_get_state())
        assert generator.device.type == torch.Generator("cuda").device.type == "cuda"
        assert torch.equal(host, torch.get_rng_state())
        x + torch.randn(x.shape, device="cuda", generator=generator)

    assert names(_trace(step))["aten.add"] == 1


def test_every_function_that_makes_a_tensor_makes_a_pinned_one() -> None:
    def step(x: Any) -> None:
        pinned = {"pin_memory": True}
        for tensor in (
            *(torch.tensor([1.0, 2.0], **pinned), torch.empty(2, **pinned)),
            *(torch.zeros(2, **pinned), torch.randn(2, **pinned), torch.arange(2, **pinned)),
            *(torch.randn(3000, 3000, **pinned), torch.ones_like(torch.ones(2), **pinned)),
            *(torch.ones(2).new_zeros(2, **pinned), torch.full((2,), 1.0, **pinned)),
        ):
            assert tensor.is_pinned()
            assert not tensor.is_cuda
        assert not torch.empty(2).is_pinned()
        torch.tensor([1.0, 2.0], **pinned).cuda(non_blocking=True) + 1

    trace = _trace(step)
    [copy] = [call.op for call in trace if call.op.base == "aten._to_copy"]
    assert ("pin_memory", True) in copy.attrs
