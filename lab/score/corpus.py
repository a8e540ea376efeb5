"""Which training scripts are answered, and how soon?

    python -m lab score corpus [REPOSITORIES] [--only WORD] [--write]

Needs transformers, accelerate, pytorch-lightning, diffusers and torch_geometric. REPOSITORIES is a
folder with public repositories, each checked out under its own name (nanoGPT, examples); those that
are missing are left out and named. The command runs each script of lab/steps/corpus.py with
`wavecast run`, in a process and a folder of its own with made-up data, and prints the table of
docs/appendix/scripts.md. It ends with 1 if fewer than 90% are answered.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import needs
from lab.markdown import heading
from lab.places import DOCS, ROOT
from lab.score import pages
from lab.steps.corpus import CorpusScript, corpus

GPU = "a100-sxm-80gb"
PAGE, MARK = DOCS / "appendix" / "scripts.md", "the corpus of scripts"
_LIMIT_S = 900
_ANSWERED = 0.9
_LONGEST_CPU_S = 60.0


@dataclass(frozen=True)
class ScriptVerdict:
    """What came of a script."""

    script: CorpusScript
    answered: bool
    said: str
    """The step that was found, or why there is none."""
    wall_s: float
    cpu_s: float


def judge(script: CorpusScript, path: Path) -> ScriptVerdict:
    """Run one script."""
    with tempfile.TemporaryDirectory() as name:
        folder = path.parent if script.inside else Path(name) / "here"
        folder.mkdir(exist_ok=True)
        script.data(folder)
        before, begin = _cpu_s(), time.monotonic()
        command = [sys.executable, "-m", "wavecast", "run", "--gpu", GPU, "--json"]
        try:
            done = subprocess.run(
                [*command, *script.options, str(path), *script.arguments],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(_places())},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return ScriptVerdict(
                script, False, f"no answer in {_LIMIT_S} s", _LIMIT_S, _cpu_s() - before
            )
        wall_s, cpu_s = time.monotonic() - begin, _cpu_s() - before
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return ScriptVerdict(script, False, lines[-1], wall_s, cpu_s)
    found = json.loads(done.stdout)
    seconds = found["predictions"][0]["seconds"]
    said = f"{1e3 * seconds:.1f} ms; {found['script']['holds']}; {found['script']['choice']}"
    return ScriptVerdict(script, True, said, wall_s, cpu_s)


def rows(verdicts: Iterable[ScriptVerdict]) -> Iterator[str]:
    """The rows of the table."""
    for one in verdicts:
        words = " ".join((*one.script.options, *one.script.arguments))
        arguments, said = (text.replace(f"{ROOT}/", "") for text in (words, one.said))
        said = said.replace("|", "/")[:160]
        cells = (
            f"`{one.script.name}`" + (f" `{arguments[:60]}`" if arguments else ""),
            "answered" if one.answered else "no answer",
            said,
            f"{one.wall_s:.0f}",
            f"{one.cpu_s:.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def summary(verdicts: Sequence[ScriptVerdict], missing: Sequence[str]) -> Iterator[str]:
    """How many were answered, and what was not tried."""
    answered = sum(one.answered for one in verdicts)
    slow = [one for one in verdicts if one.cpu_s > _LONGEST_CPU_S]
    yield ""
    yield (
        f"{answered} of {len(verdicts)} scripts were answered; {len(slow)} took more than "
        f"{_LONGEST_CPU_S:.0f} CPU s."
    )
    if missing:
        yield ""
        yield f"Not tried, because their repositories were not there: {', '.join(missing)}."


def main(given: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = needs.parser(__doc__)
    parser.add_argument("repositories", nargs="?", type=Path, help="the folder of repositories")
    parser.add_argument("--only", default="", help="scripts whose names have this word in them")
    parser.add_argument("--write", action="store_true", help="write it into the page")
    args = parser.parse_args(given)
    verdicts: list[ScriptVerdict] = []
    missing: dict[str, None] = {}
    lines = list(heading("script | verdict | step, or reason | wall s | CPU s", "lll"))
    print(*lines, sep="\n", flush=True)
    for script in corpus():
        path = (args.repositories or Path("/nowhere")) / script.path
        if args.only not in script.name:
            continue
        if not path.is_file():
            missing[f"`{script.name}`"] = None
            continue
        verdicts.append(judge(script, path.resolve()))
        lines += rows(verdicts[-1:])
        print(lines[-1], flush=True)
    lines += summary(verdicts, list(missing))
    print(*list(summary(verdicts, list(missing))), sep="\n")
    if args.write:
        pages.write(PAGE, MARK, "\n".join(lines))
    if sum(one.answered for one in verdicts) < _ANSWERED * len(verdicts):
        raise SystemExit(1)


def _places() -> list[str]:
    """Where a script finds Wavecast, and packages that a maintainer has installed apart."""
    return [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
