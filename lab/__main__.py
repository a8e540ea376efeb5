"""From measurements to everything that ships fitted: data/models and data/hosts.

    python -m lab --data FOLDER [--cache FOLDER]       all of it, in order
    python -m lab learned generations --data FOLDER    these, in the same order
    python -m lab --list                               what there is

FOLDER of `--data` has the public tables, each in a folder of its own (`--list` says which).
That of `--cache` keeps what takes long: traces of published steps, fits with GPUs left out, the
networks as they are fitted. Our own measurements are in the repository. Seeds are fixed, and cards
have hashes of the data: the same data give the same files, but for the date on a card. The networks
(`mlp`) are fitted on a GPU where there is one, whose sums differ in the last digits; on a CPU they
take hours.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.places import H200, ROOT

SHIPPED = ROOT / "src" / "wavecast" / "data"
LAYERS = H200 / "layers"
CACHE = ROOT / ".cache" / "training"
SINGLE_OPS = ("neusight", "kernels", "deepbench")
STEPS = ("neusight", "timm", "lambda", "nvidia", "torchcnn")


@dataclass(frozen=True)
class Folders:
    """Where a fit reads, and keeps what takes long."""

    data: Path
    cache: Path


@dataclass(frozen=True)
class ShippedFit:
    """One step on the way from data to weights."""

    name: str
    about: str
    run: Callable[[Folders], None]
    files: tuple[str, ...] = ()
    """What it writes, as patterns within `SHIPPED`."""
    tables: tuple[str, ...] = ()
    """Folders of public data that it reads."""


def _attainable(folders: Folders) -> None:
    from lab.fit import attainable

    attainable.main([str(folders.data)])


def _mlp(folders: Folders) -> None:
    import torch

    from lab.fit import mlp

    tables, out = folders.cache / "public.npz", folders.cache / "mlp"
    mlp.main(["prepare", str(folders.data), str(tables)])
    layers = [str(path) for path in sorted(LAYERS.glob("*.csv"))]
    where = [] if torch.cuda.is_available() else ["--device", "cpu", "--eager"]
    mlp.main(["fit", str(tables), *layers, "--out", str(out), "--widths", "256", *where])
    for path in (*out.glob("mlp-*.npz"), *out.glob("mlp-*.toml")):
        shutil.copyfile(path, SHIPPED / "models" / path.name)


def _workspaces(_: Folders) -> None:
    from lab.fit import workspaces

    workspaces.main()


def _learned(folders: Folders) -> None:
    from lab.fit import learned

    learned.main(["--data", str(folders.data)])


def _grouped(_: Folders) -> None:
    from lab.fit import grouped

    grouped.main()


def _generations(folders: Folders) -> None:
    from lab.fit import generations

    generations.main(["--data", str(folders.data), "--cache", str(folders.cache)])


def _host(_: Folders) -> None:
    from lab.fit import host

    host.main()


def _host_reference(_: Folders) -> None:
    from lab.fit import host_reference

    host_reference.main()


def _ranges(folders: Folders) -> None:
    from lab.score import ranges

    ranges.main(["--data", str(folders.data), "--cache", str(folders.cache)])


FITS = (
    ShippedFit(
        "attainable",
        "shares of the roofline that ops attain",
        _attainable,
        ("models/attainable.toml",),
        SINGLE_OPS,
    ),
    ShippedFit("mlp", "Habitat's networks", _mlp, ("models/mlp-*",), ("neusight", "deepbench")),
    ShippedFit(
        "workspaces",
        "what cuDNN takes as workspace",
        _workspaces,
        ("models/workspaces.toml",),
    ),
    ShippedFit(
        "learned",
        "physics of ops and learned efficiencies",
        _learned,
        ("models/learned.npz", "models/learned.toml"),
        SINGLE_OPS,
    ),
    ShippedFit("grouped", "the kernel for grouped products", _grouped, ("models/grouped.toml",)),
    ShippedFit(
        "generations",
        "what whole steps say of generations of GPUs",
        _generations,
        ("models/generations.toml",),
        tuple(dict.fromkeys((*SINGLE_OPS, *STEPS))),
    ),
    ShippedFit("host", "costs of issuing: prints those for timeline.REFERENCE_HOST", _host),
    ShippedFit(
        "host_reference",
        "the host benchmark on the reference host",
        _host_reference,
        ("hosts/reference.toml",),
    ),
    ShippedFit(
        "ranges",
        "how wide the ranges of steps are",
        _ranges,
        ("models/ranges.toml",),
        tuple(dict.fromkeys((*SINGLE_OPS, *STEPS))),
    ),
)
"""In the order in which one needs another."""


def chosen(names: Sequence[str], known: Sequence[ShippedFit] = FITS) -> list[ShippedFit]:
    """The fits of these names, in their order; all where none is named.

    Raises:
        ValueError: a name that is none of a fit, said with the nearest.
    """
    all_names = [fit.name for fit in known]
    for name in names:
        if name not in all_names:
            near = difflib.get_close_matches(name, all_names, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"no fit is called {name!r}{meant}; there are {', '.join(all_names)}")
    return [fit for fit in known if not names or fit.name in names]


def check_data(fits: Sequence[ShippedFit], data: Path | None) -> None:
    """That the tables are there, before anything is fitted.

    Raises:
        ValueError: no folder was given, or what it lacks.
    """
    needed = {table: fit.name for fit in reversed(fits) for table in fit.tables}
    if not needed:
        return
    who = ", ".join(fit.name for fit in fits if fit.tables)
    if data is None:
        raise ValueError(f"{who}: read public tables; give their folder with --data")
    if not data.is_dir():
        raise ValueError(f"--data {data} is not a folder; {who} read public tables from it")
    missing = [f"{name} (for {fit})" for name, fit in needed.items() if not (data / name).is_dir()]
    if missing:
        raise ValueError(f"--data {data} lacks the folders {', '.join(sorted(missing))}")


def contents(fit: ShippedFit, shipped: Path) -> dict[str, str]:
    """A hash of each file of a fit, but for the date of a card."""
    found = {}
    for path in sorted(path for pattern in fit.files for path in shipped.glob(pattern)):
        lines = path.read_bytes().split(b"\n")
        if path.suffix == ".toml":
            lines = [line for line in lines if not line.startswith(b"fitted = ")]
        found[path.relative_to(shipped).as_posix()] = hashlib.sha256(b"\n".join(lines)).hexdigest()
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """A line for each file: new, changed, or the same."""
    for name, digest in after.items():
        how = "new" if name not in before else "changed"
        yield f"{name}: {'as before' if before.get(name) == digest else how}"


def run(fits: Sequence[ShippedFit], folders: Folders, shipped: Path = SHIPPED) -> None:
    """Fit one after the other, and say what each wrote."""
    folders.cache.mkdir(parents=True, exist_ok=True)
    for number, fit in enumerate(fits, start=1):
        print(f"== {number}/{len(fits)} {fit.name}: {fit.about}", flush=True)
        begin, before = time.monotonic(), contents(fit, shipped)
        fit.run(folders)
        print(f"-- {fit.name}, {time.monotonic() - begin:.0f} s, wrote:")
        for line in changes(before, contents(fit, shipped)) if fit.files else ("nothing",):
            print(f"   {line}", flush=True)


def main(given: Sequence[str] | None = None) -> None:
    """Fit what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of fits; all where none is given")
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME", help="all but these")
    parser.add_argument("--data", type=Path, help="folder of the public tables")
    parser.add_argument("--cache", type=Path, default=CACHE, help="default: .cache/training here")
    parser.add_argument("--list", action="store_true", help="name the fits, and fit nothing")
    args = parser.parse_args(given)
    try:
        skipped = {fit.name for fit in chosen(args.skip)} if args.skip else set()
        fits = [fit for fit in chosen(args.names) if fit.name not in skipped]
        if not args.list:
            check_data(fits, args.data)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        for fit in fits:
            print(f"{fit.name}: {fit.about}")
            print(f"    writes {', '.join(fit.files) or 'nothing'}")
            print(f"    reads {', '.join((*fit.tables, 'measurements/h200'))}")
        return
    run(fits, Folders(args.data or Path(), args.cache))


if __name__ == "__main__":
    main()
