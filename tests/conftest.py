"""Tests run as if torchvision were not installed: it has no build for the CPU torch they use.

They see no devices and no host of the machine's user.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from postgres_server import Server, programs

# How fast a machine is must not decide whether a test passes.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

sys.modules["torchvision"] = None  # type: ignore[assignment]


_caches = itertools.count()


@pytest.fixture(autouse=True)
def nothing_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What this machine keeps for its user, and the date, must not change a test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(_empty(tmp_path_factory)))
    cache = f"cache-{next(_caches)}"  # what one test keeps, another must not find
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / cache))
    monkeypatch.delenv("WAVECAST_HOST", raising=False)
    monkeypatch.delenv("WAVECAST_CORRECTIONS", raising=False)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1788220800")  # prices must not grow old in a test


def _empty(factory: pytest.TempPathFactory) -> Path:
    return factory.getbasetemp() / "no-configuration"


@pytest.fixture
def the_same_numbers_on_one_thread() -> Iterator[None]:
    """For tests that train: several threads get in each other's way on small models."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def transformers() -> Any:
    """Hugging Face's models, for which we do not need torchvision."""
    return pytest.importorskip("transformers")


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lightning, which asks for the version of torchvision, too."""
    real = importlib.metadata.Distribution.from_name

    def found(name: str) -> importlib.metadata.Distribution:
        if name == "torchvision":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", staticmethod(found))
    return pytest.importorskip("pytorch_lightning")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL server that runs while the tests do."""
    pytest.importorskip("psycopg", reason="needs wavecast[postgres]")
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new run store may be: a file, or a database of a real server."""
    pytest.importorskip("sqlalchemy", reason="needs wavecast[runs]")
    if request.param == "sqlite":
        return str(tmp_path / "runs.sqlite")
    server: Server = request.getfixturevalue("postgres_server")
    return server.new_database()


# Where WAVECAST_NO_SKIPS is set, as in CI, a component that can be installed must be there.
# Public measurements are not part of the project, and torchvision has no build that fits.
_MAY_SKIP = ("root may write everywhere", "there is a GPU", "shared", "torchvision")
_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if not any(allowed in reason for allowed in _MAY_SKIP):
            _skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("WAVECAST_NO_SKIPS") and _skipped:
        print("\nskipped, though WAVECAST_NO_SKIPS is set (make components installs the rest):")
        print("\n".join(f"  {line}" for line in _skipped))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
