"""The architecture as rules, checked on the syntax trees: who may import whom, and how long."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import wavecast

SOURCE = Path(wavecast.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# A part is a module or a folder of the package; `__init__` is the public face.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "trace": set(),
    "trace_columns": {"trace"},
    "trace_file": {"trace", "trace_columns", "errors"},
    "toml_file": {"errors"},
    "devices": {"toml_file", "errors"},
    "prices": {"devices", "toml_file", "errors"},
    "families": {"devices"},
    "op_costs": {"trace", "errors"},
    "ops": {"op_costs", "trace", "errors"},
    "op_models": {"trace", "devices", "op_costs", "ops"},
    "workspaces": {"trace", "devices", "op_costs", "ops"},
    "allocator": {"errors"},
    "replay": {"trace", "allocator", "workspaces"},
    "contexts": {"trace", "devices", "ops"},
    "footprint": {"trace", "devices", "contexts", "replay", "workspaces", "errors"},
    "advice": {"trace", "ops", "footprint"},
    "capacity": {
        *("trace", "devices", "families", "contexts", "allocator", "replay", "workspaces"),
        "errors",
    },
    "layers": {"errors"},
    "append_file": {"errors"},
    "collection": {"append_file", "layers", "errors"},
    "stability": {"errors"},
    "runs": {"errors"},
    "complexities": {"errors"},
    "run_readers": {"runs", "stability", "errors"},
    "run_store": {"runs", "run_readers", "errors"},
    "campaign": {
        *("append_file", "stability", "suite", "devices", "families", "trace"),
        *("prediction", "analysis", "columns", "workspaces", "errors"),
    },
    "frameworks": {
        *("trace", "intervals", "devices", "ops", "layers", "collection"),
        *("runs", "run_readers", "complexities", "errors"),
    },
    "suite": {"errors"},
    "timeline": {"trace", "ops", "errors"},
    "intervals": {"trace"},
    "ranges": set(),
    "columns": {"trace", "ops"},
    "pace": {"trace", "ops", "intervals", "timeline"},
    "hosts": {"devices", "timeline", "toml_file", "errors"},
    "estimates": {"trace", "devices", "columns", "errors"},
    "prediction": {
        *("trace", "devices", "columns", "estimates", "hosts", "pace", "timeline", "ranges"),
        "errors",
    },
    "batches": {"prediction", "errors"},
    "regression": {"complexities", "runs", "devices", "trace", "prediction", "errors"},
    "predictors": {"trace", "devices", "ops", "op_models", "layers", "prediction", "errors"},
    "analysis": {
        *("trace", "devices", "ops", "intervals", "columns"),
        *("prediction", "predictors", "workspaces"),
    },
    "counters": {"trace", "errors"},
    "pieces": {"trace", "counters", "errors"},
    "fitting": {"collection", "devices", "predictors", "errors"},
    "device_file": {"devices", "toml_file"},
    "report": {
        *("trace", "devices", "prices", "ops", "intervals", "hosts", "timeline"),
        *("prediction", "batches", "analysis", "suite", "campaign", "runs", "regression"),
        "errors",
        *("footprint", "advice", "capacity", "contexts"),
    },
    "targets": {"trace", "trace_file", "suite", "errors"},
    "__init__": {"trace", "devices", "families", "prices", "runs", "errors"},
    "cli": {
        *("__init__", "trace", "trace_file", "devices", "families", "suite"),
        *("report", "targets", "runs", "errors"),
    },
    "__main__": {"cli"},
}

# Imports inside a function, which would be circles or slow at module level.
MAY_IMPORT_LATE: dict[str, set[str]] = {
    # `Trace.save`, `Trace.to_device` and `load_trace` read well where Trace is
    "trace": {"trace_file", "prediction"},
    "prediction": {"predictors"},  # the default one
    "__init__": {"frameworks", "prediction", "timeline"},  # torch and numpy
    # numpy and torch
    "cli": {
        *("predictors", "frameworks", "collection", "counters", "device_file", "hosts"),
        *("fitting", "analysis", "campaign", "pieces", "prediction"),
        *("footprint", "advice"),
        *("run_readers", "run_store", "regression"),
    },
    "frameworks": {"__init__"},  # the store of runs
    "run_readers": {"campaign"},  # numpy
    "targets": {"frameworks"},  # only for a profiler file
    "fitting": {"frameworks"},  # torch
    "campaign": {"frameworks"},  # torch
    "capacity": {"frameworks"},  # torch
}

NEEDS_TORCH = ("frameworks/", "suite/")
LIGHT = ("suite/__init__.py", "frameworks/__init__.py")
HEAVY = ("torch", "transformers", "timm", "numpy", "scipy", "rich", "typer")

LONGEST_FILE = 400
LONGEST_FUNCTION = 60
LONG_FILES = {
    "devices.py": "one story: what a device file may say, and finding a device by its name",
}

PUBLIC = [
    "CaptureError",
    "Device",
    "DoubtfulInput",
    "EndToEnd",
    "Estimate",
    "Extrapolation",
    "Host",
    "InvalidInput",
    "LargerBatch",
    "LargestBatch",
    "Measurement",
    "Memory",
    "MissingExtra",
    "OperationTracker",
    "PerLayer",
    "Prediction",
    "Predictor",
    "Price",
    "Run",
    "RunStore",
    "Scaler",
    "StoreUnavailable",
    "Trace",
    "UnknownName",
    "WavecastError",
    "device",
    "devices",
    "extrapolate_batch",
    "load_trace",
    "max_batch",
    "measure",
    "memory",
    "network_of",
    "predict",
    "price",
    "read_kineto",
    "read_runs",
    "trace",
]

every_file = pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def name_of(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def walk(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import that runs, and whether only when a function is called."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, late or inside)


def modules_imported(file: Path) -> Iterator[tuple[str, bool]]:
    for statement, late in walk(tree_of(file)):
        if isinstance(statement, ast.Import):
            yield from ((alias.name, late) for alias in statement.names)
        elif statement.module == "wavecast":
            yield from ((f"wavecast.{alias.name}", late) for alias in statement.names)
        else:
            yield statement.module or "", late


def our_parts_imported(file: Path) -> Iterator[tuple[str, bool]]:
    parts = {part_of(each) for each in FILES}
    for module, late in modules_imported(file):
        if module.split(".")[0] == "wavecast":
            part = module.split(".")[1] if "." in module else ""
            yield (part if part in parts else "__init__"), late


@every_file
def test_a_part_imports_only_what_it_may(file: Path) -> None:
    part = part_of(file)
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what {part} may import"
    for imported, late in our_parts_imported(file):
        allowed = MAY_IMPORT[part] | (MAY_IMPORT_LATE.get(part, set()) if late else set())
        assert imported == part or imported in allowed, f"{part} must not import {imported}"


def test_the_rules_name_only_parts_that_exist() -> None:
    parts = {part_of(file) for file in FILES}
    rules = [*MAY_IMPORT.items(), *MAY_IMPORT_LATE.items()]
    assert {name for part, allowed in rules for name in (part, *allowed)} <= parts


def test_nobody_imports_the_report_or_the_command_line() -> None:
    for file in FILES:
        if part_of(file) not in ("report", "cli", "__main__"):
            assert not {"report", "cli"} & {part for part, _ in our_parts_imported(file)}


def test_imports_make_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        free = {part for part, allowed in MAY_IMPORT.items() if allowed <= done} - done
        assert free, f"these import each other: {sorted(MAY_IMPORT.keys() - done)}"
        done |= free


@every_file
def test_only_frameworks_and_suite_models_import_torch(file: Path) -> None:
    name = name_of(file)
    if name.startswith(NEEDS_TORCH) and name not in LIGHT:
        return
    for module, late in modules_imported(file):
        if not late:
            assert module.split(".")[0] not in ("torch", "transformers", "timm")


def test_importing_wavecast_imports_nothing_heavy() -> None:
    code = "import json, sys, wavecast; print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(run.stdout)) & set(HEAVY)


def test_the_public_names_are_these() -> None:
    assert sorted(wavecast.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(wavecast, name).__doc__, f"{name} needs a docstring"


@every_file
def test_files_are_short(file: Path) -> None:
    lines = len(file.read_text(encoding="utf-8").splitlines())
    if name_of(file) in LONG_FILES:
        assert lines > LONGEST_FILE, f"{name_of(file)} needs no exception any more"
    else:
        assert lines <= LONGEST_FILE, "split it by story"


@every_file
def test_functions_are_short(file: Path) -> None:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= LONGEST_FUNCTION, f"{node.name} has {lines} lines"


@every_file
def test_no_file_leaves_work_undone(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not [word for word in ("TODO", "FIXME", "XXX") if word in text]


@every_file
def test_nothing_reads_code_from_data(file: Path) -> None:
    imported = {module.split(".")[0] for module, _ in modules_imported(file)}
    assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    called = {ast.unparse(n.func) for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call)}
    assert not called & {"eval", "exec", "torch.load", "os.system"}


@every_file
def test_nothing_prints_but_the_command_line(file: Path) -> None:
    if part_of(file) == "cli":
        return
    called = {ast.unparse(n.func) for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call)}
    assert "print" not in called
