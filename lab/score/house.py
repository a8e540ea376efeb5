"""Measure the architecture: run on two commits to compare them.

    python -m lab.score.house               # numbers of this checkout
    python lab/score/house.py OTHER         # numbers of another checkout
    python -m lab.score.house --walks       # the parts of the package that a question passes

A walk runs a command of wavecast and lists the parts (folders or modules directly below
`src/wavecast`) whose functions run, in the order in which they are first entered; reading files and
raising errors is not counted. To walk another commit, put its `src` first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("src/wavecast", "lab", "training", "benchmarks")
WALKS = {
    "step to table": ["predict", "resnet50", "--gpu", "l4"],
    "profile to table": ["predict", "{profile}", "--gpu", "l4"],
    "log to prediction": "runs predict vgg16 --from {runs} --batch 64 --iterations 90000".split(),
    "memory question": ["fits", "resnet50", "--gpu", "l4"],
}
PLUMBING = ("errors", "files", "toml_file", "append_file")
_WALK = """
import json, sys
parts = []
def enter(frame, event, argument):
    name = frame.f_globals.get("__name__", "") if event == "call" else ""
    if name.startswith("wavecast.") and frame.f_code.co_name != "<module>":
        part = name.split(".")[1]
        if part not in parts:
            parts.append(part)
from wavecast.cli import main
sys.setprofile(enter)
try:
    main(sys.argv[1:]) if main.__code__.co_argcount else main()
except SystemExit:
    pass
sys.setprofile(None)
print("PARTS" + json.dumps(parts))
"""


def files_of(root: Path) -> Iterator[Path]:
    """The Python files of the package and of the code that fits and judges it."""
    for folder in CODE:
        yield from sorted((root / folder).rglob("*.py"))


def numbers(root: Path) -> dict[str, int]:
    """What can be counted of a checkout."""
    package = root / "src/wavecast"
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files_of(root)}
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path, tree in trees.items()
        if path.is_relative_to(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = [_lines_of(path) for path in package.rglob("*.py")]
    records = [p for name in ("adr", "appendix") for p in (root / "docs" / name).glob("*.md")]
    pages = {*(root / "docs").rglob("*.md"), root / "README.md"} - set(records)
    words = Counter(
        node.id for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Name)
    )
    return {
        "modules at the root": len(list(package.glob("*.py"))),
        "modules": len(lines),
        "class names defined more than once": sum(count > 1 for count in classes.values()),
        "longest file (lines)": max(lines),
        "longest function (lines)": max(functions),
        "longest page of docs (lines)": max(map(_lines_of, pages)),
        "lines of docs": sum(map(_lines_of, pages)),
        "lines of decision records and generated appendices": sum(map(_lines_of, records)),
        "uses of a variable `found`": words["found"],
        "uses of a variable `each`": words["each"],
        "tracked megabytes": round(_tracked_bytes(root) / 1e6),
    }


def _lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _tracked_bytes(root: Path) -> int:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True
    )
    paths = (root / name for name in listed.stdout.split("\0") if name)
    return sum(path.stat().st_size for path in paths if path.is_file())


def walk(arguments: list[str]) -> list[str]:
    """The parts of the installed package that a command passes, in order."""
    done = subprocess.run(
        [sys.executable, "-c", _WALK, *arguments], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("PARTS")]
    if not said:
        raise SystemExit(f"wavecast {' '.join(arguments)} failed: {done.stderr.strip()}")
    parts: list[str] = json.loads(said[0].removeprefix("PARTS"))
    return [part for part in parts if part not in PLUMBING]


def main() -> None:
    """Print numbers, or walks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--walks", action="store_true")
    parser.add_argument("--profile", type=Path, help="a torch.profiler file, to walk from")
    parser.add_argument("--runs", type=Path, default=ROOT / "examples/runs.csv")
    asked = parser.parse_args()
    if not asked.walks:
        for name, number in numbers(asked.root).items():
            print(f"{number:6}  {name}")
        return
    for name, command in WALKS.items():
        if "{profile}" in command and asked.profile is None:
            continue
        given = [word.format(profile=asked.profile, runs=asked.runs) for word in command]
        parts = walk(given)
        print(f"{name}: {len(parts)} parts: {', '.join(parts)}")


if __name__ == "__main__":
    main()
