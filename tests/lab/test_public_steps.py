"""Rebuilt public steps: models have their published sizes, and the steps can be traced."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import wavecast
from lab.measured import own_steps
from lab.measured.comparison import (
    Contender,
    Scored,
    kendall_tau,
    parts,
    rankings,
    read,
    score,
    summary,
)
from lab.measured.public_steps.case import Case, Traces
from lab.places import ROOT
from wavecast import Device, Estimate, Predictor, Trace
from wavecast.campaigns.suite_runs import run
from wavecast.predictors.attainable import Roofline
from wavecast.runs.suite_results import SuiteResult
from wavecast.traces.step import Op

torch = pytest.importorskip("torch")


def parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "training", "published"),
    [
        ("bert_large", True, 336_226_108),  # with both heads of pre-training
        ("bert_large", False, 335_143_938),  # 335,141,888 and a classifier of two
        ("gpt2_large", False, 774_030_080),
        # GPT-Neo 2.7B, which has no biases of query, key and value
        ("gpt3_27", False, 2_651_307_520 + 32 * 3 * 2560),
        ("opt_13", False, 1_315_758_080),
    ],
)
def test_transformers_have_their_published_size(model: str, training: bool, published: int) -> None:
    pytest.importorskip("transformers")
    from lab.measured.public_steps.neusight import MODELS, build

    with torch.device("meta"):
        assert parameters(build(MODELS[model], training)) == published


def test_ssd300_has_8732_boxes_and_the_size_of_its_parts() -> None:
    from lab.measured.public_steps.ssd import BOXES, CLASSES, SSD300

    with torch.device("meta"):
        model = SSD300()
        offsets, scores = model(torch.zeros(2, 3, 300, 300))
    assert offsets.shape == (2, 4, 8732)
    assert scores.shape == (2, CLASSES, 8732)
    assert parameters(model.backbone) == 25_557_032 - 14_964_736 - 2_049_000  # no conv5, no head
    channels = (1024, 512, 512, 256, 256, 256)
    heads = sum((9 * c + 1) * b * (4 + CLASSES) for c, b in zip(channels, BOXES, strict=True))
    assert parameters(model.offsets) + parameters(model.scores) == heads


def test_neumf_has_the_size_of_its_tables_and_layers() -> None:
    from lab.measured.public_steps.examples import NeuMF

    with torch.device("meta"):
        model = NeuMF()
    tables = (138_493 + 26_744) * (64 + 128)
    assert parameters(model) == tables + 257 * 256 + 257 * 128 + 129 * 64 + 129


CLASSIFIERS = """
import torch, wavecast
from lab.measured.public_steps.torchcnn_steps import build, make_step
for name in ("densenet121", "squeezenet1_0", "mnasnet1_0", "resnext50_32x4d"):
    print(name, sum(p.numel() for p in build(name).parameters()))
for copied in (True, False):
    trace = wavecast.trace(
        lambda: make_step("resnet18", "train", "fp16", 2, 64, copied, modern=True, autograd=True)
    )
    from_host = [c for c in trace if c.op.inputs and c.op.inputs[0].device == "cpu"]
    kinds = {c.op.inputs[0].dtype for c in trace if c.op.base == "aten.convolution"}
    print(copied, bool(from_host), kinds, [c.op.base for c in trace][-1])
"""


def test_classifiers_have_their_published_size_and_trace() -> None:
    """In a separate process, because torchvision must not be imported in this one."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLASSIFIERS],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "needs torchvision" in run.stderr:
        pytest.skip(run.stderr.splitlines()[-1])
    assert run.stdout.splitlines() == [
        "densenet121 7978856",
        "squeezenet1_0 1248424",
        "mnasnet1_0 4383312",
        "resnext50_32x4d 25028904",
        "True True {'float16'} cuda.synchronize",
        "False False {'float16'} cuda.synchronize",
    ], run.stderr


def _case(make_step: Callable[[], Callable[[], None]]) -> Case:
    return Case(
        *("a set", "t4", "a model", "a family", "fp32"),
        batch=1,
        layout="nchw",
        measured_s=1.0,
        make_step=make_step,
    )


def _without_a_library() -> Callable[[], None]:
    raise SystemExit("this step needs a library")


def _broken() -> Callable[[], None]:
    raise ValueError("no such model")


def test_a_missing_library_is_not_kept_as_a_failure(tmp_path: Path) -> None:
    traces, case = Traces(tmp_path), _case(_without_a_library)
    with pytest.raises(wavecast.WavecastError, match="needs a library"):
        traces.make(case)
    assert traces.failure(case) is None
    assert traces.make(_case(_broken)) is None
    assert "no such model" in str(traces.failure(case))


def names(trace: Trace) -> list[str]:
    return [call.op.base for call in trace]


def test_a_timed_pass_ends_with_a_wait_and_has_no_optimizer() -> None:
    pytest.importorskip("transformers")
    from lab.measured.public_steps.neusight import Size, make_step

    small = Size("gpt", 2, 64, 4, 64)
    trained = wavecast.trace(lambda: make_step(small, 2, 16, True))
    assert names(trained).count("cuda.synchronize") == 2  # after each pass
    assert names(trained)[-1] == "cuda.synchronize"
    assert not any("addcdiv" in name or "fused_adam" in name for name in names(trained))
    inferred = wavecast.trace(lambda: make_step(small, 2, 16, False))
    assert not any("backward" in name for name in names(inferred))
    # Gradients accumulate: nothing sets them to zero.
    assert "aten.add_" in names(trained)
    assert "aten.zero_" not in names(trained)


STEPS: dict[str, Callable[[Any], Any]] = {
    "bert": lambda examples: examples.bert_squad("base", 2, "amp_fp16", old=True, sequence=16),
    "ncf": lambda examples: examples.ncf(256, "amp_fp16", ""),
    "gnmt": lambda examples: examples.gnmt(2, "fp32", ""),
}


@pytest.mark.parametrize("name", STEPS)
def test_examples_trace(name: str) -> None:
    pytest.importorskip("transformers")
    from lab.measured.public_steps import examples

    trace = wavecast.trace(lambda: STEPS[name](examples))
    assert not wavecast.predict(trace, "v100-sxm-16gb").unpredicted


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_ssd300_traces(layout: str) -> None:
    from lab.measured.public_steps.examples import ssd300

    trace = wavecast.trace(lambda: ssd300(2, "amp_fp16", layout))
    assert not wavecast.predict(trace, "v100-sxm-16gb").unpredicted


def test_half_precision_of_apex_has_masters() -> None:
    from lab.measured.public_steps.recipes import half_step

    def make() -> Callable[[], Any]:
        model = torch.nn.Linear(8, 8).cuda()
        x = torch.randn(4, 8, device="cuda", dtype=torch.float16)
        return half_step(model, lambda: model(x).mean(), clip_norm=1.0)

    trace = wavecast.trace(make)
    updates = [call.op for call in trace if "fused_adam" in call.op.name]
    assert {spec.dtype for op in updates for spec in op.inputs} == {"float32"}
    assert {c.op.inputs[0].dtype for c in trace if c.op.base == "aten.addmm"} == {"float16"}


def test_a_copied_bias_is_the_same_sum_with_one_more_pass() -> None:
    from lab.measured.public_steps.recipes import copy_biases

    def make(*, copied: bool) -> Callable[[], Any]:
        model = torch.nn.Linear(8, 16).cuda()
        model = copy_biases(model) if copied else model
        x = torch.randn(4, 3, 8, device="cuda")
        return lambda: model(x).sum().backward()

    plain, other = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)
    other.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3, 8)
    assert torch.allclose(copy_biases(other)(x), plain(x), atol=1e-6)
    counts = [
        names(wavecast.trace(partial(make, copied=c))).count("aten.clone") for c in (False, True)
    ]
    assert counts == [0, 1]


def test_a_bias_of_its_own_pass_is_the_same_sum_with_one_more_add() -> None:
    hf = pytest.importorskip("transformers")
    from lab.measured.public_steps.recipes import add_biases_apart

    config = hf.BertConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=16
    )
    model = hf.BertModel(config).eval()
    tokens = torch.ones(2, 4, dtype=torch.int64)
    with torch.no_grad():
        plain = model(tokens).last_hidden_state
        assert torch.allclose(add_biases_apart(model)(tokens).last_hidden_state, plain, atol=1e-6)

    def make(*, apart: bool) -> Callable[[], Any]:
        inner = hf.models.bert.modeling_bert.BertIntermediate(config).cuda()
        inner = add_biases_apart(inner) if apart else inner
        x = torch.randn(2, 4, 8, device="cuda")
        return lambda: inner(x)

    traced = [names(wavecast.trace(partial(make, apart=apart))) for apart in (False, True)]
    assert [ops.count("aten.add") for ops in traced] == [0, 1]
    assert [ops.count("aten.addmm") for ops in traced] == [1, 0]


def test_clipping_waited_for_every_norm_once() -> None:
    from lab.measured.public_steps.recipes import LoopedAdam

    def make(*, old: bool) -> Callable[[], Any]:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
        optimizer = LoopedAdam(model.parameters(), old=old)
        x = torch.randn(4, 8, device="cuda")

        def step() -> None:
            model(x).sum().backward()
            optimizer.step()

        return step

    waits = [
        sum(call.syncs for call in wavecast.trace(partial(make, old=old))) for old in (False, True)
    ]
    assert waits == [0, 4]  # of two weights and two biases


def test_models_of_timm_are_chosen_by_size_alone() -> None:
    from lab.measured.public_steps.timm_steps import chosen

    def row(model: str, torch: str, params_m: float, **more: Any) -> dict[str, Any]:
        fixed = {"family": "net", "layout": "nchw", "precision": "amp_fp16", "compiled": False}
        return fixed | {"model": model, "torch": torch, "params_m": params_m, **more}

    rows = [row(f"net_{n}", "1.12", float(n)) for n in range(7)]
    rows += [row("net_3", "1.9", 3.0), row("net_9", "1.12", 9.0, compiled=True)]
    assert [(r["model"], r["torch"]) for r in chosen(rows)] == [("net_3", "1.12")]
    rows.append(row("net_7", "1.12", 7.0))
    assert [r["model"] for r in chosen(rows)] == ["net_4", "net_0"]


def test_lambda_takes_the_newest_torch_and_no_flagged_run(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from lab.measured.public_steps.lambda_steps import cases

    fixed = {
        "gpu": "RTX 3090",
        "task": "resnet50",
        "precision_effective": "tf32",
        "n_gpu": 1,
        "data": "synthetic",
        "flags": "",
    }
    rows = [
        fixed | {"torch": "1.9.0", "batch_per_gpu": 100, "throughput": 400},
        fixed | {"torch": "1.13.0a0", "batch_per_gpu": 100, "throughput": 500},
        fixed | {"torch": "1.9.0", "batch_per_gpu": 50, "throughput": 250},
        fixed | {"torch": "2.0", "batch_per_gpu": 100, "throughput": 9, "flags": "ran_single_gpu"},
        fixed | {"torch": "2.0", "batch_per_gpu": 100, "throughput": 9, "n_gpu": 2},
        fixed | {"torch": "2.0", "batch_per_gpu": 100, "throughput": 9, "data": "pytorch"},
    ]
    with (tmp_path / "lambda_throughput.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    by_batch = {case.batch: case for case in cases(tmp_path)}
    assert {batch: case.measured_s for batch, case in by_batch.items()} == {100: 0.2, 50: 0.2}
    assert by_batch[100].newest
    assert not by_batch[50].newest
    assert {batch: case.era for batch, case in by_batch.items()} == {100: "1.13", 50: "before 1.13"}


def test_our_own_results_of_the_suite_are_cases(tmp_path: Path) -> None:
    rows = [
        SuiteResult(
            "resnet50", 64, "bf16", "h200-sxm", "ok", seconds=0.03, gpu_s=0.02, host_s=0.01
        ),
        SuiteResult("gpt2", 8, "bf16", "h200-sxm", "oom"),
    ]
    given = iter(rows)
    run([row.configuration for row in rows], tmp_path / "suite.csv", lambda _: next(given), gpu="")
    (case,) = own_steps.cases(tmp_path)
    assert (case.set, case.model, case.batch, case.gpu) == (
        "h200 suite",
        "resnet50",
        64,
        "h200-sxm",
    )
    assert (case.measured_s, case.gpu_s) == (0.03, 0.02)


def make_linear() -> Callable[[], Any]:
    model = torch.nn.Linear(64, 64).cuda()
    x = torch.randn(32, 64, device="cuda")
    return lambda: model(x).sum().backward()


def make_attention() -> Callable[[], Any]:
    x = torch.randn(2, 4, 64, 32, device="cuda", requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(x, x, x).sum().backward()


def a_case(make_step: Any, gpu: str = "t4", measured_s: float = 1e-3, **more: Any) -> Case:
    fixed: dict[str, Any] = {"precision": "fp32", "batch": 32, "layout": ""}
    names = {"set": "made", "model": make_step.__name__, "family": make_step.__name__}
    return Case(gpu=gpu, measured_s=measured_s, make_step=make_step, **fixed, **names, **more)


def test_a_trace_is_kept_and_shared_by_gpus_unless_it_has_attention(tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    for make_step, files in ((make_linear, 1), (make_attention, 3)):
        for gpu in ("t4", "h100-sxm-80gb"):
            case = a_case(make_step, gpu)
            if traces.find(case) is None:
                traces.make(case)
            kept, here = traces.find(case), wavecast.trace(make_step, gpu=gpu)
            assert kept is not None
            assert [c.op for c in kept] == [c.op for c in here]
        assert len(list(tmp_path.glob("*.json.gz"))) == files


def test_a_failure_is_kept_with_its_reason(tmp_path: Path) -> None:
    def make_broken() -> Callable[[], Any]:
        raise RuntimeError("no such layer")

    traces = Traces(tmp_path)
    assert traces.make(a_case(make_broken)) is None
    assert "no such layer" in (traces.failure(a_case(make_broken)) or "")
    assert list(read([a_case(make_broken)], traces)) == []


def test_a_predictor_is_fitted_once_for_each_thing_left_out(tmp_path: Path) -> None:
    fitted_without = []

    def fit(left_out: str) -> Predictor:
        fitted_without.append(left_out)
        return Roofline()

    traces = Traces(tmp_path)
    cases = [a_case(make_linear, gpu, seconds) for gpu in ("t4", "l4") for seconds in (1.0, 2.0)]
    traces.make(cases[0])
    rows = list(score(read(cases, traces), [Contender("fitted", fit, leaves_out="gpu")]))
    assert len(rows) == 4
    assert sorted(fitted_without) == ["l4", "t4"]
    scores = summary(rows)
    assert scores.count == 4
    assert scores.bias == pytest.approx(-1, abs=0.01)
    assert scores.mean == pytest.approx(1, abs=0.01)
    assert scores.in_range is None  # no measured steps gave the roofline a range


def test_steps_of_old_libraries_have_a_predictor_of_their_own(tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    today, old = a_case(make_linear), a_case(make_linear, era="1.13")
    traces.make(today)
    contender = Contender("roofline", lambda _: Roofline(), fit_aged=lambda _, era: Doubled())
    rows = list(score(read([today, old], traces), [contender]))
    seconds = {row.case.era: row.gpu_s for row in rows}
    assert seconds["1.13"] == pytest.approx(2 * seconds[""])
    plain = Contender("roofline", lambda _: Roofline())
    assert len({row.gpu_s for row in score(read([today, old], traces), [plain])}) == 1


class Doubled(Predictor):
    """Predicts twice the roofline."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        bound = Roofline().predict(op, device)
        return bound and Estimate(2 * bound.seconds, bound.low_s, 2 * bound.high_s, "doubled")


def test_the_kind_of_op_that_makes_the_errors_is_found() -> None:
    def row(matmul_s: float, copy_s: float) -> Scored:
        case = a_case(make_linear, measured_s=2 * matmul_s + copy_s)
        kinds_s = {"matmul": matmul_s, "copy": copy_s}
        seconds = matmul_s + copy_s
        return Scored(case, "made", seconds, seconds, seconds, seconds, 0.0, "gpu", kinds_s)

    error_parts, left = parts([row(1 + n, 1 + 5 * (n % 4)) for n in range(12)])
    assert {part.kind: round(part.factor, 1) for part in error_parts} == {
        "matmul": 2.0,
        "copy": 1.0,
    }
    assert left < 0.02


def test_orders_are_compared_by_kendalls_tau(tmp_path: Path) -> None:
    assert kendall_tau([(1, 10), (2, 20), (3, 30)]) == 1
    assert kendall_tau([(1, 30), (2, 20), (3, 10)]) == -1
    assert kendall_tau([(1, 10), (2, 30), (3, 20)]) == pytest.approx(1 / 3)
    traces = Traces(tmp_path)
    times = {"t4": 3.0, "l4": 2.0, "h100-sxm-80gb": 1.0}
    cases = [a_case(make_linear, gpu, seconds) for gpu, seconds in times.items()]
    traces.make(cases[0])
    rows = list(score(read(cases, traces), [Contender("roofline", lambda _: Roofline())]))
    assert [(task, count) for task, count, _ in rankings(rows)] == [("make_linear fp32 or tf32", 3)]
