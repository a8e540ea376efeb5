"""What a script writes, moves and removes: it sees the change, and the disk stays as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.scripts import overlay as overlays
from wavecast.frameworks.pytorch.scripts.overlay import Overlay
from wavecast.frameworks.pytorch.scripts.redirection import redirected


def state(folder: Path) -> dict[str, object]:
    """All that is on disk under a folder: names, contents, links."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (None if path.is_dir() else (path.read_bytes(), path.stat().st_mtime_ns))
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "data" / "inner").mkdir(parents=True)
    (home / "data" / "a.txt").write_text("a")
    (home / "data" / "inner" / "b.txt").write_text("b")
    (home / "old.txt").write_text("old")
    (home / "link").symlink_to("data")
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def inside(home: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder, seen through an overlay. Afterwards it must be as it was."""
    before = state(home)
    with redirected(Overlay(tmp_path / "scratch")):
        yield home
    assert state(home) == before
    assert Path.cwd() == home


def test_a_new_file_is_read_back(inside: Path) -> None:
    Path("new.txt").write_text("new")
    with open("new.txt", "a") as file:
        file.write(" and more")
    assert (inside / "new.txt").read_text() == "new and more"
    assert os.path.exists("new.txt")
    assert os.path.getsize(inside / "new.txt") == 12
    assert sorted(os.listdir()) == ["data", "link", "new.txt", "old.txt"]


def test_a_changed_file_keeps_its_beginning_only_when_appended(inside: Path) -> None:
    with open("old.txt", "a") as file:
        file.write("er")
    assert Path("old.txt").read_text() == "older"
    with open("data/a.txt", "r+") as file:
        file.write("A")
    assert Path("data/a.txt").read_text() == "A"
    Path("old.txt").write_text("")
    assert Path("old.txt").read_text() == ""


def test_folders_are_made_and_listed_with_the_real_ones(inside: Path) -> None:
    os.makedirs("out/run/1", exist_ok=True)
    os.makedirs("out/run/1", exist_ok=True)
    Path("data/new").mkdir()
    Path("data/new/c.txt").touch()
    assert sorted(os.listdir("data")) == ["a.txt", "inner", "new"]
    assert sorted(p.name for p in Path("data").rglob("*.txt")) == ["a.txt", "b.txt", "c.txt"]
    assert sorted(e.name for e in os.scandir("data") if e.is_dir()) == ["inner", "new"]
    with pytest.raises(FileExistsError):
        os.mkdir("data")
    with pytest.raises(FileNotFoundError, match="nowhere/x"):
        Path("nowhere/x").write_text("x")


def test_removed_files_are_gone(inside: Path) -> None:
    os.remove("old.txt")
    assert not os.path.exists("old.txt")
    with pytest.raises(FileNotFoundError):
        open("old.txt")
    with pytest.raises(FileNotFoundError):
        os.remove("old.txt")
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("data")
    shutil.rmtree("data")
    assert not Path("data/inner/b.txt").exists()
    assert os.listdir() == ["link"]
    os.mkdir("data")
    assert os.listdir("data") == []
    shutil.rmtree("nothing", ignore_errors=True)


def test_renamed_files_and_folders_have_their_new_names(inside: Path) -> None:
    os.replace("old.txt", "new.txt")
    Path("data").rename("moved")
    assert Path("new.txt").read_text() == "old"
    assert Path("moved/inner/b.txt").read_text() == "b"
    assert not Path("old.txt").exists()
    assert not Path("data").exists()
    with tempfile.NamedTemporaryFile(dir=inside, delete=False) as file:
        file.write(b"x")
    os.replace(file.name, inside / "final.txt")
    assert Path("final.txt").read_bytes() == b"x"
    shutil.move("final.txt", "moved/final.txt")
    assert Path("moved/final.txt").exists()


def test_links_show_the_same_contents(inside: Path) -> None:
    os.symlink("old.txt", "latest.txt")
    assert Path("latest.txt").read_text() == "old"
    os.symlink("data", "current")
    Path("current/new.txt").write_text("new")
    assert Path("data/new.txt").read_text() == "new"
    Path("link/linked.txt").write_text("x")
    assert Path("data/linked.txt").read_text() == "x"
    with pytest.raises(FileExistsError):
        os.symlink("data", "current")
    os.unlink("current")
    assert Path("data/new.txt").exists()
    os.link("old.txt", "hard.txt")
    assert Path("hard.txt").read_text() == "old"


def test_copies_times_and_modes_are_the_scripts_own(inside: Path) -> None:
    shutil.copy2("old.txt", "copy.txt")
    shutil.copytree("data", "data2")
    os.chmod("old.txt", 0o600)
    os.utime("data/a.txt", (1, 1))
    assert os.stat("data/a.txt").st_mtime == 1
    assert Path("data2/inner/b.txt").read_text() == "b"
    os.truncate("old.txt", 1)
    assert Path("old.txt").read_text() == "o"


def test_a_script_may_change_into_a_folder_that_it_made(inside: Path) -> None:
    os.makedirs("outputs/today")
    os.chdir("outputs/today")
    assert os.getcwd() == str(inside / "outputs" / "today")
    Path("log.txt").write_text("log")
    os.chdir("../..")
    assert Path("outputs/today/log.txt").read_text() == "log"
    os.chdir("data")
    assert Path("a.txt").read_text() == "a"


def test_databases_and_descriptors_are_redirected(inside: Path) -> None:
    with sqlite3.connect("runs.db") as database:
        database.execute("create table t (x)")
    database.close()
    descriptor = os.open("lock", os.O_CREAT | os.O_RDWR)
    os.write(descriptor, b"1")
    os.close(descriptor)
    assert Path("lock").read_text() == "1"
    with pytest.raises(FileExistsError):
        os.open("old.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    folder = os.open("data", os.O_RDONLY)
    os.unlink("a.txt", dir_fd=folder)
    os.close(folder)
    assert not Path("data/a.txt").exists()


def test_a_table_that_pyarrow_reads_in_c_is_the_one_that_was_written(inside: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"length": [3, 4]})
    with open("cache.arrow", "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    for opened in (pyarrow.memory_map("cache.arrow"), pyarrow.input_stream("cache.arrow")):
        assert pyarrow.ipc.open_stream(opened).read_all() == table
    buffer = pyarrow.py_buffer(Path("cache.arrow").read_bytes())
    assert pyarrow.ipc.open_stream(pyarrow.input_stream(buffer)).read_all() == table


def test_temporary_files_need_no_overlay(inside: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text("x")
        assert Path(folder, "x").read_text() == "x"
    assert not Path(folder).exists()
    with open(os.devnull, "w") as file:
        file.write("x")


def test_a_large_file_is_not_copied(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "LARGEST_COPY", 2)
    with pytest.raises(CaptureError, match=r"old\.txt.*test_overlay\.py.*mode='r'"):
        open("old.txt", "r+")
