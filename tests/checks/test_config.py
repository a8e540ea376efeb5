"""The file of checks: what it may say, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavecast.campaigns.checks.config import BASELINE, Tolerances, find_config, read_config
from wavecast.errors import InvalidInput

GOOD = 'gpus = ["l4"]\n[targets.mine]\ntarget = "train.py:make_step"\n'


def written(folder: Path, text: str, name: str = "wavecast.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, GOOD))
    [target] = config.targets
    assert (target.name, target.gpus, target.batch) == ("mine", ("l4",), None)
    assert target.target == str(tmp_path / "train.py:make_step")  # named from the file's folder
    assert target.tolerances == Tolerances()
    assert config.baseline == tmp_path / BASELINE
    assert config.host == "reference"


def test_a_target_may_have_its_own_gpus_and_tolerances(tmp_path: Path) -> None:
    text = (
        'gpus = ["l4"]\nbaseline = "kept/base.toml"\nhost = "mine"\n'
        'tolerance = { time = "3%", memory = 0.01 }\n'
        '[targets.a]\ntarget = "resnet50"\nbatch = 8\nprecision = "bf16"\n'
        'gpus = ["NVIDIA H100 80GB HBM3", "h100-sxm-80gb"]\n'
        "tolerance = { time = 0.5, waits = 2, host = false }\n"
        '[targets.b]\ntarget = "hf:bert-base"\noptions = { seq = 128 }\n'
    )
    config = read_config(written(tmp_path, text))
    first, second = config.targets
    assert first.gpus == ("h100-sxm-80gb",)
    assert first.target == "resnet50"
    assert first.tolerances == Tolerances(time=0.5, memory=0.01, waits=2, host=None)
    assert second.tolerances == Tolerances(time=0.03, memory=0.01)
    assert second.options == {"seq": 128}
    assert (config.baseline, config.host) == (tmp_path / "kept" / "base.toml", "mine")
    assert [target.name for target in config.only(["b"]).targets] == ["b"]
    with pytest.raises(InvalidInput, match="has no target 'c'; it has a, b"):
        config.only(["c"])


def test_the_table_may_be_in_pyproject(tmp_path: Path) -> None:
    table = '[tool.wavecast]\ngpus = ["l4"]\n[tool.wavecast.targets.mine]\ntarget = "resnet50"\n'
    project = written(tmp_path, table, "pyproject.toml")
    assert find_config(tmp_path) == project
    assert read_config(project).targets[0].name == "mine"
    own = written(tmp_path, GOOD)
    assert find_config(tmp_path) == own  # the own file comes first


def test_a_folder_without_a_file_says_what_to_write(tmp_path: Path) -> None:
    written(tmp_path, "[tool.other]\nx = 1\n", "pyproject.toml")
    with pytest.raises(InvalidInput, match=r"there is no wavecast.toml here.*targets.mine"):
        find_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no targets"),
        ("gpu = ['l4']\n" + GOOD, 'gpu is not a key of a file of checks; did you mean "gpus"'),
        (GOOD.replace('"l4"', '"l5"'), 'targets.mine: unknown device "l5"'),
        (GOOD.replace('gpus = ["l4"]\n', ""), "targets.mine: names no GPU"),
        (GOOD.replace("target =", "step ="), "targets.mine.step is not a key of a target"),
        (GOOD + "batch = 0\n", "batch must be a whole number of at least 1, not 0"),
        (GOOD + "batch = true\n", "batch must be a whole number"),
        (GOOD + "precision = 16\n", "precision must be a text"),
        (GOOD + "tolerance = { time = -1 }\n", "tolerance.time must be a share"),
        (GOOD + 'tolerance = { time = "much" }\n', "tolerance.time must be a share"),
        (GOOD + "tolerance = { time = true }\n", "tolerance.time must be a share"),
        (GOOD + "tolerance = { time = nan }\n", "tolerance.time must be a share"),
        (GOOD + "tolerance = { waits = 0.5 }\n", "tolerance.waits must be a whole number"),
        (GOOD + "tolerance = { speed = 1 }\n", "tolerance.speed is not a key"),
        ("targets = 3\n", "targets must be a table"),
        ("[targets]\nmine = 3\n", "mine must be a table"),
        ("gpus = [", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_config(written(tmp_path, text))
    assert says in str(caught.value)
    assert "wavecast.toml" in str(caught.value)
