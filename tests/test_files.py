"""Files are written whole or not at all, whatever the disk does."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput
from wavecast.files import GrowingTable, remove_folder, write_checked, write_whole

TABLE = GrowingTable[str]("words", ("word",), lambda word: {"word": word}, lambda row: row["word"])


def full(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["write_bytes", "replace", "fsync", "chmod"])
def test_a_full_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "kept"
    path.write_text("before")
    monkeypatch.setattr(os if step == "fsync" else Path, step, full)
    with pytest.raises(InvalidInput, match=r"cannot write .*kept: No space left on device"):
        write_whole(path, "after")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("kept", "before")]


def test_a_limit_on_the_size_of_files_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("before")
    code = f"""
from pathlib import Path
from wavecast.files import write_whole
write_whole(Path({str(path)!r}), b"x" * 100_000)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert "InvalidInput: cannot write" in done.stderr
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("kept", "before")]


def test_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("before")
    path.chmod(0o640)
    write_whole(path, "after")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o640)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder / "real")
    for content in ("first", "second"):
        write_whole(link, content)
        assert link.is_symlink()
        assert (folder / "real").read_text() == content


def test_a_pipe_gets_the_content_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="shared: there is no /dev/full here")
def test_a_device_is_not_replaced() -> None:
    with pytest.raises(InvalidInput, match="No space left on device"):
        write_whole(Path("/dev/full"), "content")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("name", ["missing/file", "folder", "a\0b", "n" * 300])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match="cannot write"):
        write_whole(tmp_path / name, "content")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_a_long_name_that_the_disk_takes_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_whole(path, "content")
    assert path.read_text() == "content"


def test_a_file_that_may_not_be_written_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(InvalidInput, match="Permission denied"):
        write_whole(path, "after")
    assert path.read_text() == "before"


def test_text_that_is_no_unicode_is_escaped_or_refused(tmp_path: Path) -> None:
    write_whole(tmp_path / "page", "a\udcffb")
    assert (tmp_path / "page").read_text() == r"a\udcffb"
    with pytest.raises(InvalidInput, match="is not Unicode text"):
        write_checked(tmp_path / "file", "a\udcffb", lambda path: None)
    assert not (tmp_path / "file").exists()


def test_folders_that_are_closed_to_their_owner_are_removed() -> None:
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may list all folders
    try:
        top = Path(tempfile.mkdtemp())
        for number in range(20):
            (top / f"read only {number}").mkdir(0o500)
        (top / "unlisted").mkdir(0o300)
        (top / "unlisted" / "file").touch()
        deepest = os.open(top, os.O_RDONLY)
        for _ in range(2000):
            os.mkdir("deep", dir_fd=deepest)
            deeper = os.open("deep", os.O_RDONLY, dir_fd=deepest)
            os.close(deepest)
            deepest = deeper
        os.close(deepest)
        remove_folder(top)
        assert not top.exists()
    finally:
        os.seteuid(user)


def test_a_row_that_finds_no_room_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "words.csv"
    with TABLE.growing(path, lambda rows: None) as (_, add):
        add("one")
    before = path.read_bytes()
    write = os.write
    with TABLE.growing(path, lambda rows: None) as (_, add):
        monkeypatch.setattr("wavecast.files.os.write", lambda file, line: write(file, line[:2]))
        with pytest.raises(InvalidInput, match="No space left on device"):
            add("two")
    assert path.read_bytes() == before


def test_a_table_that_cannot_begin_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.files.os.write", full)
    with (
        pytest.raises(InvalidInput, match="No space left on device"),
        TABLE.growing(tmp_path / "words.csv", lambda rows: None),
    ):
        pass
    assert not list(tmp_path.iterdir())
