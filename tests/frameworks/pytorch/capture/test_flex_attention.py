"""flex_attention is traced as one kernel each way, which skips the empty blocks of its mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step, calls_of, names
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import wavecast
from wavecast import ops
from wavecast.frameworks.pytorch.capture import capture
from wavecast.steps.request import predict
from wavecast.traces.step import Trace

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
LENGTH, WIDTH, HEADS = 512, 32, 4
BLOCK = 128
BLOCKS = LENGTH // BLOCK


def _trace(mask: Any = None, score: Any = None, heads: int = HEADS, length: int = LENGTH) -> Trace:
    def make_step() -> Step:
        shape = (2, HEADS, length, WIDTH)
        query = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        key, value = (
            torch.randn(2, heads, length, WIDTH, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        )
        blocks = create_block_mask(mask(), None, None, length, length) if mask else None
        attend = torch.compile(flex_attention)
        change = score() if score else None

        def step() -> None:
            out = attend(
                query, key, value, score_mod=change, block_mask=blocks, enable_gqa=heads != HEADS
            )
            assert out.shape == shape
            out.sum().backward()
            assert query.grad.shape == shape

        return step

    return capture(make_step)


def _causal() -> Any:
    return lambda b, h, q, k: q >= k


def _pairs(trace: Trace) -> Any:
    (call,) = calls_of(trace, "flex_attention")
    return call.op.attr("attended_pairs")


def test_it_is_one_op_each_way_and_has_a_time() -> None:
    trace = _trace()
    assert names(trace)["flex_attention"] == names(trace)["flex_attention_backward"] == 1
    assert _pairs(trace) == LENGTH**2
    assert not ops.totals(trace).unknown
    assert not predict(trace, "h100-sxm-80gb").unpredicted
    forward = calls_of(trace, "flex_attention")[0].op
    assert ops.executed_flops(forward) == 4 * 2 * HEADS * LENGTH**2 * WIDTH


def test_empty_blocks_of_a_mask_are_skipped() -> None:
    whole, causal = _trace(), _trace(mask=_causal)
    blocks = LENGTH // BLOCK
    assert _pairs(causal) == blocks * (blocks + 1) // 2 * BLOCK**2
    for base in ("flex_attention", "flex_attention_backward"):
        more, fewer = (ops.executed_flops(calls_of(t, base)[0].op) or 0 for t in (whole, causal))
        assert fewer * blocks * 2 == more * (blocks + 1) > 0
    assert "torch.compile was ignored" in causal.notes[0]


def test_a_long_mask_is_looked_at_in_some_rows_of_each_block() -> None:
    length, blocks = 8192, 8192 // BLOCK
    assert _pairs(_trace(mask=_causal, length=length)) == blocks * (blocks + 1) // 2 * BLOCK**2


WINDOW = 64
TRIANGLE = BLOCKS * (BLOCKS + 1) // 2
BAND = 2 * BLOCKS - 1


def _of_documents(
    device: str = "cuda", causal: bool = False, window: Any = None, reads: bool = False
) -> Callable[[], Any]:
    """A mask of documents. On the host, each is one block long."""

    def mask() -> Any:
        if device == "cuda":
            document = torch.randint(0, 4, (LENGTH,), device=device)
        else:
            document = torch.arange(LENGTH).div(BLOCK, rounding_mode="floor").cuda()
        width = window() if callable(window) else window

        def is_open(_b: Any, _h: Any, q: Any, k: Any) -> Any:
            allowed = document[q] == document[k]
            if causal:
                allowed = (q >= k) & allowed
            if width is not None:
                allowed = torch.where(q - k < width, allowed, False)
            return allowed | (document.max().item() < 0) if reads else allowed

        return is_open

    return mask


@pytest.mark.parametrize(
    ("mask", "blocks", "fewest"),
    [
        (_of_documents(), BLOCKS**2, BLOCKS),
        (_of_documents(causal=True), TRIANGLE, BLOCKS),
        (_of_documents(causal=True, window=WINDOW), BAND, BLOCKS),
        (
            _of_documents(causal=True, window=lambda: torch.tensor(WINDOW, device="cuda")),
            BAND,
            BLOCKS,
        ),
        (_of_documents(causal=True, reads=True), BLOCKS**2, 0),
        (_of_documents("cpu", causal=True), BLOCKS, BLOCKS),
        (_of_documents("cpu"), BLOCKS, BLOCKS),
    ],
)
def test_blocks_that_no_data_can_open_are_skipped(mask: Any, blocks: int, fewest: int) -> None:
    trace = _trace(mask=mask)
    assert _pairs(trace) == blocks * BLOCK**2
    about = [note for note in trace.notes if "the mask of flex_attention at" in note]
    assert len(about) == (fewest < blocks)
    for note in about:
        assert f"between {fewest / BLOCKS**2:.1%} and {blocks / BLOCKS**2:.1%}" in note


def test_a_mask_that_lists_fewer_blocks_than_its_function_opens_computes_those() -> None:
    """As a sliding window does that cuts off the lists of blocks."""

    def attend_in(device: str) -> Trace:
        def make_step() -> Step:
            q = torch.randn(2, HEADS, LENGTH, WIDTH, device="cuda", requires_grad=True)
            document = torch.randint(0, 4, (LENGTH,), device="cuda")
            counts = torch.full((1, 1, BLOCKS), 2, dtype=torch.int32, device="cuda")
            if device == "cuda":
                counts = counts + document[0]
            indices = torch.zeros(1, 1, BLOCKS, 3, dtype=torch.int32, device="cuda")
            blocks = BlockMask.from_kv_blocks(
                counts,
                indices,
                mask_mod=lambda b, h, q, k: document[q] == document[k],
                seq_lengths=(LENGTH, LENGTH),
            )
            attend = torch.compile(flex_attention)
            return lambda: attend(q, q, q, block_mask=blocks).sum().backward()

        return capture(make_step)

    known, unknown = attend_in("cpu"), attend_in("cuda")
    assert _pairs(known) == 2 * BLOCKS * BLOCK**2
    assert _pairs(unknown) == 3 * BLOCKS * BLOCK**2
    assert not any("depends on data" in note for note in known.notes)


def test_outside_of_compiled_code_the_fused_kernel_is_an_assumption() -> None:
    def make_step() -> Step:
        q = torch.randn(2, HEADS, LENGTH, WIDTH, device="cuda", requires_grad=True)
        return lambda: flex_attention(q, q, q).sum().backward()

    trace = wavecast.trace(make_step)
    assert names(trace)["flex_attention"] == 1
    assert any("runs outside of compiled code" in note for note in trace.notes)


def test_a_learned_bias_of_the_scores_gets_a_gradient() -> None:
    biases = []

    def biased() -> Any:
        bias = torch.zeros(HEADS, device="cuda", requires_grad=True)
        biases.append(bias)
        return lambda score, b, h, q, k: score + bias[h]

    _trace(score=biased)
    assert biases[0].grad.shape == (HEADS,)


def test_heads_may_share_keys() -> None:
    (call,) = calls_of(_trace(heads=2), "flex_attention")
    assert [t.shape[1] for t in call.op.inputs] == [HEADS, 2, 2]
