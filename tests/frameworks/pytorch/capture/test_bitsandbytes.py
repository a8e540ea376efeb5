"""bitsandbytes' layers and optimizers, traced with the package itself."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step, minimize, names
from torch._subclasses.fake_tensor import FakeTensor

import wavecast
from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.capture.bitsandbytes_ops import LARGEST_FUSED
from wavecast.traces.step import Phase, Trace

bnb = pytest.importorskip("bitsandbytes")

WIDTH, OUT, ROWS = 320, 512, 1024
BLOCK, OUTER_BLOCK = 64, 256


def step_of(layer: Callable[[], Any], rows: int = ROWS, optimizer: Any = None) -> Trace:
    """The trace of a plain layer that trains, before a layer of bitsandbytes that may not."""

    def make_step() -> Step:
        first = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        network = torch.nn.Sequential(first, layer()).cuda()
        inputs = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        trained = [p for p in network.parameters() if p.requires_grad]
        make = optimizer or torch.optim.SGD
        return minimize(lambda: network(inputs).sum(), make(trained, lr=0.1))

    return capture(make_step)


def four_bits(**options: Any) -> Any:
    return bnb.nn.Linear4bit(
        WIDTH, OUT, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", **options
    )


def of_bitsandbytes(trace: Trace, phase: Phase) -> list[str]:
    return [
        call.op.name for call in trace if call.phase is phase and "bitsandbytes" in call.op.name
    ]


def test_a_4bit_weight_is_copied_in_full_for_each_pass() -> None:
    trace = step_of(four_bits)
    unpacking = ["bitsandbytes.dequantize_blockwise", "bitsandbytes.dequantize_4bit"]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert of_bitsandbytes(trace, phase) == unpacking
    unpacked = next(c.op for c in trace if c.op.base == "bitsandbytes.dequantize_4bit")
    assert unpacked.inputs[0].nbytes == WIDTH * OUT // 2
    assert unpacked.outputs[0].shape == (OUT, WIDTH)
    product = next(c.op for c in trace if c.op.base == "aten.mm")
    assert [t.shape for t in product.inputs] == [(ROWS, WIDTH), (WIDTH, OUT)]


def test_single_scales_need_no_unpacking() -> None:
    trace = step_of(lambda: four_bits(compress_statistics=False))
    assert of_bitsandbytes(trace, Phase.FORWARD) == ["bitsandbytes.dequantize_4bit"]


def test_few_rows_run_in_one_fused_kernel() -> None:
    trace = step_of(four_bits, rows=LARGEST_FUSED)
    assert of_bitsandbytes(trace, Phase.FORWARD) == ["bitsandbytes.gemm_4bit"]
    assert of_bitsandbytes(step_of(four_bits, rows=LARGEST_FUSED + 1), Phase.FORWARD) != [
        "bitsandbytes.gemm_4bit"
    ]


def test_4bit_weights_take_half_a_byte_and_their_scales() -> None:
    plain = 2 * (WIDTH * WIDTH + WIDTH)
    blocks = WIDTH * OUT // BLOCK
    scales = blocks + 4 * blocks // OUTER_BLOCK
    tables = 4 * (16 + 256 + 1)  # of NF4, of the scales' 8 bits, and the scales' mean
    weights = wavecast.memory(step_of(four_bits)).by_kind["weights"]
    assert weights == plain + WIDTH * OUT // 2 + scales + tables


def test_fake_weights_are_like_real_ones() -> None:
    real = four_bits().to("cpu").weight
    seen: list[Any] = []

    def make_step() -> Step:
        layer = four_bits().cuda()
        seen.append(layer.weight)
        assert isinstance(layer.weight, bnb.nn.Params4bit)
        assert isinstance(layer.weight, torch.nn.Parameter)
        assert type(layer.weight).__name__ == "Params4bit"  # peft asks for the name
        assert layer.weight.device.type == "cuda"
        source = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
        return lambda: layer(source).sum().backward()

    capture(make_step)
    fake, state, real_state = seen[0], seen[0].quant_state, real.quant_state
    for ours, theirs in (
        (fake, real),
        (state.absmax, real_state.absmax),
        (state.state2.absmax, real_state.state2.absmax),
        (state.code, real_state.code),
    ):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


def test_8bit_weights_are_multiplied_as_int8() -> None:
    trace = step_of(lambda: bnb.nn.Linear8bitLt(WIDTH, OUT, has_fp16_weights=False))
    assert of_bitsandbytes(trace, Phase.FORWARD) == [
        "bitsandbytes.int8_vectorwise_quant",
        "bitsandbytes.int8_linear_matmul",
        "bitsandbytes.int8_mm_dequant",
    ]
    product = next(c.op for c in trace if c.op.base == "bitsandbytes.int8_linear_matmul")
    assert [(t.shape, t.dtype) for t in product.inputs] == [
        ((ROWS, WIDTH), "int8"),
        ((OUT, WIDTH), "int8"),
    ]
    weights = wavecast.memory(trace).by_kind["weights"]
    assert weights == 2 * (WIDTH * WIDTH + WIDTH) + WIDTH * OUT + 4 * OUT + 2 * OUT


def test_outliers_are_looked_for_on_the_gpu_and_none_is_assumed() -> None:
    def layer() -> Any:
        return bnb.nn.Linear8bitLt(WIDTH, OUT, has_fp16_weights=False, threshold=6.0)

    trace = step_of(layer)
    assert "aten._local_scalar_dense" in names(trace)
    assert any("False was assumed" in note for note in trace.notes)


def test_8bit_weights_that_train_get_a_gradient() -> None:
    trace = step_of(lambda: bnb.nn.Linear8bitLt(WIDTH, OUT, has_fp16_weights=True))
    products = [c.op for c in trace if c.op.base == "bitsandbytes.int8_linear_matmul"]
    assert [t.shape for t in products[1].inputs] == [(OUT, ROWS), (WIDTH, ROWS)]


@pytest.mark.parametrize("name", ["AdamW8bit", "PagedAdamW8bit"])
def test_8bit_optimizers_keep_two_bytes_for_each_weight(name: str) -> None:
    trace = step_of(torch.nn.Identity, optimizer=getattr(bnb.optim, name))
    assert set(of_bitsandbytes(trace, Phase.OPTIMIZER)) == {
        "bitsandbytes.optimizer_update_8bit_blockwise",  # the matrix
        "bitsandbytes.optimizer_update_32bit",  # the bias is small
    }
    weights = WIDTH * WIDTH
    scales = 2 * 4 * weights // OUTER_BLOCK
    tables = 2 * 4 * 256
    state = wavecast.memory(trace).by_kind["optimizer state"]
    assert state == 2 * weights + scales + tables + 2 * 4 * WIDTH
    assert any("paged" in note for note in trace.notes) == name.startswith("Paged")


def test_everything_is_answered_but_marked_as_unseen() -> None:
    prediction = wavecast.predict(step_of(four_bits), "h100-sxm-80gb")
    assert not prediction.unpredicted
    sources = {
        estimate.source
        for op, estimate in prediction.estimates.items()
        if estimate and op.base.startswith("bitsandbytes.")
    }
    assert sources == {"learned, op unseen"}


def test_int8_products_are_answered_where_the_rate_is_known() -> None:
    trace = step_of(lambda: bnb.nn.Linear8bitLt(WIDTH, OUT, has_fp16_weights=False))
    assert not wavecast.predict(trace, "h100-sxm-80gb").unpredicted
    assert set(wavecast.predict(trace, "v100-sxm-16gb").unpredicted) == {
        "bitsandbytes.int8_linear_matmul"
    }


def test_a_trace_leaves_no_tensor_behind() -> None:
    def fake_tensors() -> list[object]:
        gc.collect()
        return [o for o in gc.get_objects() if issubclass(type(o), FakeTensor)]

    before = fake_tensors()  # of other tests, kept so that their ids are not used again
    step_of(four_bits, optimizer=bnb.optim.PagedAdamW8bit)
    assert {id(o) for o in fake_tensors()} <= {id(o) for o in before}


def test_bitsandbytes_works_as_before_after_tracing() -> None:
    before = torch.Tensor._make_subclass, bnb.functional.get_paged
    step_of(four_bits)
    assert (torch.Tensor._make_subclass, bnb.functional.get_paged) == before
    layer = four_bits().to("cpu")
    assert type(layer.weight) is bnb.nn.Params4bit
    assert torch.isfinite(layer(torch.randn(2, WIDTH))).all()


IMPORTED_WHILE_TRACING = """
import sys
import torch
import wavecast

def make_step():
    import bitsandbytes as bnb
    layer = bnb.nn.Linear4bit(256, 512, quant_type="nf4").cuda()
    source = torch.randn(1024, 256, device="cuda", requires_grad=True)
    return lambda: layer(source).sum().backward()

for _ in range(2):  # what one trace leaves behind must not disturb the next
    trace = wavecast.trace(make_step)
    assert "bitsandbytes.dequantize_4bit" in {call.op.base for call in trace}
    assert not trace.notes, trace.notes

import bitsandbytes
assert not torch.cuda.is_available()
assert type(bitsandbytes.backends.utils._NF4_QUANT_TABLE) is torch.Tensor
"""


@pytest.mark.slow
def test_a_step_may_import_bitsandbytes_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_WHILE_TRACING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
