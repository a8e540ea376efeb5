"""What a command of the lab needs beside the repository: public tables, and libraries.

A command that lacks one of them stops at once, with one line that says what to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

SOURCES = "docs/sources.md"
FILES: dict[str, tuple[str, ...]] = {
    "cluster": (
        *("throughputs.csv", "anchors.csv", "jobs_philly_2017-10.csv", "jobs_muri_cluster.csv"),
        *("jobs_shockwave_120.csv", "jobs_elasticflow_deadline_first.csv"),
    ),
    "deepbench": ("ops.parquet",),
    "dlperf": ("throughput.parquet",),
    "distributed": ("collectives.csv", "steps.parquet"),
    "kernels": (
        *("gemm.parquet", "gemm_replicate.parquet", "attention.parquet"),
        *("vidur_gemm.parquet", "vidur_ops.parquet", "vidur_attention.parquet"),
        *("collectives.parquet", "vidur_collectives.parquet"),
    ),
    "lambda": ("lambda_throughput.csv", "lambda_scaling.csv"),
    "neusight": ("ops.parquet", "end_to_end.parquet"),
    "nvidia": ("nvidia_perf.csv",),
    "prices": ("gpu_prices.csv",),
    "timm": ("timm_train.csv", "timm_infer.parquet"),
    "torchcnn": ("steps.parquet",),
}
"""The files that commands read, by the set of public measurements: `--data` has a folder of each
set."""
SINGLE_OPS = ("neusight", "kernels", "deepbench")
STEPS = ("neusight", "timm", "lambda", "nvidia", "torchcnn")
OPS_AND_STEPS = tuple(dict.fromkeys((*SINGLE_OPS, *STEPS)))

_INSTALL = {
    "pandas": "pip install pandas pyarrow",
    "pyarrow": "pip install pandas pyarrow",
    "scipy": "pip install scipy",
    "torch": "pip install torch",
    "transformers": "pip install transformers",
    # timm asks for torchvision, whose builds are for a CUDA build of torch. Beside a CPU build it
    # would keep transformers from being imported, so neither is in the dependency groups.
    "timm": "pip install --no-deps timm torchvision pillow",
    "torchvision": "pip install --no-deps torchvision pillow",
}


def parser(about: str | None) -> argparse.ArgumentParser:
    """The parser of a command, whose help is the docstring of its module."""
    return argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


@contextmanager
def needing(what: str) -> Iterator[None]:
    """A block whose missing imports end the command with one line that says what to install.

    Args:
        what: the thing that needs the library, as the line's first words.

    Raises:
        SystemExit: a library is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _INSTALL:
            raise
        raise SystemExit(f"{what} needs {library}: {_INSTALL[library]}") from error


def require(what: str, *libraries: str) -> None:
    """End the command with one line if a library is not installed; nothing is imported.

    Raises:
        SystemExit: a library is not installed.
    """
    with needing(what):
        for library in libraries:
            if find_spec(library) is None:
                raise ModuleNotFoundError(name=library)


def check_tables(data: Path | None, sets: Iterable[str], who: str = "this command") -> None:
    """Check that a folder has the public tables that a command reads.

    Args:
        data: the folder that `--data` names.
        sets: names of the sets that are read (`FILES`).
        who: who reads them, for the message.

    Raises:
        ValueError: no folder was given, it does not exist, it is empty, or it lacks a file.
    """
    names = sorted(set(sets))
    if not names:
        return
    asked = f"{who} reads the public tables {', '.join(names)}"
    where = f"{SOURCES} says where they come from"
    if data is None:
        raise ValueError(f"{asked}: give their folder with --data; {where}")
    if not data.is_dir():
        raise ValueError(f"{asked}, but {data} is not a folder; {where}")
    if not any(data.iterdir()):
        raise ValueError(f"{asked}, but the folder {data} is empty; {where}")
    missing = [f"{name}/{file}" for name in names for file in FILES[name]]
    missing = [name for name in missing if not (data / name).is_file()]
    if missing:
        raise ValueError(f"{asked}, but {data} lacks {', '.join(missing)}; {where}")


def tables(*sets: str) -> Callable[[str], Path]:
    """The type of an argparse argument that names a folder with these sets of public tables."""

    def checked(text: str) -> Path:
        try:
            check_tables(Path(text), sets)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return Path(text)

    return checked


def add_data(parser: argparse.ArgumentParser, *sets: str, required: bool = True) -> None:
    """Add `--data FOLDER` to a command that reads these sets of public tables."""
    parser.add_argument(
        "--data",
        type=tables(*sets),
        required=required,
        metavar="FOLDER",
        help=f"folder of the public tables {', '.join(sets)} ({SOURCES})",
    )
