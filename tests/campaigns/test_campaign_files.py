from __future__ import annotations

from pathlib import Path

import pytest

from wavecast.campaigns.campaign_files import make_campaign, read_campaign
from wavecast.campaigns.work import together
from wavecast.errors import InvalidInput, WavecastError

PREDICT = """
[[predict]]
targets = ["resnet50", "gpt2"]
batches = [8, 16]
precisions = ["bf16"]
gpus = ["l4", "t4", "H100 SXM 80GB"]
parallel = ["", "data=8"]
"""
MEASURE = """
attempts = 5

[[layers]]
kind = "linear"
count = 7
gpus = ["l4", "cpu"]

[[suite]]
models = ["dcgan"]
precisions = ["fp32"]
scales = [0.5, 1]
gpus = ["l4"]

[[runs]]
models = ["a3c"]
batches = [1, 2]
iterations = [3, 5]
gpus = ["cpu"]
"""


def test_predictions_are_every_combination_and_share_traces() -> None:
    campaign = make_campaign(PREDICT, "all")
    assert len(campaign.tasks) == 2 * 2 * 3 * 2
    bundles = together(campaign.tasks)
    assert [len(bundle) for bundle in bundles] == [6] * 4
    for bundle in bundles:
        assert len({(task.asked["target"], task.asked["batch"]) for task in bundle}) == 1


def test_measurements_name_the_gpu_that_they_need() -> None:
    campaign = make_campaign(MEASURE, "measured")
    assert campaign.attempts == 5
    found = {(task.kind, task.gpu) for task in campaign.tasks}
    assert found == {("layer", "l4"), ("layer", "cpu"), ("suite", "l4"), ("run", "cpu")}
    assert len(campaign.tasks) == 14 + 2 + 4
    assert len({task.id for task in campaign.tasks}) == len(campaign.tasks)


def test_layers_are_those_of_collect() -> None:
    from wavecast.predictors.mlp import sample

    tasks = [task for task in make_campaign(MEASURE, "m").tasks if task.gpu == "l4"][:7]
    first = next(iter(sample("linear", 0)))
    assert tasks[0].asked["sizes"] == list(first.features())


def test_a_design_asks_for_fewer_runs_than_the_grid() -> None:
    text = """
    [[design]]
    models = ["alexnet"]
    batches = [8, 16, 32, 64]
    iterations = [100, 200, 500]
    budget = "1min"
    startup = 5
    iteration = 0.005
    sample = 0.0007
    gpus = ["l4"]
    """
    pytest.importorskip("scipy")
    assert 3 <= len(make_campaign(text, "d").tasks) < 12


def test_tasks_are_known_by_what_they_ask_for() -> None:
    few = make_campaign(PREDICT, "few")
    more = make_campaign(PREDICT.replace("[8, 16]", "[16, 32, 8]"), "more")
    assert {task.id for task in few.tasks} < {task.id for task in more.tasks}


def test_the_name_is_given_or_in_the_file_or_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "november.toml"
    path.write_text(PREDICT)
    assert read_campaign(path).name == "november"
    path.write_text(f'name = "own"\n{PREDICT}')
    assert read_campaign(path).name == "own"
    assert read_campaign(path, "given").name == "given"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"has no tasks"),
        ("[predict]", r"predict must be a list, written \[\[predict\]\]"),
        ("[[predict]]\ntargets = ['a3c']", r"predict\[1\].gpus is missing"),
        ("[[predict]]\ntargets = ['a3c']\ngpu = ['l4']", r'predict\[1\].gpu is .*"gpus"'),
        ("[[predict]]\ntargets = 'a3c'\ngpus = ['l4']", r"predict\[1\].targets must be a list"),
        ("[[layers]]\nkind = 'linear'\ncount = 0\ngpus = ['l4']", r"layers\[1\].count must be"),
        ("[[suite]]\ngpus = ['cpu']", r"suite\[1\]: the suite is measured on GPUs"),
        ("[[runs]]\nmodels=['a3c']\nbatches=[1]\niterations=[1]\ngpus=['l5x']", r"l5x"),
        ("[[predict]]\ntargets=['a3c']\ngpus=['l4']\nparallel=['data=0']", r"data"),
        ("attempts = 'x'\n[[predict]]\ntargets=['a3c']\ngpus=['l4']", r"attempts must be"),
    ],
)
def test_wrong_files_name_the_key(text: str, message: str) -> None:
    with pytest.raises(WavecastError, match=message):
        make_campaign(text, "wrong")


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[[")
    with pytest.raises(InvalidInput, match=r"c.toml: is not TOML"):
        read_campaign(path)
