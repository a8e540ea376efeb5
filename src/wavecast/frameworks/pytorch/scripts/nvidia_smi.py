"""`nvidia-smi` for the programs that a script starts: it tells of the GPU that is asked about.

A program of this name is put first on the PATH, so that shells and pipes find it, too. What is not
known of a GPU that does not exist, such as its temperature, is "[N/A]", as in the real one.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from torch.utils import _triton

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import is_ours, is_users, user_line
from wavecast.frameworks.pytorch.scripts.redirection import after_import
from wavecast.frameworks.replacements import replacing

_DRIVER_VERSION = "570.124.06"
_UNKNOWN = "[N/A]"
_CSV = "--query-gpu="
_RULE = (
    "+-----------------------------------------+------------------------+----------------------+"
)
_UNITS = {"memory": "MiB", "utilization": "%", "power": "W"}


@contextmanager
def nvidia_smi_on_path(facts: Mapping[str, str], count: int, folder: Path) -> Iterator[None]:
    """Put the program into a new folder, and the folder on the PATH of the block."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    text = _PROGRAM.format(sys.executable, [str(path) for path in sys.path], facts, count)
    # A confined process cannot change the mode of a file later.
    descriptor = os.open(program, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


_PROGRAM = """#!{0} -SE
import sys
sys.path[:] = {1!r}
from wavecast.frameworks.pytorch.scripts.nvidia_smi import main
main(sys.argv[1:], {2!r}, {3})
"""


def facts_of(properties: Any, watts: float | None, cuda: str) -> dict[str, str]:
    """What is known of a GPU, by the names of nvidia-smi's queries, without units."""
    total = str(properties.total_memory >> 20)
    return {
        "name": properties.name,
        "gpu_name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "gpu_uuid": f"GPU-{properties.uuid}",
        "driver_version": _DRIVER_VERSION,
        "cuda_version": cuda,
        "compute_cap": f"{properties.major}.{properties.minor}",
        "pstate": "P0",
        "memory.total": total,
        "memory.used": "0",
        "memory.free": total,
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "power.limit": _UNKNOWN if watts is None else f"{watts:.2f}",
    }


def main(arguments: Sequence[str], facts: Mapping[str, str], count: int) -> None:
    """Answer a call of nvidia-smi."""
    chosen = _chosen(arguments, count)
    query = next((a for a in arguments if a.startswith(_CSV)), None)
    if query is not None:
        lines = _csv(query.removeprefix(_CSV).split(","), arguments, facts, chosen, count)
    elif any(a.startswith(("--query-compute-apps", "--query-accounted-apps")) for a in arguments):
        lines = []
    elif {"-L", "--list-gpus"} & set(arguments):
        lines = [f"GPU {index}: {facts['name']} (UUID: {facts['uuid']})" for index in chosen]
    elif unknown := {"-x", "--xml-format"} & set(arguments):
        sys.stderr.write(f"nvidia-smi {min(unknown)} has no answer on a machine without a GPU\n")
        sys.exit(1)
    elif {"-q", "--query"} & set(arguments):
        lines = [line for index in chosen for line in _report(index, facts)]
    elif arguments and arguments[0] in ("topo", "dmon", "pmon", "nvlink", "mig", "stats"):
        sys.stderr.write(f"nvidia-smi {arguments[0]} has no answer on a machine without a GPU\n")
        sys.exit(1)
    else:
        lines = _table(facts, chosen)
    with suppress(BrokenPipeError):
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def _chosen(arguments: Sequence[str], count: int) -> list[int]:
    """The numbers of the GPUs that are asked about."""
    text = ""
    for option, following in pairwise([*arguments, ""]):
        if option in ("-i", "--id"):
            text = following
        elif option.startswith(("-i=", "--id=")):
            text = option.partition("=")[2]
    numbers = [int(part) for part in text.split(",") if part.isdigit()]
    return [n for n in numbers if n < count] or list(range(count))


def _csv(
    fields: Sequence[str],
    arguments: Sequence[str],
    facts: Mapping[str, str],
    chosen: Sequence[int],
    count: int,
) -> list[str]:
    formats = next((a.partition("=")[2] for a in arguments if a.startswith("--format")), "csv")
    plain = {"noheader", "nounits"} & set(formats.replace(" ", "").split(","))
    fields = [field.strip() for field in fields]

    def value(field: str, index: int) -> str:
        known = {**facts, "index": str(index), "count": str(count)}.get(field, _UNKNOWN)
        unit = _unit(field)
        return known if not unit or "nounits" in plain or known == _UNKNOWN else f"{known} {unit}"

    def header(field: str) -> str:
        unit = _unit(field)
        return f"{field} [{unit}]" if unit and "nounits" not in plain else field

    rows = [", ".join(value(field, index) for field in fields) for index in chosen]
    return rows if "noheader" in plain else [", ".join(map(header, fields)), *rows]


def _unit(field: str) -> str:
    return _UNITS.get(field.partition(".")[0], "")


def _report(index: int, facts: Mapping[str, str]) -> list[str]:
    """A part of what `nvidia-smi -q` says."""
    return [
        f"GPU {index:08}:00:00.0",
        f"    Product Name                          : {facts['name']}",
        f"    GPU UUID                              : {facts['uuid']}",
        "    FB Memory Usage",
        f"        Total                             : {facts['memory.total']} MiB",
        "        Used                              : 0 MiB",
        f"        Free                              : {facts['memory.free']} MiB",
    ]


def _table(facts: Mapping[str, str], chosen: Sequence[int]) -> list[str]:
    """The table that nvidia-smi shows without options."""
    driver = f"| NVIDIA-SMI {_DRIVER_VERSION:<23}Driver Version: {_DRIVER_VERSION:<15}"
    memory = f"0MiB / {facts['memory.total']:>6}MiB"
    limit = facts["power.limit"].partition(".")[0]
    power = f"N/A / {'N/A' if limit == _UNKNOWN else limit + 'W':>5}"
    lines = [
        "+" + "-" * (len(_RULE) - 2) + "+",
        f"{driver}CUDA Version: {facts['cuda_version']:<9}|",
        "|" + _RULE[1:-1] + "|",
        f"| {'GPU  Name':<26}Persistence-M | {'Bus-Id':<16}Disp.A | Volatile Uncorr. ECC |",
        f"| {'Fan  Temp   Perf':<26}Pwr:Usage/Cap | {'Memory-Usage':>22} | GPU-Util  Compute M. |",
        "|" + _RULE[1:-1].replace("-", "=") + "|",
    ]
    for index in chosen:
        name = facts["name"]
        lines += [
            f"| {index:>3}  {name:<30.30} Off |   {index:08}:00:00.0 Off |                  N/A |",
            f"| N/A  N/A    P0   {power:>22} | {memory:>22} |      0%      Default |",
            _RULE,
        ]
    return lines


# Triton in scripts: kernels are defined as always, and refused where one is launched.
#
# What a kernel of Triton costs is not known without a GPU. Where Triton is not installed, the
# script's own code gets names in its place, so that files that define kernels can be imported.
# Libraries and torch itself find what is there.


_NAME = "triton"
_VERSION = "3.4.0"
"""Scripts compare it with the oldest one that they need."""


@contextmanager
def kernels_refused() -> Iterator[None]:
    """Let the block import Triton, and refuse its kernels where they are launched."""

    def refuse_launch(kernel: Any, *_: Any, **__: Any) -> None:
        _refuse(getattr(kernel, "__name__", "?"))

    finder = _TritonFinder()
    sys.meta_path.append(finder)  # the last one: it finds what no other does
    try:
        with (
            replacing() as replace,
            after_import(
                f"{_NAME}.runtime.jit", lambda jit: replace(jit.JITFunction, run=refuse_launch)
            ),
        ):
            yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n, module in sys.modules.items() if isinstance(module, _TritonModule)]:
            del sys.modules[name]


def _refuse(kernel: str) -> Any:
    raise CaptureError(
        f"the step launches the Triton kernel {kernel} at {user_line()}, whose time is not known; "
        "call torch's own ops there, or give the kernel a fake form with torch.library.custom_op "
        "and register_fake, and a cost (Add an op in the documents)"
    )


class _TritonFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds Triton for the user's own code."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The spec of Triton or a part of it. None for other modules and for libraries."""
        if fullname.partition(".")[0] != _NAME or not _is_imported_by_user():
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """A module that has every name."""
        if spec.name == _NAME:
            # Torch remembers whether there is a Triton, and shall not take this one for it.
            _triton.has_triton_package()
            _triton.get_triton_version()
            importlib.import_module("torch._inductor.runtime.triton_compat")
        return _TritonModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the functions that are called where kernels are defined."""
        if module.__name__ == _NAME:
            vars(module).update(_FUNCTIONS, __version__=_VERSION)


def _is_imported_by_user() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.startswith("<frozen import")
    ):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


class _TritonModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _TritonName(f"{self.__name__}.{name}")


class _TritonName:
    """Something of Triton's: only its name is known. It stands in annotations and in kernels."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _TritonName(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        if self._name.endswith(".constexpr"):
            return arguments[0]
        raise CaptureError(
            f"{self._name} is called at {user_line()}, and Triton is not installed here; without "
            "it, only files that define kernels can be imported"
        )


class _TritonKernel:
    """A function that `triton.jit` would compile."""

    def __init__(self, function: Any) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "?")

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _refuse(self.__name__)

    run = warmup = __call__


def _jit(function: Any = None, **_: Any) -> Any:
    return _TritonKernel if function is None else _TritonKernel(function)


_FUNCTIONS: dict[str, Any] = {
    "jit": _jit,
    "autotune": lambda *_, **__: lambda kernel: kernel,
    "heuristics": lambda *_, **__: lambda kernel: kernel,
    "Config": lambda *_, **__: None,
    "cdiv": lambda number, by: -(-number // by),
    "next_power_of_2": lambda number: 1 << max(number - 1, 0).bit_length(),
}
