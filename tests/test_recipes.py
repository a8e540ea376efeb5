"""The how-to pages that add something work as written: each is followed in a copy of the project.

A code block with a title is a file: it is written, or, if it is a diff, applied to the file. A
block of shell commands is run. Nothing on these pages is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "howto").glob("add-*.md"))
COPIED = ("src", "tests", "lab", "examples", "pyproject.toml")
LINKED = ("measurements", "docs", "README.md")
BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)

every_recipe = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@dataclass(frozen=True)
class Block:
    """A code block of a page; the title is the file that it belongs to."""

    language: str
    title: str | None
    text: str


def blocks_of(page: Path) -> list[Block]:
    matches = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["language"], match["title"], match["text"]) for match in matches]


def apply_diff(text: str, diff: str) -> str:
    """The text with each hunk of a diff applied; its context must occur exactly once."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        count = text.count(before)
        assert count == 1, f"these lines occur {count} times, not once:\n{before}"
        text = text.replace(before, after)
    return text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with the commands that the pages use: wavecast, .venv/bin/python."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in {"python": "", "wavecast": " -m wavecast"}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def run(commands: str, project: Path) -> str:
    """Run shell commands in the project; returns what they print."""
    environment = os.environ | {
        "PATH": f"{project / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(project / "src"), str(project)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "120",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def follow(page: Path, project: Path) -> str:
    """Do what a page says, from top to bottom; returns what its commands print."""
    printed = []
    for block in blocks_of(page):
        if block.title is not None:
            file = project / block.title
            if block.language == "diff":
                text = apply_diff(file.read_text(encoding="utf-8"), block.text)
            else:
                assert not file.exists(), f"{block.title} exists already"
                file.parent.mkdir(parents=True, exist_ok=True)
                text = block.text
            file.write_text(text, encoding="utf-8")
        elif block.language == "sh":
            printed.append(run(block.text, project))
    return "\n".join(printed)


PRINTED = {
    "add-a-benchmark": ["lenet, batch 256, bf16", "passed"],
    "add-a-cluster": ["acme-box", "Acme box datasheet", "passed"],
    "add-a-framework": ["step.ops", "aten.mm", "passed"],
    "add-a-gpu": ["acme-1 ", "Acme 1 datasheet", "passed"],
    "add-a-log-reader": ["gpt2 ", "train.nano: line", "passed"],
    "add-a-predictor": ["{}", "passed"],
    "add-a-report": ["| l4 |", "passed"],
    "add-an-op": ["mylib.fused_mlp", "passed"],
}
"""Texts that the commands of each page print."""


@every_recipe
def test_a_recipe_works_as_written(page: Path, project: Path) -> None:
    pytest.importorskip("torch")
    printed = follow(page, project)
    for text in PRINTED[page.stem]:
        assert text in printed, printed


@every_recipe
def test_the_files_of_a_recipe_pass_the_linter(page: Path, project: Path) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    files = []
    for block in blocks_of(page):
        if block.language in ("python", "diff") and block.title is not None and "/" in block.title:
            files.append(block.title)
            file = project / block.title
            text = block.text
            if block.language == "diff":
                text = apply_diff(file.read_text(encoding="utf-8"), text)
            file.write_text(text, encoding="utf-8")
    for command in (["check"], ["format", "--check"]) if files else ():
        done = subprocess.run(
            [ruff, *command, "--no-cache", *files],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@every_recipe
def test_every_recipe_writes_and_runs_something(page: Path) -> None:
    blocks = blocks_of(page)
    assert any(block.title for block in blocks)
    assert any("pytest" in block.text for block in blocks if block.language == "sh")


def test_the_contributing_page_links_every_recipe() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"docs/howto/{page.name}" not in contributing] == []
    assert {page.stem for page in PAGES} == set(PRINTED)


@pytest.mark.parametrize(
    ("text", "diff", "wanted"),
    [
        ("a\nb\n", " a\n+x\n", "a\nx\nb\n"),
        ("a\nb\nc\n", "-a\n+x\n@@\n b\n+y\n", "x\nb\ny\nc\n"),
    ],
)
def test_a_diff_is_applied(text: str, diff: str, wanted: str) -> None:
    assert apply_diff(text, diff) == wanted


def test_a_diff_whose_context_is_gone_is_refused() -> None:
    with pytest.raises(AssertionError, match="occur 0 times"):
        apply_diff("a\n", " b\n+c\n")
