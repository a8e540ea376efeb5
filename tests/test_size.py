"""The size of the house: budgets that only fall.

Whoever adds a feature that needs room raises a budget, and says in the commit what the room is for.
Whoever makes the house smaller lowers it: more than a little unused room fails, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import wavecast

ROOT = Path(__file__).parents[1]
SOURCE = Path(wavecast.__file__).parent

BUDGETS = {
    "lines of src": 108_100,
    "files of src": 370,
    "lines of lab": 27_300,
    "lines of tests": 72_500,
    "words of documents": 95_400,
    "modules that --help loads": 13,
    "modules that predict loads": 188,
}
UNUSED = 0.03
"""The share of a budget that may be unused."""
MOST_FOLDERS, MOST_FILES, MOST_ROOT_MODULES = 20, 15, 7
"""Rooms at the first level, files side by side in one folder, and modules beside the rooms."""


def lines(files: Iterable[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


def loaded_by(*arguments: str) -> int:
    """How many modules of ours a command has loaded when it ends."""
    code = (
        "import sys; from wavecast.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sum(name.split('.')[0] == 'wavecast' for name in sys.modules), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
    )
    return int(run.stderr.split()[-1])


def size(what: str) -> int:
    match what.split():
        case ["lines", "of", room]:
            return lines((ROOT / room).rglob("*.py"))
        case ["files", "of", room]:
            return len(list((ROOT / room).rglob("*.py")))
        case ["words", *_]:
            pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
            return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
        case [*_, "--help", "loads"]:
            return loaded_by("--help")
        case _:
            return loaded_by("predict", "resnet50", "--gpu", "l4")


@pytest.mark.parametrize("what", BUDGETS)
def test_the_house_keeps_to_its_budgets(what: str) -> None:
    used = size(what)
    assert used <= BUDGETS[what], "make room, or raise the budget with a reason in the commit"
    least = (1 - UNUSED) * BUDGETS[what]
    assert used + 1 >= least, f"the house is smaller: lower the budget to {used}"


def _inside(path: Path) -> Path:
    return path.relative_to(SOURCE)


def test_the_tree_can_be_seen() -> None:
    # A folder that a pull emptied may still hold caches; `data` has no modules.
    rooms = {path.parts[0] for path in map(_inside, SOURCE.rglob("*/*.py"))} | {"data"}
    assert len(rooms) <= MOST_FOLDERS
    assert len(list(SOURCE.glob("*.py"))) <= MOST_ROOT_MODULES
    crowded = {
        str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py")))
        for folder in SOURCE.rglob("*/")
        if len(list(folder.glob("*.py"))) > MOST_FILES
    }
    assert crowded == {}
