"""Attacks on a user's files: each changes them in plain Python, and none does under Wavecast."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile.attacks import ON_FILES, ON_FILES_SCRIPT

import wavecast
from wavecast.frameworks.confinement import kernel

IS_CONFINED = kernel.version() >= kernel.COMPLETE


def victims(root: Path) -> Path:
    """A folder of files for each attack."""
    for number in range(len(ON_FILES)):
        folder = root / "victims" / f"{number:03}"
        (folder / "inner").mkdir(parents=True)
        (folder / "empty").mkdir()
        for name in ("file.txt", "other.txt", "inner/deep.txt"):
            (folder / name).write_text(f"{name} is precious")
    return root / "victims"


def look(folder: Path) -> list[object]:
    """All that can be seen of the files in a folder."""
    seen: list[object] = []
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        seen += [path.name, status.st_mode, status.st_mtime_ns, status.st_nlink, status.st_size]
        seen += [sorted(os.listxattr(path, follow_symlinks=False))]
        seen += [path.read_bytes()] if path.is_file() and not path.is_symlink() else []
    return seen


def changed(folder: Path, before: list[list[object]]) -> set[str]:
    """The attacks that have changed their files."""
    after = map(look, sorted(folder.iterdir()))
    return {name for name, a, b in zip(ON_FILES, before, after, strict=True) if a != b}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], bool]:
    """The attacks that get through, and whether the script was confined."""
    root = tmp_path_factory.mktemp("attacked")
    (root / "train.py").write_text(ON_FILES_SCRIPT)
    folder = victims(root)
    before = [look(path) for path in sorted(folder.iterdir())]
    run = wavecast.run_script(root / "train.py", [str(folder)])
    time.sleep(1.5)  # for what goes on after the end
    return changed(folder, before), run.confined


def test_there_are_many() -> None:
    assert len(ON_FILES) >= 190


@pytest.mark.slow
def test_each_attack_is_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ON_FILES_SCRIPT)
    folder = victims(tmp_path)
    before = [look(path) for path in sorted(folder.iterdir())]
    command = [sys.executable, str(tmp_path / "train.py"), str(folder)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    for _ in range(100):
        if not (left := set(ON_FILES) - changed(folder, before)):
            break
        time.sleep(0.1)
    assert left == set(), done.stderr


def test_the_result_says_whether_the_kernel_kept_the_promise(
    outcome: tuple[set[str], bool],
) -> None:
    assert outcome[1] == IS_CONFINED


@pytest.mark.parametrize("attack", ON_FILES)
def test_the_files_are_untouched(attack: str, outcome: tuple[set[str], bool]) -> None:
    if not IS_CONFINED and not attack.startswith("Python:"):
        pytest.skip("this kernel cannot confine a process, and the result says so")
    assert attack not in outcome[0]
