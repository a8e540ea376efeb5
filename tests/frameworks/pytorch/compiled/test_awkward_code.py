"""Compiled code as people write it: moves from the host, ranks, flex_attention, source lines."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

import wavecast
from wavecast.errors import InvalidInput
from wavecast.targets.targets import resolve
from wavecast.traces.graphs import eager_code
from wavecast.traces.step import Phase, Trace

Step = Callable[[], Any]
WIDTH = 64


class Net(nn.Module):
    """Two products with a normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        hidden = nn.functional.gelu(self.norm(self.enter(x)))
        return self.leave(hidden)


def rows() -> Any:
    return torch.randn(32, WIDTH, device="cuda")


def fused(trace: Trace) -> list[Any]:
    return [call for call in trace if call.op.name.startswith("inductor.") and call.op.outputs]


def not_followed(trace: Trace) -> list[str]:
    return [n for n in trace.notes if "could not be followed" in n or "was not compiled" in n]


def function_step(wrap: Callable[[Any], Any] = lambda run: run) -> Callable[[], Step]:
    """A step that compiles a function, which calls a module."""

    def make_step() -> Step:
        model, x = Net().cuda(), rows()
        run = torch.compile(wrap(lambda: model(x).square().mean()))
        return lambda: run().backward()

    return make_step


@pytest.fixture(scope="module")
def trace() -> Trace:
    return wavecast.trace(function_step())


def test_fused_kernels_have_the_line_of_source_outside_of_torch(trace: Trace) -> None:
    line = Net.forward.__code__.co_firstlineno + 1
    (norm,) = [c for c in fused(trace) if c.op.attr("fused") == "gelu,native_layer_norm"]
    assert norm.line.endswith(f"test_awkward_code.py:{line}")
    assert norm.phase is Phase.FORWARD


def test_lines_are_saved_and_those_of_eager_steps_take_no_room(
    trace: Trace, tmp_path: Path
) -> None:
    file = tmp_path / "step.json.gz"
    trace.save(file)
    assert wavecast.load_trace(file).calls == trace.calls


def test_a_profile_names_the_line_of_a_fused_kernel(trace: Trace) -> None:
    from wavecast.analysis.profile import profile_predicted

    profile = profile_predicted("step", wavecast.predict(trace, "l4"))
    assert any("test_awkward_code.py:" in k.name and "gelu" in k.name for k in profile.kernels)


def test_modules_of_a_compiled_function_have_the_names_of_eager_code(trace: Trace) -> None:
    assert {call.module for call in fused(trace)} >= {"Net.norm"}
    assert "Net.norm" in {allocation.module for allocation in trace.allocations}
    as_if = wavecast.trace(lambda: _plain_step(), compiled=True)
    assert "Net.norm" in {call.module for call in fused(as_if)}


def _plain_step() -> Step:
    model, x = Net().cuda(), rows()
    return lambda: model(x).square().mean().backward()


def test_a_tensor_of_the_host_is_moved_inside_of_a_graph() -> None:
    def make_step() -> Step:
        model, x, table = Net().cuda(), rows(), torch.linspace(0, 1, WIDTH)
        run = torch.compile(lambda: (model(x).to("cuda").cuda() * table.to("cuda")).mean())
        return lambda: run().backward()

    trace = wavecast.trace(make_step)
    assert not not_followed(trace)
    (copy,) = [call.op for call in trace if call.op.name == "aten._to_copy"]
    assert copy.inputs[0].device == "cpu"
    assert copy.outputs[0].device == "cuda"


def test_a_number_that_changes_from_call_to_call_stays_on_the_host() -> None:
    def make_step() -> Step:
        model, x, count = Net().cuda(), rows(), itertools.count(1)
        run = torch.compile(lambda factor: (model(x) * factor).mean())
        return lambda: run(0.1 * next(count)).backward()

    assert not not_followed(wavecast.trace(make_step))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_flex_attention_inside_of_compiled_code_is_followed(fullgraph: bool) -> None:
    """Here it breaks a graph; where one graph was asked for, the code around it is eager."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def make_step() -> Step:
        model = nn.Linear(WIDTH, 3 * WIDTH).cuda()
        x = torch.randn(2, 128, WIDTH, device="cuda")
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cuda")

        def attend() -> Any:
            q, k, v = model(x).view(2, 128, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
            return flex_attention(q, k, v, block_mask=mask).square().mean()

        run = torch.compile(attend, fullgraph=fullgraph)
        return lambda: run().backward()

    trace = wavecast.trace(make_step)
    assert bool(not_followed(trace)) == bool(eager_code(trace)) == fullgraph
    assert "flex_attention" in {call.op.name for call in trace}


def test_a_package_that_keeps_torchs_decorator_may_be_imported_in_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As megatron-core does: one of its modules names the decorator, others use it."""
    (tmp_path / "kept_decorator.py").write_text("import torch\njit_fuser = torch.compile\n")
    (tmp_path / "decorated_code.py").write_text(
        "from kept_decorator import jit_fuser\n@jit_fuser\ndef fused(x): return x.cos() + x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def make_step() -> Step:
        x = torch.randn(8, 8, device="cuda", requires_grad=True)

        def step() -> None:
            importlib.import_module("decorated_code").fused(x).sum().backward()

        return step

    trace = wavecast.trace(make_step)
    assert len(fused(trace)) == 2
    # The decorator works when no step is traced.
    assert importlib.import_module("kept_decorator").jit_fuser(nn.Linear(2, 2)) is not None
    assert not not_followed(trace)


def test_code_of_several_ranks_is_compiled() -> None:
    def make_step() -> Step:
        dist.init_process_group("nccl")
        model = Net().cuda()
        model.compile()
        x, parallel = rows(), nn.parallel.DistributedDataParallel(model)
        return lambda: parallel(x).square().mean().backward()

    trace = wavecast.trace(make_step, ranks=4)
    assert not not_followed(trace)
    assert fused(trace)
    assert any(call.op.name.startswith("nccl.") for call in trace)


@pytest.mark.parametrize(
    "strategy", [wavecast.Parallel(tensor=2), wavecast.Parallel(context=2)], ids=str
)
def test_layers_of_a_compiled_step_are_not_divided(
    trace: Trace, strategy: wavecast.Parallel
) -> None:
    with pytest.raises(InvalidInput, match="=2 divides layers, and the step is compiled"):
        wavecast.predict(trace, "h100-sxm-80gb", parallel=strategy)


def test_classes_of_a_target_file_are_found_by_the_compiler(tmp_path: Path) -> None:
    file = tmp_path / "json.py"  # a name that another module has
    file.write_text(
        "import torch\n"
        "class Mine(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return helper(super().forward(x))\n"
        "def helper(x):\n"
        "    return torch.nn.functional.gelu(x) * SCALE\n"
        "SCALE = 2.0\n"
        "def make_step():\n"
        "    model = torch.compile(Mine(64, 64).cuda())\n"
        "    x = torch.randn(8, 64, device='cuda')\n"
        "    return lambda: model(x).sum().backward()\n"
    )
    make_step = resolve(f"{file}:make_step").make_step
    assert make_step is not None
    trace = wavecast.trace(make_step)
    assert not not_followed(trace)
    assert any("gelu" in str(call.op.attr("fused")) for call in fused(trace))


def test_a_convolution_of_a_transposed_sequence_is_compiled() -> None:
    def make_step() -> Step:
        with torch.device("cuda"):
            model = torch.compile(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=4))
            x = torch.randn(2, 16, WIDTH, requires_grad=True)
        return lambda: model((2 * x).transpose(1, 2)).relu().square().mean().backward()

    step = wavecast.trace(make_step)
    assert not not_followed(step)
    assert fused(step)


def test_places_that_torch_itself_fills_are_followed() -> None:
    """Inductor leaves rows chosen by a mask to torch's `index_put_`, which makes no tensor."""

    def make_step() -> Step:
        model, x = Net().cuda(), rows()
        mask, value = x[:, 0] > 0, torch.zeros(WIDTH, device="cuda")

        def run() -> Any:
            hidden = model(x)
            hidden[mask] = value
            return hidden.square().mean()

        compiled = torch.compile(run)
        return lambda: compiled().backward()

    trace = wavecast.trace(make_step, gpu="h200-sxm")
    assert not not_followed(trace)
    assert fused(trace)
    (put,) = [c.op for c in trace if "index_put" in c.op.name and c.phase is Phase.FORWARD]
    assert [t.dtype for t in put.inputs] == ["float32", "bool", "float32"]
    assert put.outputs[0].shape == put.inputs[0].shape == (32, WIDTH)
