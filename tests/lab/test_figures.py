"""The figures of docs/accuracy.md agree with their file and with the appendices."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")


from lab import pages
from lab.figures import Figures, figures, percent, record, recorded
from lab.measured.comparison import Contender, Scored
from lab.measured.public_steps.case import Case
from lab.score import accuracy, summary
from wavecast.predictors.attainable import Roofline

ROOT = Path(__file__).parents[2]
SETS = recorded()


def rows_of(text: str) -> list[list[str]]:
    """The cells of every line of the tables in a text."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_five_figures_of_errors() -> None:
    scores = figures([0.1, -0.3], [True, False])
    assert (scores.count, scores.in_range) == (2, 0.5)
    assert scores.mean == pytest.approx(0.2)
    assert scores.median == pytest.approx(0.2)
    assert scores.bias == pytest.approx(-0.1)
    assert scores.worst == pytest.approx(0.3)
    assert figures([0.1]).in_range is None
    assert figures([0.1, 0.2], [None, None]).in_range is None
    assert figures([0.1, 0.2, 0.3], [None, True, False]).in_range == 0.5  # of those with a range


def test_an_unknown_figure_is_a_dash() -> None:
    assert percent(None) == "-"
    assert percent(0.0812, 1) == "8.1%"
    assert percent(0.05, signed=True) == "+5%"
    assert percent(-0.002, signed=True) == "0%"
    assert percent(1.0) == "100%"


def test_recording_a_set_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "accuracy.json"
    record({"first": figures([0.12345, 0.2], [True, True])}, file)
    record({"second": Figures(3, 0.5, None, None, None)}, file)
    kept = recorded(file)
    assert kept["first"] == Figures(2, 0.161725, 0.161725, 0.2, 1.0)
    assert kept["second"] == Figures(3, 0.5, None, None, None)
    assert list(kept) == ["first", "second"]


def test_every_set_of_the_page_has_its_appendix() -> None:
    for lines in summary.TABLES.values():
        for line in lines:
            assert (pages.APPENDIX / f"{line.page}.md").exists()


def test_the_file_repeats_the_card_and_the_table_of_ops() -> None:
    card = ROOT / "src" / "wavecast" / "data" / "models" / "learned.toml"
    groups = tomllib.loads(card.read_text(encoding="utf-8"))["groups"]
    table = rows_of((pages.APPENDIX / "accuracy-ops.md").read_text(encoding="utf-8"))
    lines = {cells[0]: cells for cells in table if len(cells) == 7}
    names = [line.key.removeprefix("op ") for line in summary.OPS if line.key[3:] in groups]
    assert len(names) == 10
    for name in names:
        scores, cells = SETS[f"op {name}"], lines[name]
        assert scores.count == groups[name]["ops"]
        assert round(scores.mean, 3) == groups[name]["mean"]  # the card has three digits
        assert cells[1] == f"{scores.count:,}"
        assert cells[5].startswith(f"{scores.mean:.0%} /")
        assert cells[6] == percent(scores.in_range)


def made_rows() -> list[Scored]:
    """Made-up predictions of two GPUs, precisions, families and versions by all contenders."""
    rows = []
    for number in range(120):
        case = Case(
            set="lambda" if number < 60 else "h200 suite",
            gpu=("t4", "l4", "rtx-3090")[number % 3],
            model=f"model{number % 2}",
            family=f"family{number % 2}",
            precision="amp_fp16" if number % 8 == 1 else "fp32",
            batch=8,
            layout="",
            measured_s=1.0 + number / 50,
            make_step=lambda: lambda: None,
            software=f"torch 2.{number % 2}",
            gpu_s=1.0 if number >= 60 else None,
        )
        for name in ("roofline", "attainable", "learned", accuracy.LEFT_OUT, "networks", "scaled"):
            bound = "gpu" if number % 5 else "host"
            kinds = {"matmul": 0.9, "copy": 0.1}
            rows.append(Scored(case, name, 1.1, 0.5, 2.0, 1.0, 0.1, bound, kinds))
    return rows


@pytest.mark.parametrize(
    "name", ["accuracy-steps.md", "accuracy-sets.md", "accuracy-predictors.md"]
)
def test_the_pages_have_the_form_that_the_command_writes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = Contender(accuracy.LEFT_OUT, lambda _: Roofline())
    monkeypatch.setattr(accuracy, "CONTENDERS", [*accuracy.CONTENDERS, left_out])
    written = accuracy.report(made_rows(), ["- a step that failed"])[name]
    page = pages.section(pages.APPENDIX / name, accuracy.MARK)
    assert heads(written) == heads(page)
    titles = re.findall(r"^## (?!H200|Lambda|Neusight|Nvidia|Timm|Torchcnn).+$", page, re.MULTILINE)
    assert all(title in written for title in titles)


def heads(text: str) -> set[str]:
    """The first line of each table."""
    lines = text.splitlines()
    return {lines[n] for n in range(len(lines) - 1) if lines[n + 1].startswith("|---")}


def test_figures_of_sets_are_those_with_the_gpu_left_out() -> None:
    by_set = accuracy.figures_of(made_rows())
    assert set(by_set) == {"lambda", "h200 suite"}
    assert by_set["lambda"].count == 60
