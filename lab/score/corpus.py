"""Which training scripts are answered, and how soon?

    python -m lab score corpus [REPOSITORIES] [--only WORD] [--write]

Needs transformers, accelerate, pytorch-lightning, diffusers and torch_geometric. REPOSITORIES is a
folder with public repositories, each checked out under its own name (nanoGPT, examples); those that
are missing are left out and named. The command runs each script of lab/steps/corpus.py with
`wavecast run`, in a process and a folder of its own with made-up data, and prints a line for each.
--write keeps the lines in measurements/cpu/scripts.md (with --only, the other lines stay), and puts
the sums into docs/appendix/scripts.md. It ends with 1 if fewer than 90% are answered.
"""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import needs, pages
from lab.pages import heading
from lab.places import DOCS, MEASUREMENTS, ROOT
from lab.steps.corpus import CorpusScript, corpus

GPU = "a100-sxm-80gb"
PAGE, MARK = DOCS / "appendix" / "scripts.md", "the corpus of scripts"
ROWS = MEASUREMENTS / "cpu" / "scripts.md"
"""The file with a line for each script."""
_LIMIT_S = 900
_ANSWERED = 0.9
_WIDEST = 40
"""How many letters of a path fit a column of the page."""
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
    answer = json.loads(done.stdout)
    seconds = answer["predictions"][0]["seconds"]
    said = f"{1e3 * seconds:.1f} ms; {answer['script']['holds']}; {answer['script']['choice']}"
    return ScriptVerdict(script, True, said, wall_s, cpu_s)


def cell(script: CorpusScript) -> str:
    """The first cell of a script's row, which no other row has."""
    words = " ".join((*script.options, *script.arguments)).replace(f"{ROOT}/", "")
    parts = [*_breakable(script.name), *([words[:60]] if words else [])]
    return " ".join(f"`{part}`" for part in parts)


def _breakable(path: str) -> list[str]:
    """A path in parts that fit a narrow column."""
    parts = [""]
    for step in path.split("/"):
        if parts[-1] and len(parts[-1]) + len(step) > _WIDEST:
            parts.append("")
        parts[-1] += f"{step}/"
    return [*parts[:-1], parts[-1].removesuffix("/")]


def row(verdict: ScriptVerdict) -> str:
    """The row of the table for a script."""
    cells = (
        cell(verdict.script),
        "answered" if verdict.answered else "no answer",
        re.sub(r"\S+/", "", verdict.said).replace("|", "/")[:160],  # files without their folders
        f"{verdict.wall_s:.0f}",
        f"{verdict.cpu_s:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def summary(rows: Iterable[str], missing: Sequence[str]) -> Iterator[str]:
    """How many were answered, and what was not tried."""
    cells = [[text.strip() for text in line.strip("|").split(" | ")] for line in rows]
    answered = sum(line[1] == "answered" for line in cells)
    slow = [line for line in cells if float(line[-1]) > _LONGEST_CPU_S]
    yield ""
    yield (
        f"{answered} of {len(cells)} scripts were answered; {len(slow)} took more than "
        f"{_LONGEST_CPU_S:.0f} CPU s."
    )
    if missing:
        yield ""
        yield f"Not tried, because their repositories were not there: {', '.join(missing)}."


def by_origin(rows: Iterable[str]) -> Iterator[str]:
    """How many scripts of each origin were answered, and those that were not."""
    groups: dict[str, list[list[str]]] = {}
    for line in rows:
        cells = [text.strip() for text in line.strip("|").split(" | ")]
        origin = next(
            (words for start, words in _ORIGINS if line.startswith(f"| `{start}")), _OTHER
        )
        groups.setdefault(origin, []).append(cells)
    yield from heading("scripts of | number | answered | CPU s, median | CPU s, most")
    for origin, group in groups.items():
        answered = sum(cells[1] == "answered" for cells in group)
        seconds = [float(cells[-1]) for cells in group]
        yield (
            f"| {origin} | {len(group)} | {answered} | {statistics.median(seconds):.0f} "
            f"| {max(seconds):.0f} |"
        )
    unanswered = [c[0] for group in groups.values() for c in group if c[1] != "answered"]
    if unanswered:
        yield f"\nNot answered: {'; '.join(unanswered)}."


_ORIGINS = (("tests/", "this repository"), ("PyPI/", "packages of PyPI"))
_OTHER = "public repositories"


def main(given: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = needs.parser(__doc__)
    parser.add_argument("repositories", nargs="?", type=Path, help="the folder of repositories")
    parser.add_argument("--only", default="", help="scripts whose names have this word in them")
    parser.add_argument("--write", action="store_true", help="write it into the page")
    args = parser.parse_args(given)
    judged: dict[str, str] = {}
    first = list(heading("script | verdict | step, or reason | wall s | CPU s", "lll"))
    print(*first, sep="\n", flush=True)
    for script in corpus():
        path = (args.repositories or Path("/nowhere")) / script.path
        if args.only in script.name and path.is_file():
            judged[cell(script)] = row(judge(script, path.resolve()))
            print(judged[cell(script)], flush=True)
    known = (written() if args.only else {}) | judged
    table = [known[cell(script)] for script in corpus() if cell(script) in known]
    missing = dict.fromkeys(f"`{script.name}`" for script in corpus() if cell(script) not in known)
    end = list(summary(table, list(missing)))
    print(*end, sep="\n")
    if args.write:
        pages.write(ROWS, MARK, "\n".join((*first, *table, *end)))
        pages.write(PAGE, MARK, "\n".join(by_origin(table)))
    if sum("| answered |" in line for line in table) < _ANSWERED * len(table):
        raise SystemExit(1)


def written() -> dict[str, str]:
    """The lines that were kept, by their first cells."""
    lines = pages.section(ROWS, MARK).splitlines()
    return {line[2:].split(" | ")[0]: line for line in lines if line.startswith("| `")}


def _places() -> list[str]:
    """Where a script finds Wavecast, and packages that a maintainer has installed apart."""
    return [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
