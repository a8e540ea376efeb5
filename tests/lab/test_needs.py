"""Commands of the lab stop at once, with one line, if tables or libraries are missing."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.commands import main_of
from lab.needs import FILES, SINGLE_OPS, check_tables, needing, require, tables
from lab.scores import SCORES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
READERS = sorted(
    [
        *(("score", name) for name, score in SCORES.items() if score.data),
        *(
            (path.parent.name, path.stem)
            for path in (ROOT / "lab").glob("*/*.py")
            if "needs.add_data(" in path.read_text(encoding="utf-8")
        ),
    ]
)


def fill(folder: Path, *sets: str) -> None:
    for name in sets:
        (folder / name).mkdir()
        for file in FILES[name]:
            (folder / name / file).touch()


def test_a_whole_folder_is_taken(tmp_path: Path) -> None:
    fill(tmp_path, *SINGLE_OPS)
    check_tables(tmp_path, SINGLE_OPS)
    assert tables("neusight")(str(tmp_path)) == tmp_path


def test_a_command_that_reads_no_tables_needs_no_folder() -> None:
    check_tables(None, ())


@pytest.mark.parametrize("there", [(), ("neusight",)])
def test_what_is_missing_is_named(tmp_path: Path, there: tuple[str, ...]) -> None:
    fill(tmp_path, *there)
    with pytest.raises(ValueError, match=r"learned reads .* docs/sources\.md says") as refused:
        check_tables(tmp_path, ("neusight", "deepbench"), "learned")
    message = str(refused.value)
    assert "\n" not in message
    assert (
        "lacks deepbench/ops.parquet;" if there else f"the folder {tmp_path} is empty;"
    ) in message


def test_a_folder_with_an_empty_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deepbench").mkdir()
    with pytest.raises(argparse.ArgumentTypeError, match="lacks deepbench/ops"):
        tables("deepbench")(str(tmp_path))


def test_a_missing_library_is_named_with_how_to_install_it() -> None:
    with pytest.raises(SystemExit) as left, needing("reading public tables"):
        raise ModuleNotFoundError(name="pandas.core")
    assert left.value.code == "reading public tables needs pandas: pip install pandas pyarrow"


def test_a_command_can_ask_for_its_libraries_first() -> None:
    require("this", "argparse")
    with pytest.raises(SystemExit, match=r"^the blind test needs torchvision: pip"):
        require("the blind test", "argparse", "torchvision")


def test_a_missing_module_of_ours_is_an_error_like_any_other() -> None:
    with pytest.raises(ModuleNotFoundError), needing("this"):
        raise ModuleNotFoundError(name="lab.lost")


def test_commands_that_read_tables_were_found() -> None:
    assert len(READERS) >= 12


@pytest.mark.parametrize(("kind", "name"), READERS)
def test_every_command_refuses_an_empty_folder_at_once(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(SystemExit) as left:
        main_of(kind, name)(["--data", str(tmp_path)])
    assert left.value.code == 2
    assert re.search(r"the folder .* is empty; docs/sources\.md says", capsys.readouterr().err)


def test_the_page_of_sources_has_every_file_and_every_command() -> None:
    for name, files in FILES.items():
        assert f"\n| {name}" in PAGE
        assert all(f"{name}/{file}" in PAGE for file in files)
    assert all(name in PAGE for _, name in READERS)


COLLECT = """
import importlib, sys
for name in ("pandas", "pyarrow", "rich", "typer", "scipy", "sqlalchemy", "timm", "torchvision"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_what_runs_on_a_gpu_machine_needs_nothing_but_torch_and_numpy_to_start() -> None:
    pytest.importorskip("torch")
    names = [f"lab.collect.{path.stem}" for path in (ROOT / "lab" / "collect").glob("*.py")]
    names.remove("lab.collect.__init__")
    run = subprocess.run(
        [sys.executable, "-c", COLLECT, *sorted(names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
