"""Steps that are compiled: their kernels, memory, graph breaks, and what cannot be compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from traceback import FrameSummary
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch

import wavecast
from wavecast.frameworks.pytorch.compiled.target import Operand, is_faster_padded, target_of
from wavecast.frameworks.pytorch.compiled.tracing import capture
from wavecast.hardware.devices import device
from wavecast.traces.graphs import eager_code
from wavecast.traces.step import Phase, Trace

Step = Callable[[], Any]


class Block(nn.Module):
    """One block of a transformer."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, 2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


def block_step(how: str) -> Callable[[], Step]:
    """A training step of a block that is compiled in one of several ways, or not."""

    def make_step() -> Step:
        model = Block().cuda()
        call: Any = model
        if how == "module":
            call = torch.compile(model)
        elif how == "method":
            model.compile()
        elif how == "function":
            call = torch.compile(lambda x: model(x))
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(4, 128, 256, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = call(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make_step


@pytest.fixture(scope="module")
def compiled() -> Trace:
    return capture(block_step("module"))


def names(trace: Trace) -> Counter[str]:
    return Counter(call.op.name for call in trace)


def kernels(trace: Trace, phase: Phase) -> Counter[str]:
    return Counter(call.op.name for call in trace if call.phase is phase)


def test_products_and_attention_stay_and_the_rest_is_fused(compiled: Trace) -> None:
    forward, backward = (kernels(compiled, p) for p in (Phase.FORWARD, Phase.BACKWARD))
    # Torch 2.9 adds the bias of two of them in the fused kernel that follows.
    assert forward["aten.addmm"] + forward["aten.mm"] == 4
    assert backward["aten.mm"] == 8
    attention = "aten._scaled_dot_product_cudnn_attention"
    assert forward[attention] == backward[f"{attention}_backward"] == 1
    assert forward["inductor.persistent_reduction"] == 1
    assert forward["inductor.pointwise"] > 4
    assert "aten.gelu" not in forward
    assert not compiled.notes


def test_the_host_calls_each_graph_once(compiled: Trace) -> None:
    assert names(compiled)["dynamo.guards"] == 1
    assert names(compiled)["inductor.call"] == 2
    assert compiled.calls[0].op.name == "dynamo.guards"
    inputs = compiled.calls[1].op.attr("inputs")
    assert isinstance(inputs, int)
    assert inputs > 4


def test_the_rest_of_the_step_is_traced_as_it_is_written(compiled: Trace) -> None:
    assert names(compiled)["aten._foreach_norm.Scalar"] == 1
    assert kernels(compiled, Phase.OPTIMIZER)["aten._foreach_addcdiv_.ScalarList"] == 1


def test_kernels_have_the_modules_that_they_come_from(compiled: Trace) -> None:
    of_products = {call.module for call in compiled if call.op.name in ("aten.addmm", "aten.mm")}
    assert {"Block.qkv", "Block.mlp.0"} <= of_products


@pytest.mark.slow
@pytest.mark.parametrize("how", ["method", "function"])
def test_all_ways_to_compile_give_the_same_kernels(compiled: Trace, how: str) -> None:
    assert names(capture(block_step(how))) == names(compiled)


def test_an_eager_step_can_be_traced_as_if_compiled(compiled: Trace) -> None:
    assert names(capture(block_step("not"), compiled=True)) == names(compiled)


def test_a_gpu_without_triton_runs_the_step_as_it_is_written() -> None:
    trace = capture(block_step("module"), gpu=device("p100-pcie-16gb"))
    assert not any(name.startswith("inductor.") for name in names(trace))
    assert "torch.compile was ignored; the step was traced as eager PyTorch" in trace.notes
    assert any("compute capability 7.0" in note for note in trace.notes)


class Breaking(nn.Module):
    """A module with everything that breaks a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        print(end="")
        x = x * x.sum().item()
        if x.mean() > 0:
            x = x + 1
        shown = np.asarray(x.detach().cpu().tolist())
        return self.second(x) * float(shown.mean())


def test_each_graph_break_is_noted_with_its_line_and_reason() -> None:
    def make_step() -> Step:
        model = Breaking().cuda()
        call = torch.compile(model)
        x = torch.randn(32, 64, device="cuda")
        return lambda: call(x).sum().backward()

    trace = capture(make_step)
    breaks = [note for note in trace.notes if "graph break at" in note]
    first = Breaking.forward.__code__.co_firstlineno
    for offset, reason in ((2, "print"), (3, "item"), (4, "branch"), (6, "")):
        place = f"test_tracing.py:{first + offset}: "
        assert any(place in note and reason in note for note in breaks), (place, breaks)
    assert names(trace)["dynamo.guards"] >= 4
    assert names(trace)["aten._local_scalar_dense"] >= 2


def test_a_function_whose_graph_breaks_in_a_loop_is_named_in_the_title() -> None:
    def make_step() -> Step:
        layer = nn.Linear(64, 64).cuda()

        def loop(x: Any) -> Any:
            for _ in range(2):
                x = layer(x).relu()
                print(end="")
            return x.sum()

        compiled = torch.compile(loop)
        x = torch.randn(32, 64, device="cuda")
        return lambda: compiled(x).backward()

    trace = capture(make_step)
    assert names(trace)["aten.relu"] == 2
    assert any("leaves loop at" in note and "test_tracing.py" in note for note in trace.notes)
    assert eager_code(trace)


def test_code_that_cannot_be_compiled_is_traced_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise NotImplementedError("no such lowering")

    from wavecast.frameworks.pytorch.compiled import inductor

    monkeypatch.setattr(inductor, "lowered", fail)
    trace = capture(block_step("module"))
    assert names(trace)["aten.addmm"] == 4
    assert any("no such lowering" in note and "eager" in note for note in trace.notes)


def test_a_graph_that_fails_while_it_runs_is_eager_code_and_the_others_stay_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from wavecast.frameworks.pytorch.compiled import compiling

    result = compiling.GraphRun._result

    def fail(run: Any, *about: Any) -> Any:
        if any("mm" in planned.op.base for step in run.plan.steps for planned in step.ops):
            raise KeyError("buf7")
        return result(run, *about)

    def make_step() -> Step:
        layer = nn.Linear(64, 64).cuda()
        first = torch.compile(lambda x: layer(x).relu())
        second = torch.compile(lambda x: x.sigmoid().sum())
        x = torch.randn(32, 64, device="cuda")
        return lambda: second(first(x)).backward()

    monkeypatch.setattr(compiling.GraphRun, "_result", fail)
    trace = capture(make_step)
    assert names(trace)["aten.relu"] == names(trace)["aten.threshold_backward"] == 1
    assert names(trace)["inductor.call"] == 2
    assert any("(KeyError: 'buf7'); this code was traced as eager" in n for n in trace.notes)
    assert eager_code(trace) == "1 part could not be compiled: see the notes"


def orthogonal(gradient: Any) -> Any:
    """Muon's Newton-Schulz iteration: a matrix that is higher than wide is transposed before."""
    x = gradient.bfloat16()
    if gradient.size(0) > gradient.size(1):
        x = x.T
    for _ in range(2):
        square = x @ x.T
        x = 3.4 * x + (-4.8 * square + 2 * square @ square) @ x
    return x.T if gradient.size(0) > gradient.size(1) else x


SHAPES = ((384, 128), (256, 128), (128, 128), (128, 512), (192, 128), (384, 128))


@pytest.mark.parametrize(("dynamic", "breaks"), [(None, False), (None, True), (True, False)])
def test_code_that_is_called_with_several_sizes_has_the_kernels_of_each(
    dynamic: bool | None, breaks: bool
) -> None:
    """From the second size on, torch compiles for all sizes."""

    def update(weight: Any) -> Any:
        if breaks:
            print(end="")
        return orthogonal(weight)

    def make_step() -> Step:
        weights = [torch.randn(shape, device="cuda") for shape in SHAPES]
        compiled: Any = torch.compile(update, dynamic=dynamic)

        def step() -> None:
            for weight in weights:
                weight.sub_(compiled(weight))

        return step

    trace = capture(make_step)
    squares = [c.op for c in trace if c.op.base == "aten.mm"]
    shapes = [(min(shape), max(shape)) for shape in SHAPES for _ in range(2)]
    assert [op.inputs[0].shape for op in squares] == shapes
    assert not eager_code(trace)
    assert names(trace)["aten._to_copy"] == 0


def test_sizes_that_are_numbers_and_those_of_the_backward_pass_are_followed() -> None:
    def make_step() -> Step:
        weight = torch.randn(64, 128, device="cuda", requires_grad=True)
        compiled: Any = torch.compile(lambda rows: weight[:rows].mul(2).sin())

        def step() -> None:
            for rows in (8, 16, 24, 40):
                compiled(rows).backward(torch.ones(rows, 128, device="cuda"))

        return step

    fused = [c for c in capture(make_step) if c.op.base == "inductor.pointwise"]
    forward = [c.op.outputs[0].shape[0] for c in fused if c.phase is Phase.FORWARD]
    backward = [c.op.inputs[-1].shape[0] for c in fused if c.phase is Phase.BACKWARD]
    assert forward == [8, 16, 24, 40]
    assert set(forward) <= {*backward}


def test_an_error_of_the_compiler_outside_of_the_step_does_not_end_the_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from wavecast.frameworks.pytorch.compiled import inductor

    def fail(*_: Any) -> None:
        raise AttributeError("no such switch")

    monkeypatch.setattr(inductor, "_configured", fail)
    trace = capture(block_step("module"))
    assert names(trace)["aten.addmm"] == 4
    assert any("could not be followed (AttributeError" in note for note in trace.notes)


def test_an_error_of_the_step_stays_one() -> None:
    def make_step() -> Step:
        call = torch.compile(Block().cuda())
        x = torch.randn(4, 128, 8, device="cuda")
        return lambda: call(x).sum().backward()

    with pytest.raises(wavecast.CaptureError, match=r"test_tracing\.py"):
        capture(make_step)


def test_a_graph_that_must_not_break_and_does_stays_an_error() -> None:
    def make_step() -> Step:
        call = torch.compile(Breaking().cuda(), fullgraph=True)
        x = torch.randn(32, 64, device="cuda")
        return lambda: call(x).sum().backward()

    with pytest.raises(wavecast.CaptureError, match="Unsupported"):
        capture(make_step)


class Pooled(nn.Module):
    """Convolution in channels last, norm and pooling: its gradient is scattered into zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.norm, self.pool = nn.BatchNorm2d(64), nn.AdaptiveAvgPool2d(1)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(functional.relu(self.norm(self.conv(x))))
        return self.last(torch.flatten(x, 1))


def test_a_convolutional_net_in_channels_last_is_compiled() -> None:
    def make_step() -> Step:
        last = torch.channels_last
        model = Pooled().cuda().to(memory_format=last)
        call = torch.compile(model)
        x = torch.randn(8, 3, 32, 32, device="cuda").contiguous(memory_format=last)

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = call(x).float().sum()
            loss.backward()

        return step

    trace = capture(make_step)
    assert not trace.notes
    assert names(trace)["aten.convolution"] == 1
    assert names(trace)["aten.convolution_backward"] == 1


def test_the_backward_graph_has_the_layout_that_the_forward_graph_saved() -> None:
    """Inductor computes convolutions in channels last, although the code does not."""

    def make_step() -> Step:
        layers = [nn.Conv2d(128, 128, 3, padding=1) for _ in range(3)]
        call = torch.compile(nn.Sequential(*layers, nn.ReLU()).cuda())
        x = torch.randn(8, 128, 32, 32, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = call(x).float().sum()
            loss.backward()

        return step

    trace = capture(make_step)
    backward = [c.op for c in trace if c.op.name == "aten.convolution_backward"]
    assert len(backward) == 3
    assert all(tensor.channels_last for op in backward for tensor in op.inputs[1:3])


def vocabulary_step(words: int, width: int = 768) -> Callable[[], Step]:
    """The compiled last layer of a language model."""

    def make_step() -> Step:
        layer = nn.Linear(width, words, bias=False).cuda()
        call = torch.compile(lambda x, y: functional.cross_entropy(layer(x).float(), y))
        x = torch.randn(4096, width, device="cuda")
        y = torch.zeros(4096, dtype=torch.long, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = call(x, y)
            loss.backward()

        return step

    return make_step


def sides(trace: Trace) -> set[int]:
    """The sizes of all products."""
    products = [c.op for c in trace if c.op.name in ("aten.mm", "aten.addmm")]
    return {n for op in products for spec in op.inputs for n in spec.shape}


def test_products_that_are_not_aligned_are_padded_where_arithmetic_limits_them() -> None:
    padded = capture(vocabulary_step(50_257), gpu=device("h200-sxm"))
    assert 50_264 in sides(padded)
    assert 50_257 not in sides(padded)
    assert any("padded" in note for note in padded.notes)
    small = capture(vocabulary_step(1_001, width=64), gpu=device("h200-sxm"))
    assert 1_001 in sides(small)
    assert not small.notes


def test_aligned_products_stay_as_they_are() -> None:
    trace = capture(vocabulary_step(50_304), gpu=device("h200-sxm"))
    assert 50_304 in sides(trace)
    assert not trace.notes


@pytest.mark.slow
def test_a_layer_of_torch_that_a_trace_replaces_is_compiled_as_well() -> None:
    def make_step() -> Callable[[], None]:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).cuda()
        x = torch.randn(2, 4, 16, device="cuda")
        return lambda: model(x).sum().backward()

    trace = wavecast.trace(make_step, compiled=True)
    assert not any("graph break" in note for note in trace.notes)
    assert any(call.op.name == "inductor.persistent_reduction" for call in trace)


def test_a_module_that_torch_itself_leaves_eager_is_named() -> None:
    def make_step() -> Any:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda()
        model.compile()  # torch compiles no frame of its own classes
        x = torch.randn(32, 64, device="cuda")
        return lambda: model(x).sum().backward()

    notes = wavecast.trace(make_step).notes
    assert any("nothing was compiled" in note for note in notes)


# Graph breaks as notes: the user's line and one sentence.


_TORCH = torch.__file__


def noted_breaks(breaks: list[tuple[str, list[Any]]]) -> list[str]:
    from wavecast.frameworks.pytorch.compiled.compiling import breaks_as_notes  # slow to load

    return breaks_as_notes(breaks)


def test_a_note_names_the_innermost_line_of_the_user_and_the_reason() -> None:
    reason = "Failed\n  Explanation: Dynamo does not trace `print` with argument types ['str'].\n"
    frames = [FrameSummary("train.py", 41, "forward"), FrameSummary(_TORCH, 7, "call")]
    expected = "torch.compile: graph break at train.py:41: Dynamo does not trace `print`"
    assert noted_breaks([(reason, frames)]) == [expected]


def test_equal_breaks_are_noted_once() -> None:
    frames = [FrameSummary("train.py", 41, "forward")]
    breaks = [("generic_jump TensorVariable()", frames)] * 2
    assert noted_breaks(breaks) == [
        "torch.compile: graph break at train.py:41: a branch depends on the values of a tensor"
    ]


def test_a_break_inside_a_library_is_noted_where_the_user_called_it() -> None:
    reason = "aten._local_scalar_dense"
    inside = [FrameSummary(_TORCH, 7, "call")]
    notes = noted_breaks([(reason, [FrameSummary("a.py", 1, "f"), *inside]), (reason, inside)])
    assert len(notes) == 1
    assert "a.py:1: a value is read from the GPU" in notes[0]


def test_a_line_of_a_library_is_named_without_the_folder_of_the_libraries() -> None:
    frames = [FrameSummary(_TORCH, 7, "call")]
    assert noted_breaks([("generic_jump TensorVariable()", frames)]) == [
        "torch.compile: graph break at torch/__init__.py:7: a branch depends on the values of a "
        "tensor"
    ]


def test_a_note_does_not_tell_the_folders_of_a_machine() -> None:
    reason = "Explanation: the function `f` in file `/somewhere/mine/src/net.py` is not traced."
    [note] = noted_breaks([(reason, [])])
    assert "`f` in file `net.py`" in note


# Which products are padded, compared with what torch 2.11 padded on an H200.


BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2}
WIDTH = 768
TARGET = target_of(device("h200-sxm"), (9, 0))


def padded(precision: str, product: str, rows: int, words: int) -> bool:
    """Whether a product of a model's last layer is padded: the forward one, or a gradient."""
    size = BYTES[precision]
    weights, scores = size * WIDTH * words, size * rows * words
    is_cast = precision == "bfloat16"  # autocast makes the weights anew, so they can be planned
    sizes, operands = {
        "forward": ((rows, WIDTH, words), (Operand(weights, False, False),)),
        "of input": (
            (rows, words, WIDTH),
            (Operand(scores, True, True), Operand(weights, is_cast, True)),
        ),
        "of weights": ((words, rows, WIDTH), (Operand(scores, False, False),)),
    }[product]
    return is_faster_padded(TARGET, precision, (1, *sizes), operands)


@pytest.mark.parametrize(
    ("precision", "rows", "words", "measured"),
    [
        ("bfloat16", 4096, 50_257, (True, True, True)),
        ("bfloat16", 8192, 50_257, (True, True, True)),
        ("bfloat16", 8192, 30_522, (True, True, False)),
        ("tf32", 2048, 50_257, (True, True, False)),
        ("tf32", 2048, 50_265, (True, True, False)),
        ("tf32", 1024, 50_257, (False, True, False)),
        ("tf32", 1024, 50_265, (False, True, False)),
        ("float32", 1024, 30_522, (False, False, False)),
        ("float32", 2048, 30_522, (False, False, False)),
    ],
)
def test_products_with_a_vocabulary_are_padded_as_on_an_h200(
    precision: str, rows: int, words: int, measured: tuple[bool, bool, bool]
) -> None:
    products = ("forward", "of input", "of weights")
    assert tuple(padded(precision, p, rows, words) for p in products) == measured


def test_a_small_product_does_not_pay_for_a_copy() -> None:
    operand = Operand(2 * 64 * 65, is_planned=False, is_contiguous=True)
    assert not is_faster_padded(TARGET, "bfloat16", (1, 64, 64, 65), (operand,))


# Fake tensors as the compiler sees them.


def test_views_stay_views_of_each_other_and_memory_keeps_its_size() -> None:
    from wavecast.frameworks.pytorch.compiled.dynamo import share_memory

    with FakeTensorMode():
        base, other = torch.empty(4, 6), torch.empty(4, 6)
        other.untyped_storage().resize_(0)  # as of a weight that is not gathered yet
    copies = []
    for value in (base, base.t()[1:], other):
        with no_dispatch():
            copy = torch.empty_strided(value.shape, value.stride(), device="meta")
            share_memory(copy, value)
        assert (copy.shape, copy.stride()) == (value.shape, value.stride())
        copies.append(copy)
    whole, view, gathered = (copy.untyped_storage() for copy in copies)
    assert whole._cdata == view._cdata == base.untyped_storage()._cdata
    assert copies[1].storage_offset() == 1
    assert gathered.nbytes() == 96
    assert other.untyped_storage().nbytes() == 0
