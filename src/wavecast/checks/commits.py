"""The code of another commit: what changed since, and the figures that its steps had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wavecast.checks.baseline import Baseline, read_baseline
from wavecast.checks.config import CheckConfig
from wavecast.checks.places import ChangedLines
from wavecast.errors import InvalidInput

MERGE_BASE = "merge-base"
"""The commit at which this branch left the main one."""
_MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def commit_of(name: str) -> str:
    """The id of a commit by its name; `merge-base` is where this branch left the main one.

    Raises:
        InvalidInput: this is no repository of git, or has no such commit.
    """
    if name != MERGE_BASE:
        return _git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    if diff_base := os.environ.get("CI_MERGE_REQUEST_DIFF_BASE_SHA"):  # GitLab
        return commit_of(diff_base)
    target = os.environ.get("GITHUB_BASE_REF")
    branches = [f"origin/{target}"] if target else _MAIN
    for branch in branches:
        if _tried("rev-parse", "--verify", "-q", branch):
            return _git("merge-base", "HEAD", branch)
    raise InvalidInput(
        f"there is no {' or '.join(branches)} here, so where this branch began is not known; fetch "
        "it (fetch-depth: 0 of actions/checkout), or name a commit: --against COMMIT"
    )


def last_commit_of(file: Path) -> str | None:
    """The commit that wrote a file last; None if none did, or without git."""
    return _tried("log", "-1", "--format=%H", "--", str(file)) or None


def folder_in_repository() -> str:
    """The present folder as seen from the top of its repository: `part/`; empty at the top."""
    return _tried("rev-parse", "--show-prefix") or ""


def changed_since(commit: str) -> ChangedLines:
    """The lines that changed since a commit, in files that are not yet committed, too."""
    lines: dict[str, list[range]] = {}
    file = ""
    for text in _git("diff", "--unified=0", "--relative", "--no-color", commit).splitlines():
        if text.startswith("+++ "):
            file = text[4:].removeprefix("b/")
        elif match := _HUNK.match(text):
            first, count = int(match[1]), int(match[2] or 1)
            lines.setdefault(file, []).append(range(first, first + count))
    new = _git("ls-files", "--others", "--exclude-standard").splitlines()
    return ChangedLines(commit, {**lines, **{name: [] for name in new}})


def baseline_at(commit: str, config: CheckConfig) -> Baseline:
    """The figures of the steps as the code of a commit has them, by the checks of now.

    The commit is checked out into a folder of its own, and its steps are traced there by another
    process. Steps that it does not have are left out.
    """
    with _checked_out(commit) as folder:
        file = folder / folder_in_repository() / _relative(config.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(config.path.read_bytes())
        names = [target.name for target in config.targets]
        written = file.parent / _relative(config.baseline, config.path.parent)
        written.unlink(missing_ok=True)
        if _updates(file, folder, names):
            return read_baseline(written)
        found = [read_baseline(written) for name in names if _updates(file, folder, [name])]
        return found[-1] if found else Baseline({})


def _updates(config: Path, folder: Path, names: Sequence[str]) -> bool:
    """Whether steps could be traced into the baseline of a folder."""
    own = [str(folder), str(folder / "src"), *sys.path]
    chosen = [part for name in names for part in ("--target", name)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "wavecast", "check", "--update"),
            *("--config", config.name, *chosen),
        ],
        cwd=config.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, own))},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wavecast-") as folder:
        place = Path(folder).resolve() / "code"
        _git("worktree", "add", "--detach", "--quiet", str(place), commit)
        try:
            yield place
        finally:
            _tried("worktree", "remove", "--force", str(place))


def _relative(path: Path, start: Path | None = None) -> Path:
    return Path(os.path.relpath(path, start or Path()))


def _git(*arguments: str) -> str:
    """What git prints.

    Raises:
        InvalidInput: git refuses; says why.
    """
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise InvalidInput("git is not installed; leave out --against") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InvalidInput(f"git {arguments[0]} does not work here: {said}") from None
    return done.stdout.strip()


def _tried(*arguments: str) -> str:
    """What git prints; nothing if it refuses."""
    try:
        return _git(*arguments)
    except InvalidInput:
        return ""
