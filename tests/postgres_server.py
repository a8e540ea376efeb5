"""A private PostgreSQL server for tests and benchmarks, which they can start and kill.

Its programs are searched on PATH and where Debian installs them (`apt install postgresql`).
PostgreSQL refuses to run as root, so root starts it as another user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

WAIT_S = 60


def programs() -> Path | None:
    """The folder with PostgreSQL's programs, if it is installed."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in (os.environ.get("PATH"), *map(str, places)):
        initdb = shutil.which("initdb", path=place)
        if initdb and shutil.which("postgres", path=str(Path(initdb).resolve().parent)):
            return Path(initdb).resolve().parent
    return None


class Server:
    """A server with a temporary data folder, reached by a socket in that folder."""

    def __init__(self, folder: Path) -> None:
        self.data = Path(
            tempfile.mkdtemp(prefix="wavecast-pg-")
        )  # other users cannot enter pytest's folders
        self._programs = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._names = 0
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            import pwd  # not on Windows

            names = {user.pw_name: user for user in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
            os.chown(self.data, user.pw_uid, user.pw_gid)
            self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._run(
            "initdb", "-D", "data", "-A", "trust", "-U", "wavecast", "-E", "UTF8", "--no-sync"
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.data / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # -F: no fsync. A killed process loses nothing that the kernel already has.
                [self._programs / "postgres", "-F", "-D", "data", "-k", self.data, "-h", ""],
                cwd=self.data,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._user,
            )
        until = time.monotonic() + WAIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self.data / "log").read_text())
            time.sleep(0.05)

    def kill(self) -> None:
        """Send SIGKILL to the server and all of its processes at once.

        Each of its processes leads a group of its own, so that one would still commit.
        """
        assert self._process is not None
        server = self._process.pid
        listed = Path(f"/proc/{server}/task/{server}/children")  # Linux has it
        for process in listed.read_text().split() if listed.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        os.killpg(server, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Stop it and remove its data."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def new_database(self) -> str:
        """The URL of an empty database."""
        import psycopg

        self._names += 1
        with psycopg.connect(self._where("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE t{self._names}")
        return f"postgresql://wavecast@/t{self._names}?host={self.data}"

    def _where(self, name: str) -> str:
        return f"host={self.data} user=wavecast dbname={name}"

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._where("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self.data,
            capture_output=True,
            text=True,
            check=False,
            **self._user,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")
