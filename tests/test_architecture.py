"""The architecture as rules, checked on the syntax trees: who may import whom, and how long."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import wavecast

SOURCE = Path(wavecast.__file__).parent
ROOT = Path(__file__).parents[1]
FILES = sorted(SOURCE.rglob("*.py"))
LAB = sorted((ROOT / "lab").rglob("*.py"))

# The rooms of the house, in the order in which data flows. A module imports from its own room and
# from rooms above its own; what runs only inside a function, and what only a type checker sees,
# counts as well.
HOUSES: dict[str, tuple[str, ...]] = {
    "wavecast": (
        *("errors", "reading", "files", "results", "traces", "ops", "hardware", "predictors"),
        *("parallel", "footprint", "steps", "analysis", "runs", "planning", "suite"),
        *("frameworks", "targets", "advice", "campaigns", "doctor"),
        "",  # the public face
        *("integrations", "report", "server", "cli", "__main__"),
    ),
    "wavecast/predictors": (
        *("", "attention_kernels", "retargeting", "base", "collectives", "attainable", "mlp"),
        *("learned",),
        *("corrected", "wave", "habitat"),
    ),
    "wavecast/frameworks": (
        *("", "replacements", "confinement", "stages", "script_results", "target_files"),
        "children",
        *("jax", "kineto", "ncu", "pytorch"),
    ),
    "wavecast/targets": ("", "scripts", "targets", "sources"),
    "wavecast/frameworks/pytorch": (
        *("", "recording", "drawn", "layers", "capture", "compiled", "changes", "scripts"),
        *("measurement", "installation", "huggingface"),
    ),
    "lab": ("", "steps", "measured", "collect", "fit", "score", "__main__"),
}
# Imports that point the other way, each with the reason why it must.
UPWARD = {
    ("wavecast/traces/step", "wavecast/steps/request"): "Habitat's listing: Trace.to_device",
    ("wavecast/traces/step", "wavecast/steps/prediction"): "the type of its result",
    ("wavecast/traces/step", "wavecast/hardware/devices"): "the type of its argument",
    ("wavecast/results", "wavecast/report/notebook"): "how a notebook shows any result",
}

NEEDS_TORCH = ("frameworks/", "suite/", "integrations/")
LIGHT = ("suite/__init__.py", "frameworks/__init__.py")
HEAVY = ("torch", "transformers", "timm", "numpy", "scipy", "rich", "typer", "fastapi", "uvicorn")

LONGEST_FUNCTION = 60

PUBLIC = [
    "CaptureError",
    "Device",
    "DoubtfulInput",
    "EndToEnd",
    "Estimate",
    "Extrapolation",
    "FamilyTraces",
    "Host",
    "InvalidInput",
    "LargerBatch",
    "LargestBatch",
    "LayerTime",
    "Measurement",
    "Memory",
    "MissingExtra",
    "OperationTracker",
    "Parallel",
    "PerLayer",
    "Prediction",
    "Predictor",
    "Price",
    "Proposal",
    "Run",
    "RunStore",
    "Scaler",
    "ScriptPart",
    "ScriptRun",
    "StepAdvice",
    "StepComparison",
    "StoreUnavailable",
    "Trace",
    "TrainingCost",
    "TrainingPlan",
    "UnknownName",
    "WavecastError",
    "advise",
    "caffe_net",
    "compare",
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
    "published",
    "read_kineto",
    "read_runs",
    "run_script",
    "trace",
    "trace_jax",
    "training_cost",
]


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def name_of(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_of(file: Path) -> str:
    """`wavecast/steps/player` or `lab/fit/host`; a package goes by the name of its folder."""
    root = SOURCE.parent if file.is_relative_to(SOURCE) else ROOT
    return file.relative_to(root).with_suffix("").as_posix().removesuffix("/__init__")


def imports_of(file: Path) -> Iterator[tuple[str, bool]]:
    """Every module that a file names in an import, and whether at the top of the file."""
    at_top = set(map(id, tree_of(file).body))
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.replace(".", "/"), id(node) in at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            place = (node.module or "").replace(".", "/")
            for alias in node.names:
                inner = f"{place}/{alias.name}"
                yield (inner if inner in MODULES else place), id(node) in at_top


def our_imports(file: Path) -> set[str]:
    """The modules of the package and of the lab that a file imports, wherever it does."""
    return {module for module, _ in imports_of(file) if module in MODULES}


def room_of(module: str, house: str) -> str:
    """The part of a house in which a module is: "steps" of "wavecast/steps/player"."""
    inner = module.removeprefix(house).strip("/").split("/")
    # A file of the house itself goes by its name where that is listed, else by "".
    return inner[0] if inner[0] in HOUSES[house] or len(inner) > 1 else ""


MODULES = {module_of(file) for file in (*FILES, *LAB)}


def points_down(module: str, imported: str) -> str | None:
    """In which house an import points to a later room; None if it does in no house."""
    for house, rooms in HOUSES.items():
        if all(f"{each}/".startswith(f"{house}/") for each in (module, imported)):
            here, there = room_of(module, house), room_of(imported, house)
            if here != there and rooms.index(there) > rooms.index(here):
                return house
    return None


def test_imports_point_one_way() -> None:
    pairs = {(module_of(file), one) for file in (*FILES, *LAB) for one in our_imports(file)}
    wrong = {pair: points_down(*pair) for pair in pairs - set(UPWARD)}
    assert {pair: house for pair, house in wrong.items() if house is not None} == {}


def test_every_room_exists_and_every_exception_is_used() -> None:
    for house, rooms in HOUSES.items():
        inside = {module for module in MODULES if f"{module}/".startswith(f"{house}/")}
        assert {room_of(module, house) for module in inside} == set(rooms), house
    used = {(module_of(f), imported) for f in (*FILES, *LAB) for imported in our_imports(f)}
    assert set(UPWARD) <= used
    assert all(points_down(*pair) for pair in UPWARD)


def test_nobody_imports_the_report_the_server_or_the_command_line_or_the_lab() -> None:
    for file in FILES:
        if part_of(file) not in ("report", "server", "cli", "__main__"):
            others = {one for one in our_imports(file) if (module_of(file), one) not in UPWARD}
            tops = {imported.split("/")[1] for imported in others if "/" in imported}
            assert not {"report", "server", "cli"} & tops
        assert not [module for module, _ in imports_of(file) if module.split("/")[0] == "lab"]


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for file in (*FILES, *LAB):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module_of(file))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_package_has_the_name_of_a_public_function() -> None:
    packages = {path.name for path in SOURCE.iterdir()} | {
        path.stem for path in SOURCE.glob("*.py")
    }
    assert not packages & set(PUBLIC)


def test_only_frameworks_and_suite_models_import_torch() -> None:
    others = [f for f in FILES if not name_of(f).startswith(NEEDS_TORCH) or name_of(f) in LIGHT]
    importing = {
        name_of(file)
        for file in others
        for module, at_top in imports_of(file)
        if at_top and module.split("/")[0] in ("torch", "transformers", "timm")
    }
    assert importing == set()


def test_importing_wavecast_imports_nothing_heavy() -> None:
    code = "import json, sys, wavecast; print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(run.stdout)) & set(HEAVY)


def test_the_public_names_are_these() -> None:
    assert sorted(wavecast.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(wavecast, name).__doc__, f"{name} needs a docstring"


def lines_beside_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    described = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - described


def test_functions_are_short() -> None:
    lines = {
        f"{module_of(file)}:{node.name}": lines_beside_docstring(node)
        for file in (*FILES, *LAB)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: n for name, n in lines.items() if n > LONGEST_FUNCTION} == {}


def test_no_file_leaves_work_undone() -> None:
    texts = {name_of(file): file.read_text(encoding="utf-8") for file in FILES}
    marks = ("TODO", "FIXME", "XXX")
    assert [name for name, text in texts.items() if any(mark in text for mark in marks)] == []


def called_in(file: Path) -> set[str]:
    """The functions that a file calls, as they are written."""
    return {ast.unparse(n.func) for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call)}


def test_nothing_reads_code_from_data() -> None:
    modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    functions = {"eval", "exec", "torch.load", "os.system"}
    for file in FILES:
        imported = {module.split("/")[0] for module, _ in imports_of(file)}
        assert not imported & modules, name_of(file)
        assert not called_in(file) & functions, name_of(file)


def test_nothing_prints_but_the_screen_of_the_command_line() -> None:
    printing = {name_of(file) for file in FILES if "print" in called_in(file)}
    assert {name for name in printing if not name.endswith("/screen.py")} == set()
