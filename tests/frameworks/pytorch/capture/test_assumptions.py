"""Results that depend on data: sizes are upper bounds, values are assumed, and notes say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Step, calls_of, forward, mlp, names, training
from torch import nn

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.capture.values.host_values import known_values
from wavecast.ops.costs import cost_of
from wavecast.traces.step import Phase, Trace

EAGER = "torch.compile was ignored; the step was traced as eager PyTorch"


def _kinds(trace: Trace) -> list[str]:
    """What was assumed in each note: a size or a value."""
    assert all("test_assumptions.py:" in note for note in trace.notes)
    assert all(note.endswith(" was assumed") for note in trace.notes)
    return ["size" if "upper bound" in note else "value" for note in trace.notes]


@pytest.mark.parametrize(
    ("run", "largest"),
    [
        (lambda x: x[x > 0], 64),
        (lambda x: x[(x > 0).any(1)], 64),
        (lambda x: torch.masked_select(x, x > 0), 64),
        (lambda x: x[torch.where(x > 0)], 64),
        (lambda x: x.flatten()[(x > 0).flatten().nonzero()], 64),
        (lambda x: x.flatten()[(x > 0).flatten().nonzero(as_tuple=True)[0]], 64),
        (lambda x: x.detach().unique(), 64),
        (lambda x: torch.unique(x.detach(), dim=0), 64),
        (lambda x: torch.unique_consecutive(x.detach()), 64),
    ],
)
def test_sizes_that_depend_on_data_are_upper_bounds(run: Callable[..., Any], largest: int) -> None:
    sizes: list[int] = []

    def measured(x: Any) -> Any:
        out = run(x)
        sizes.append(out.numel())
        return out

    trace = forward(measured, (8, 8))
    assert sizes[-1] == largest
    assert _kinds(trace) == ["size"]
    assert any(call.syncs for call in trace)


UNIQUE: dict[str, Callable[[Any], Any]] = {
    "values": lambda x: torch.unique(x),
    "counts": lambda x: torch.unique(x, return_counts=True),
    "inverse": lambda x: torch.unique(x, return_inverse=True),
    "rows": lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
    "columns": lambda x: torch.unique(x, dim=-1, return_inverse=True, return_counts=True),
    "runs": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "runs of columns": lambda x: torch.unique_consecutive(
        x, return_inverse=True, return_counts=True, dim=1
    ),
    "only columns": lambda x: torch.unique_consecutive(x, dim=1),
}


@pytest.mark.parametrize("case", UNIQUE)
def test_unique_values_have_the_shapes_of_a_tensor_without_repetitions(case: str) -> None:
    shapes: list[Any] = []

    def run(x: Any) -> None:
        out = UNIQUE[case](x)
        shapes.append([tuple(t.shape) for t in (out if isinstance(out, tuple) else (out,))])

    def make_step() -> Step:
        x = torch.randint(0, 9, (3, 5, 4), device="cuda")
        return lambda: run(x)

    trace = capture(make_step)
    run(torch.arange(60).view(3, 5, 4))
    assert shapes[0] == shapes[1] == shapes[2]
    assert _kinds(trace) == ["size"]
    assert any(call.syncs for call in trace)


def test_clusters_of_an_adaptive_softmax_take_all_rows_if_targets_are_unknown() -> None:
    def rows(targets: Callable[[], Any]) -> list[int]:
        def make_step() -> Step:
            layer = nn.AdaptiveLogSoftmaxWithLoss(64, 20, [4, 9]).cuda()
            x, y = torch.randn(6, 64, device="cuda"), targets()
            return lambda: layer(x, y).loss.backward()

        taken = calls_of(capture(make_step), "aten.index_select")
        return [c.op.outputs[0].shape[0] for c in taken if c.phase is Phase.FORWARD]

    assert rows(lambda: torch.randint(0, 20, (6,), device="cuda")) == [6, 6]
    assert rows(lambda: torch.tensor([0, 1, 5, 10, 11, 12]).cuda()) == [1, 3]


def test_tensors_are_assumed_to_be_close() -> None:
    def compared(x: Any) -> Any:
        assert torch.allclose(x, x.detach(), atol=1e-6)
        return x * 2

    trace = forward(compared, (10, 8))
    assert any("compares two GPU tensors at" in note for note in trace.notes)
    [call] = calls_of(trace, "aten.allclose")
    assert call.syncs
    # The same kernels, one by one.
    one_by_one = forward(lambda x: (torch.isclose(x, x.detach()).all(), x * 2)[1], (10, 8))
    others = forward(lambda x: x * 2, (10, 8))
    for field in ("flops", "read_bytes", "written_bytes"):
        many, few, cost = (
            sum(getattr(cost_of(op), field) for op in ops)
            for ops in ([c.op for c in one_by_one], [c.op for c in others], [call.op])
        )
        assert cost == pytest.approx(many - few, rel=0.15), field


def test_values_are_assumed_under_a_default_device() -> None:
    def scaled(x: Any) -> Any:
        with torch.device("cuda"):
            values = torch.rand(3).tolist()
        assert len(values) == 3
        return x * values[0]

    trace = forward(scaled, (10, 8))
    assert calls_of(trace, "aten.mul")


def test_parts_whose_sizes_are_read_back_are_equal() -> None:
    def experts(x: Any) -> Any:
        tokens = torch.randint(0, 4, (4,), device="cuda").tolist()
        parts = x.split(tokens)
        assert [part.shape[0] for part in parts] == [3, 3, 2, 2]
        return torch.cat([part * 2 for part in parts])

    trace = forward(experts, (10, 8))
    assert any("the sizes of 4 parts at" in note for note in trace.notes)
    assert calls_of(trace, "aten.cat")[0].op.outputs[0].shape == (10, 8)


def test_wrong_sizes_of_parts_are_an_error() -> None:
    with pytest.raises(CaptureError, match="split_sizes to sum exactly to 10"):
        forward(lambda x: x.split([1, 1]), (10, 8))


def test_writing_under_a_mask_needs_no_bound() -> None:
    def run(x: Any) -> Any:
        y = x.clone()
        y[x > 0] = 0.0
        return y

    assert forward(run, (8, 8)).notes == ()


def test_masks_that_are_known_select_exactly() -> None:
    def run(x: Any) -> Any:
        keep = torch.tensor([True, False] * 4, device="cuda")
        return x[keep]

    trace = forward(run, (8, 8))
    assert calls_of(trace, "aten.index")[0].op.outputs[0].shape == (4, 8)
    assert trace.notes == ()


def test_a_detectors_postprocessing_is_bounded() -> None:
    def run(scores: Any, boxes: Any) -> Any:
        keep = (scores.sigmoid() > 0.5).nonzero().squeeze(1)
        kept = boxes[keep]
        order = scores[keep].argsort(descending=True)[:100]
        return kept[order].clamp(0, 1)

    trace = forward(run, (256,), (256, 4))
    assert calls_of(trace, "aten.index")[0].op.outputs[0].shape == (256, 4)
    assert _kinds(trace) == ["size"]


def test_branches_take_the_assumed_value() -> None:
    def run(x: Any) -> Any:
        if torch.isnan(x).any():
            raise ValueError("this batch is skipped")
        return x * 2 if x.sum() > 0 else x * 3

    trace = forward(run, (8, 8))
    assert _kinds(trace) == ["value"] * 2
    assert sum(call.syncs for call in trace) == 2


def test_what_is_checked_to_hold_everywhere_is_assumed_to() -> None:
    def run(x: Any) -> Any:
        assert (x > 0).all()
        # By default it checks its arguments only until torch.compile is called for the first time.
        return torch.distributions.Normal(x, 1.0, validate_args=True).rsample()

    assert _kinds(forward(run, (8, 8))) == ["value"] * 2


def test_a_bound_that_is_not_known_is_an_error_that_names_op_and_line() -> None:
    with pytest.raises(CaptureError, match=r"aten\.\w+.* at .*test_assumptions\.py:\d+"):
        forward(lambda x: x.repeat_interleave(x[0].detach().long(), 0), (8, 8))


def test_a_compiled_function_is_traced_as_eager_and_said_so() -> None:
    def make_step() -> Step:
        model = torch.compile(mlp().cuda(), backend="eager")
        x = torch.randn(4, 8, device="cuda")
        return lambda: model(x).sum().backward()

    trace = capture(make_step)
    assert names(trace)["aten.addmm"] == 2
    assert list(trace.notes) == [EAGER]


@pytest.mark.parametrize("how", ["module", "method", "function", "decorator"])
def test_what_was_compiled_before_tracing_is_traced_as_eager(how: str) -> None:
    model = mlp()
    call: Any = model
    if how == "module":
        call = torch.compile(model, backend="eager")
    elif how == "method":
        model.compile(backend="eager")
    elif how == "function":
        call = torch.compile(lambda x: model(x), backend="eager")
    else:

        @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
        def call(x: Any) -> Any:
            return model(x)

    def make_step() -> Step:
        model.cuda()
        x = torch.randn(4, 8, device="cuda")
        return lambda: call(x).sum().backward()

    trace = capture(make_step)
    assert [c.module for c in calls_of(trace, "aten.addmm")] == ["Sequential.0", "Sequential.2"]
    assert list(trace.notes) == [EAGER]


def test_notes_are_those_of_the_recorded_step() -> None:
    def make_step() -> Step:
        step = training(mlp)()
        torch.randn(4, device="cuda").sum().item()
        return step

    assert capture(make_step).notes == ()


def test_module_compile_inside_make_step_is_noted() -> None:
    def make_step() -> Step:
        model, x = nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
        model.compile(backend="eager")
        return lambda: model(x).sum().backward()

    assert list(capture(make_step).notes) == [EAGER]


# Masks of chosen classes: each class is assumed to be chosen as often as any other.


TOKENS, CHOSEN, EXPERTS = 48, 2, 8
EVEN = TOKENS * CHOSEN // EXPERTS


def _one_hot(scores: Any) -> Any:
    chosen = scores.topk(CHOSEN).indices
    return torch.where(F.one_hot(chosen, EXPERTS).permute(2, 1, 0)[3])[1]


def _compared(scores: Any) -> Any:
    return torch.where(scores.topk(CHOSEN, dim=1)[1] == 3)[0]


def _any(scores: Any) -> Any:
    return (scores.topk(CHOSEN).indices == 3).any(-1).nonzero()


def _scattered(scores: Any) -> Any:
    chosen = torch.zeros_like(scores).scatter_(1, scores.topk(CHOSEN).indices, 1.0)
    return (chosen[:, 3] > 0).nonzero()


def _selected(scores: Any) -> Any:
    return scores[:, 0][(F.one_hot(scores.topk(CHOSEN).indices, EXPERTS).sum(1) > 0)[:, 3]]


@pytest.mark.parametrize("find", [_one_hot, _compared, _any, _scattered, _selected])
def test_an_expert_gets_the_tokens_of_an_even_choice(find: Callable[[Any], Any]) -> None:
    counts: list[int] = []

    def run(scores: Any) -> Any:
        counts.append(len(find(scores.detach())))
        return scores

    trace = forward(run, (TOKENS, EXPERTS))
    assert counts[-1] == EVEN
    assert len(trace.notes) == 1
    assert f"an even choice, {EVEN} of " in trace.notes[0]


def test_a_step_goes_through_all_experts() -> None:
    experts: list[list[int]] = []

    def run(scores: Any) -> Any:
        chosen = F.one_hot(scores.detach().topk(CHOSEN).indices, EXPERTS)
        experts.append([int(expert) for expert in (chosen.sum((0, 1)) > 0).nonzero()])
        return scores

    forward(run, (TOKENS, EXPERTS))
    assert experts[-1] == list(range(EXPERTS))


def test_the_largest_of_all_values_is_one_choice() -> None:
    counts: list[int] = []

    def run(scores: Any) -> Any:
        counts.append(len(torch.where(scores.detach().argmax(1) == 2)[0]))
        return scores

    forward(run, (TOKENS, EXPERTS))
    assert counts[-1] == TOKENS // EXPERTS


def test_a_mask_of_no_choice_keeps_its_upper_bound() -> None:
    counts: list[int] = []

    def run(scores: Any) -> Any:
        best = scores.detach().topk(CHOSEN)
        counts.append(len((best.values > 0).nonzero()))
        return scores

    trace = forward(run, (TOKENS, EXPERTS))
    assert counts[-1] == TOKENS * CHOSEN
    assert "upper bound" in trace.notes[0]


# Loops that end by a value that nobody knows run to their bound.


ROUNDS = 6
END = 5


def _truth(value: bool) -> Any:
    return torch.full((4,), value, device="cuda")


def for_and_break(ended: Callable[[], Any]) -> None:
    finished = _truth(False)
    for _ in range(ROUNDS):
        finished |= ended()
        if finished.all():
            break


def while_not_all(ended: Callable[[], Any]) -> None:
    finished, length = _truth(False), 0
    while not finished.all() and length < ROUNDS:
        finished, length = finished | ended(), length + 1


def while_any(ended: Callable[[], Any]) -> None:
    unfinished, length = _truth(True), 0
    while length < ROUNDS and unfinished.any().item():
        unfinished, length = unfinished & ~ended(), length + 1


def one_of_two_ends(ended: Callable[[], Any]) -> None:
    finished, length = _truth(False), 0
    while True:
        finished, length = finished.logical_or(ended()), length + 1
        if bool(torch.all(finished)) or length >= ROUNDS:
            break


def two_ends(ended: Callable[[], Any]) -> None:
    finished, length = _truth(False), 0
    while True:
        finished, length = finished | ended(), length + 1
        if finished.all():
            return
        elif length >= ROUNDS:
            break


def goes_on_in_a_branch(ended: Callable[[], Any]) -> None:
    finished = _truth(False)
    for _ in range(ROUNDS):
        finished = finished | ended()
        if not finished.all():
            continue
        else:
            break


def length_in_the_mask(ended: Callable[[], Any]) -> None:
    """As transformers does: that the length is reached is one of the reasons to be finished."""
    unfinished, length, is_over = torch.ones(4, dtype=torch.long, device="cuda"), 0, False
    while not is_over:
        length += 1
        unfinished = unfinished & ~(_truth(length >= ROUNDS) | ended())
        is_over = unfinished.max() == 0


@pytest.mark.parametrize(
    "loop",
    [
        for_and_break,
        while_not_all,
        while_any,
        one_of_two_ends,
        two_ends,
        goes_on_in_a_branch,
        length_in_the_mask,
    ],
)
def test_a_loop_runs_to_its_bound(loop: Callable[..., None]) -> None:
    trace = forward(lambda x: loop(lambda: x.argmax(-1) == END), (4, 8))
    assert len(calls_of(trace, "aten.argmax")) == ROUNDS
    assert any("was assumed" in note for note in trace.notes)


def test_a_note_says_that_a_loop_runs_to_its_bound() -> None:
    trace = forward(lambda x: for_and_break(lambda: x.argmax(-1) == END), (4, 8))
    assert trace.notes[0].endswith("False was assumed, so that a loop runs to its bound")


def test_a_loop_without_a_bound_ends_as_before() -> None:
    def wait(x: Any) -> None:
        finished = _truth(False)
        while not finished.all():
            finished = x.argmax(-1) == END

    trace = forward(wait, (4, 8))
    assert len(calls_of(trace, "aten.argmax")) == 1
    assert trace.notes[0].endswith("True was assumed")


def test_a_condition_outside_of_a_loop_is_as_before() -> None:
    seen = []

    def check(x: Any) -> None:
        for part in x.split(1):
            if (part > 0).all():
                seen.append(True)

    forward(check, (2, 8))
    assert all(seen)
    assert seen


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda x, known: x & known(False), 0),
        (lambda x, known: known(False).logical_and(x), 0),
        (lambda x, known: x | known(True), 1),
        (lambda x, known: x.logical_or_(known(True)), 1),
        (lambda x, known: x.long() * known(False), 0),
        (lambda x, known: x | known(False), None),
        (lambda x, known: x & known(True), None),
        (lambda x, known: x.float() * known(False), None),  # infinity times 0 is no number
        (lambda x, known: x.long() | known(True).long(), None),
    ],
)
def test_one_known_argument_may_decide_the_result(function: Any, value: int | None) -> None:
    seen = []

    def run(x: Any) -> None:
        result = known_values(function(x > 0, _truth))
        seen.append(None if result is None else result.tolist())

    forward(run, (2, 4))
    assert seen[-1] == (None if value is None else [[value] * 4] * 2)


def test_a_decided_result_is_forgotten_when_it_is_written_to() -> None:
    def run(x: Any) -> None:
        decided = (x > 0) | _truth(True)
        assert decided.all()
        decided.copy_(x > 1)
        assert known_values(decided) is None

    forward(run, (2, 4))
