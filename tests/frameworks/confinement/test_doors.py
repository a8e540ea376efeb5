"""Attacks beyond files: each gets through in plain Python, and none does under Wavecast."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.attacks import BEYOND_FILES, BEYOND_FILES_SCRIPT, Victims

from wavecast.frameworks.confinement import kernel

NOBODY = 65534
IS_ROOT = os.geteuid() == 0
# Root's Python may lie in root's home, where nobody can read: it is shown in an open one.
OPEN_HOME = """
view=$(mktemp -d) && mount --rbind "$0" "$view" && mount -t tmpfs -o mode=755 home "$HOME" &&
mkdir -p "$0" && mount --move "$view" "$0" && exec "$@"
"""
USERS = {
    "this user": (),
    "root without capabilities": ("setpriv", "--inh-caps=-all", "--bounding-set=-all"),
    "nobody": (
        *("unshare", "--mount", "sh", "-c", OPEN_HOME, sys.base_prefix),
        *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        *("--inh-caps=-all", "--bounding-set=-all"),
    ),
}
SHARED_MEMORY = {"shared file", "shared name", "left in shared memory"}
RUN = "import sys, wavecast; print(wavecast.run_script(sys.argv[1], sys.argv[2:]).confined)"
pytestmark = pytest.mark.skipif(
    kernel.version() < kernel.SIGNALS_SINCE, reason="needs Linux 6.12 with Landlock"
)


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that everybody can read."""
    folder = Path(tempfile.mkdtemp(prefix="doors-"))
    folder.chmod(0o755)
    (folder / "train.py").write_text(BEYOND_FILES_SCRIPT)
    yield folder
    shutil.rmtree(folder)


def changed(root: Path, command: list[str], user: int) -> tuple[set[str], str, str]:
    """The attacks that get through when a command runs the script, and what the command prints."""
    victims = {name: Victims(root, user) for name in BEYOND_FILES}
    time.sleep(0.3)  # until their processes sleep
    try:
        before = {name: victim.look() for name, victim in victims.items()}
        (root / "victims.json").write_text(json.dumps({n: v.named() for n, v in victims.items()}))
        cache = root / "cache"
        cache.mkdir()
        os.chown(cache, user, -1)
        out, said = root / "out", root / "said"
        with out.open("w") as results, said.open("w") as errors:  # a pipe, daemons would hold open
            subprocess.run(
                [*command, str(root / "train.py"), str(root / "victims.json")],
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(cache)},
                stdout=results,
                stderr=errors,
                check=False,
                cwd=root,
            )
        after = {name: victim.look() for name, victim in victims.items()}
    finally:
        for victim in victims.values():
            victim.end()
    through = {name for name in BEYOND_FILES if before[name] != after[name]}
    return through, out.read_text(), said.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="some attacks need root's rights")
def test_each_attack_is_one(root: Path) -> None:
    through, _, said = changed(root, [sys.executable], os.geteuid())
    assert through == set(BEYOND_FILES), said


@pytest.mark.parametrize("user", USERS)
def test_no_attack_gets_through(user: str, root: Path) -> None:
    if user != "this user" and (not IS_ROOT or shutil.which("setpriv") is None):
        pytest.skip("only root can give up capabilities, with setpriv")
    number = NOBODY if user == "nobody" else os.geteuid()
    through, out, said = changed(root, [*USERS[user], sys.executable, "-c", RUN], number)
    if "/dev/shm" in said.splitlines()[0]:
        through -= SHARED_MEMORY  # this system has no namespaces for that user, and it says so
    assert (through, out) == (set(), "True\n"), said
