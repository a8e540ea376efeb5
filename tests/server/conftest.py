"""A server in this process with one worker, and one of its own on loopback."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from made import step

from wavecast.traces.step import Trace

pytest.importorskip("fastapi", reason="needs wavecast[server]")

from fastapi.testclient import TestClient

from lab.score.web_load import start_server
from wavecast.server.app import make_app
from wavecast.server.guard import ServerLimits
from wavecast.server.service import PredictionService

LOCAL = "http://127.0.0.1"


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The whole application, without a socket."""
    limits = ServerLimits(workers=1, upload_bytes=4 << 20)
    service = PredictionService(tmp_path_factory.mktemp("server"), limits)
    with TestClient(make_app(service, limits), base_url=LOCAL) as client:
        yield client


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real server: `wavecast serve` in a process of its own."""
    server, port = start_server(tmp_path_factory.mktemp("served"), "--workers", "1")
    yield port
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0
    assert server.stderr is not None
    server.stderr.close()


@pytest.fixture
def saved_step(tmp_path: Path) -> Path:
    """A small trace in a file."""
    return saved(step(), tmp_path / "step.json.gz")


def saved(trace: Trace, path: Path) -> Path:
    trace.save(path)
    return path
