"""The commands for several GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from parallel_steps import small_gpt2_step
from shell import run

from wavecast.cli.output.screen import CountItems
from wavecast.cli.steps import parallel
from wavecast.errors import InvalidInput
from wavecast.parallel.strategy import Parallel
from wavecast.targets.targets import parse_parallel
from wavecast.traces.step import Phase


@pytest.fixture
def step(tmp_path: Path) -> str:
    path = tmp_path / "step.json.gz"
    small_gpt2_step().save(path)
    return str(path)


def test_the_option_names_a_strategy() -> None:
    text = "data=16, shard=3,sequence,tensor=2,reshard=no,cluster=dgx-h100"
    assert parse_parallel(text) == Parallel(
        data=16, shard=3, sequence=True, tensor=2, reshard=False, cluster="dgx-h100"
    )
    assert parse_parallel("") == Parallel()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rows=2", "does not know 'rows'"),
        ("data", "data is a whole number, not ''"),
        ("data=two", "not 'two'"),
        ("data=2,data=4", "data twice"),
        ("sequence=maybe,tensor=2", "yes or no"),
        ("cluster=", "needs a name"),
        ("data=0", "at least 1"),
        ("data=99999999999999999999", "a whole number"),
    ],
)
def test_what_is_no_strategy_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        parse_parallel(text)


def test_what_is_mostly_unknown_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    traced = small_gpt2_step()
    hidden = [
        replace(call, op=replace(call.op, name="mine.secret"))
        if call.phase is Phase.OPTIMIZER
        else call
        for call in traced
    ]
    path = tmp_path / "hidden.json.gz"
    replace(traced, calls=tuple(hidden)).save(path)
    done = run("predict", path, "--gpu", "l4", "--parallel", "data=2")
    assert done.code == 3
    assert "not predicted, counted as 0: mine.secret" in done.out
    assert "its time is a lower bound" in done.out


def test_predict_shows_a_spread_step(step: str) -> None:
    done = run("predict", step, "--gpu", "h100-sxm-80gb", "--parallel", "data=8,shard=3")
    assert done.code == 0, done.err
    assert "8 x h100-sxm-80gb" in done.out
    assert "data 8, shard 3" in done.out
    done = run("predict", step, "--gpu", "l4", "--parallel", "data=4", "--json")
    [record] = json.loads(done.out)["predictions"]
    assert record["gpus"] == 4
    assert record["strategy"]["data"] == 4
    assert 0 < record["low_s"] <= record["seconds"] <= record["high_s"]


def test_a_spread_step_says_which_host_was_assumed(step: str) -> None:
    asked = ("predict", step, "--gpu", "a100-sxm-80gb", "--parallel", "data=2")
    assert "host: reference, scaled to AMD EPYC 7742" in run(*asked).out
    named = json.loads(run(*asked, "--host", "reference", "--json").out)
    assert "reference (a cloud VM)" in json.dumps(named)
    assert "EPYC" not in json.dumps(named)


def test_memory_and_fits_answer_for_the_fullest_rank(step: str) -> None:
    gpu = ("--gpu", "h100-sxm-80gb")
    whole = json.loads(run("memory", step, *gpu, "--json").out)
    shared = json.loads(run("memory", step, *gpu, "--parallel", "data=8,shard=3", "--json").out)
    assert whole != shared
    assert run("fits", step, *gpu, "--parallel", "data=8,shard=3").code == 0
    advised = run("memory", step, *gpu, "--parallel", "data=8", "--advice", "--json")
    assert json.loads(advised.out)[0]["advice"], advised.err
    refused = run("memory", step, "--parallel", "data=8", "--measure")
    assert refused.code == 1
    assert "it cannot be used with --parallel" in refused.err


def test_scale_and_parallelize(step: str) -> None:
    done = run("scale", step, "--gpu", "a100-sxm-80gb", "--up-to", "16", "--json")
    assert done.code == 0, done.err
    assert [point["gpus"] for point in json.loads(done.out)["points"]] == [1, 2, 4, 8, 16]
    done = run("parallelize", step, "--gpu", "l4", "--gpus", "4", "--global-batch", "16")
    assert done.code == 0, done.err
    assert "cannot be among the first by a lower bound" in done.out
    first = next(line for line in done.out.splitlines() if line.startswith("data="))
    pasted = run("predict", step, "--gpu", "l4", "--parallel", first.split()[0], "--json")
    assert pasted.code == 0, pasted.err
    assert json.loads(pasted.out)["predictions"][0]["gpus"] == 4
    wrong = run("parallelize", step, "--gpu", "l4", "--gpus", "0", "--global-batch", "16")
    assert (wrong.code, "--gpus is a whole number" in wrong.err) == (1, True)


def test_micro_batches_are_replayed_as_cuda_graphs(step: str) -> None:
    done = run("predict", step, "--gpu", "l4", "--parallel", "data=2", "--cuda-graph")
    assert done.code == 0, done.err
    assert "as one CUDA graph" in done.out


def test_parallelize_ends_in_time_and_leaves_memory_free(step: str) -> None:
    asked = ("parallelize", step, "--gpu", "l4", "--gpus", "4", "--global-batch", "16")
    shown = run(*asked)
    assert "of 24.0 GiB, " in shown.out
    records = json.loads(run(*asked, "--json").out)
    assert 0 < records[0]["memory_share"] < 0.92
    ended = run(*asked, "--within", "0.000001")
    assert ended.code == 0
    assert "not tried: the time for the search was over" in ended.out
    refused = run(*asked, "--memory-margin", "1")
    assert "the memory margin is 1; it is the share of a GPU's memory" in refused.err
    full = run(*asked, "--memory-margin", "0.9999")
    assert "no strategy fits" in full.out
    assert "nor does it fit" in full.out


def test_parallelize_gives_the_best_so_far_on_ctrl_c(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def interrupting(doing: str) -> Iterator[CountItems]:
        def count(done: int, total: int, note: str = "") -> None:
            if note:
                raise KeyboardInterrupt

        yield count

    monkeypatch.setattr(parallel, "counting_items", interrupting)
    done = run("parallelize", step, "--gpu", "l4", "--gpus", "4", "--global-batch", "16")
    assert done.code == 130
    assert "to predict the first alone: --parallel" in done.out
    assert "not tried: the search was interrupted; shown is the best so far" in done.out
    assert "interrupted: what is shown is the best so far" in done.err


@pytest.mark.parametrize("option", [("--by", "op"), ("--predictor", "roofline")])
def test_options_of_one_gpu_are_refused(step: str, option: tuple[str, ...]) -> None:
    done = run("predict", step, "--gpu", "l4", "--parallel", "data=2", *option)
    assert done.code == 1
    assert f"{option[0]} cannot be used with --parallel" in done.err


@pytest.mark.parametrize(
    ("strategy", "would_fit"),
    [
        ("data=3,nodes=2", "possible numbers are 1, 3"),
        ("data=4,shard=1,shard_group=3", "possible sizes are 1, 2, 4"),
        ("data=4,expert=3", "possible sizes are 1, 2, 4"),
        ("pipeline=64", "it has 2 repeated blocks; use at most 2"),
        ("tensor=8", "attention.query_key_value.weight; possible sizes are 1, 2"),
        ("data=2,cluster=dgx-h10", 'did you mean "dgx-h100"'),
        ("pipeline=2,virtual=2,microbatches=3", "a multiple of pipeline=2"),
    ],
)
def test_a_bad_strategy_is_refused_with_what_would_fit(
    step: str, strategy: str, would_fit: str
) -> None:
    for command in ("predict", "memory", "fits"):
        done = run(command, step, "--gpu", "h100-sxm-80gb", "--parallel", strategy)
        assert done.code == (2 if command == "fits" else 1)
        assert would_fit in " ".join(done.err.split())


@pytest.mark.parametrize(
    "command", ["memory", "max-batch --limit-gib 1", "parallelize --gpus 2 --global-batch 2"]
)
def test_json_names_the_model_with_all_its_sizes(command: str) -> None:
    sizes = "--layers 1 --hidden 64 --heads 2 --vocab 128 --seq 16"
    [row, *_] = json.loads(
        run(*command.split(), "llama", *sizes.split(), "--gpu", "l4", "--json").out
    )
    assert "by default kv_heads 2, ffn 256, head_size 32; 0.0739 million" in row["target"]
