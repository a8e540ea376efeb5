from __future__ import annotations

import socket
from pathlib import Path

import pytest
from shell import run, run_process

pytest.importorskip("fastapi", reason="needs wavecast[server]")


def test_without_the_extra_the_message_says_what_to_install() -> None:
    for missing in ("fastapi", "uvicorn"):
        done = run_process("serve", python=f"sys.modules[{missing!r}] = None")
        assert done.code == 1
        assert "the web page needs" in done.err
        assert "pip install 'wavecast[server]'" in done.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--port", "70000"), "--port is a number from 0 to 65535, not 70000"),
        (("--port", "-1"), "--port is a number"),
        (("--workers", "0"), "--workers is a number from 1 to 64, not 0"),
        (("--host", "no such host"), "cannot listen on no such host"),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    done = run("serve", *options, "--folder", tmp_path)
    assert done.code == 1
    assert told in done.err


def test_a_port_that_is_taken_and_a_bad_folder_are_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("serve", "--port", taken.getsockname()[1], "--folder", tmp_path)
    assert done.code == 1
    assert "choose another --port" in done.err
    (tmp_path / "file").write_text("")
    done = run("serve", "--port", 0, "--folder", tmp_path / "file")
    assert done.code == 1
    assert "choose another --folder" in done.err
