"""Fit what ships, score what is predicted, and collect measurements.

    python -m lab --list                                   all commands
    python -m lab fit [NAME ...] --data FOLDER             make files that ship again, in order
    python -m lab fit NAME ...                             one fit, with options of its own
    python -m lab score NAME ...                           how good are predictions?
    python -m lab collect NAME ...                         measure, on a GPU if need be

`--help` after a name shows its options. `--data` names the folder of the public tables, each set in
a folder of its own (docs/sources.md). `--cache` names a folder that keeps what takes long: traces
of published steps, fits with GPUs left out, the networks as they are fitted. Our own measurements
are in the repository. Seeds are fixed, and cards have hashes of the data: the same data give the
same files, but for the date on a card. The networks (`mlp`) are fitted on a GPU if there is one,
whose sums differ in the last digits; on a CPU they take hours.
"""

from __future__ import annotations

import difflib
import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import commands, needs
from lab.needs import OPS_AND_STEPS, SINGLE_OPS, check_tables
from lab.places import H200, ROOT

SHIPPED = ROOT / "src" / "wavecast" / "data"
LAYERS = H200 / "layers"
CACHE = ROOT / ".cache" / "lab"


@dataclass(frozen=True)
class Folders:
    """Where a fit finds the public tables, and where it keeps what takes long."""

    data: Path
    cache: Path


@dataclass(frozen=True)
class ShippedFit:
    """A fit that writes files of the package."""

    name: str
    about: str
    run: Callable[[Folders], None]
    files: tuple[str, ...] = ()
    """The files that it writes, as patterns within `SHIPPED`."""
    tables: tuple[str, ...] = ()
    """The sets of public tables that it reads."""


def _fit(name: str, *options: str) -> Callable[[Folders], None]:
    """A fit by the module of that name, given these of the folders `data` and `cache`."""

    def run(folders: Folders) -> None:
        given = [text for key in options for text in (f"--{key}", str(getattr(folders, key)))]
        commands.main_of("fit", name)(given)

    return run


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


def _parallel_ranges(folders: Folders) -> None:
    from lab.score import distributed, parallel_ranges

    files = distributed.scored(folders.data, folders.cache)
    parallel_ranges.main([*map(str, files), "--data", str(folders.data), "--write"])


def _ranges(folders: Folders) -> None:
    from lab.score import ranges

    ranges.main(["--data", str(folders.data), "--cache", str(folders.cache)])


FITS = (
    ShippedFit(
        "kernel_counts",
        "how many kernels an op launches",
        _fit("kernel_counts"),
        ("models/kernel_counts.toml",),
    ),
    ShippedFit(
        "attainable",
        "shares of the roofline that ops attain",
        _fit("attainable", "data"),
        ("models/attainable.toml",),
        SINGLE_OPS,
    ),
    ShippedFit("mlp", "Habitat's networks", _mlp, ("models/mlp-*",), ("neusight", "deepbench")),
    ShippedFit(
        "workspaces",
        "the workspace that cuDNN takes for convolutions",
        _fit("workspaces"),
        ("models/workspaces.toml",),
    ),
    ShippedFit(
        "learned",
        "physics of ops and learned efficiencies",
        _fit("learned", "data"),
        ("models/learned.npz", "models/learned.toml"),
        SINGLE_OPS,
    ),
    ShippedFit(
        "grouped", "the kernel for grouped products", _fit("grouped"), ("models/grouped.toml",)
    ),
    ShippedFit(
        "corrections",
        "how far the features of measured ops vary",
        _fit("corrections"),
        ("models/corrections.toml",),
    ),
    ShippedFit(
        "concatenation",
        "the kernels of cat",
        _fit("concatenation"),
        ("models/concatenation.toml",),
    ),
    ShippedFit(
        "fused",
        "the fused kernels of torch.compile",
        _fit("fused"),
        ("models/fused.toml", "models/fused.npz"),
    ),
    ShippedFit(
        "xla",
        "the fused kernels of JAX",
        _fit("xla"),
        # xla_ranges.toml has two figures that `lab score jax blind` prints
        ("models/xla.toml", "models/xla.npz", "models/xla_ranges.toml"),
    ),
    ShippedFit(
        "generations",
        "constants of GPU generations, from whole steps",
        _fit("generations", "data", "cache"),
        ("models/generations.toml",),
        OPS_AND_STEPS,
    ),
    ShippedFit(
        "host",
        "costs and benchmark times of the reference host",
        _fit("host"),
        ("hosts/reference.toml",),
    ),
    ShippedFit(
        "compiled_host",
        "what compiled code costs the host",
        _fit("compiled_host"),
        ("hosts/compiled.toml",),
    ),
    ShippedFit(
        "collectives",
        "latencies, efficiencies and protocols of collectives",
        _fit("collectives", "data"),
        ("models/collectives.toml",),
        ("kernels", "distributed"),
    ),
    ShippedFit(
        "overlap",
        "what kernels and collectives, and ranks, cost each other",
        _fit("overlap", "data", "cache"),
        ("models/overlap.toml",),
        ("lambda",),
    ),
    ShippedFit(
        "ranges",
        "how wide the ranges of steps are",
        _ranges,
        ("models/ranges.toml",),
        OPS_AND_STEPS,
    ),
    ShippedFit(
        "parallel_ranges",
        "how wide the ranges of steps on several GPUs are",
        _parallel_ranges,
        ("models/parallel_ranges.toml",),
        ("distributed",),
    ),
)
"""In this order, because later fits use the files of earlier ones."""


def chosen(names: Sequence[str], known: Sequence[ShippedFit] = FITS) -> list[ShippedFit]:
    """The fits with these names, in the order of `known`; all of them if no name is given.

    Raises:
        ValueError: there is no fit with that name; the message has the nearest.
    """
    all_names = [fit.name for fit in known]
    for name in names:
        if name not in all_names:
            near = difflib.get_close_matches(name, all_names, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"no fit is called {name!r}{meant}; there are {', '.join(all_names)}")
    return [fit for fit in known if not names or fit.name in names]


def check_data(fits: Sequence[ShippedFit], data: Path | None) -> None:
    """Check that the public tables are there, before anything is fitted.

    Raises:
        ValueError: no folder was given, or it lacks a table.
    """
    needed = {table for fit in fits for table in fit.tables}
    check_tables(data, needed, ", ".join(fit.name for fit in fits if fit.tables))


def contents(fit: ShippedFit, shipped: Path) -> dict[str, str]:
    """A hash of each file that a fit writes, without the date of a card."""
    digests = {}
    for path in sorted(path for pattern in fit.files for path in shipped.glob(pattern)):
        lines = path.read_bytes().split(b"\n")
        if path.suffix == ".toml":
            lines = [line for line in lines if not line.startswith(b"fitted = ")]
        name = path.relative_to(shipped).as_posix()
        digests[name] = hashlib.sha256(b"\n".join(lines)).hexdigest()
    return digests


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """A line for each file that says whether it is new, changed or as before."""
    for name, digest in after.items():
        how = "new" if name not in before else "changed"
        yield f"{name}: {'as before' if before.get(name) == digest else how}"


def run(fits: Sequence[ShippedFit], folders: Folders, shipped: Path = SHIPPED) -> None:
    """Run the fits one after the other, and print which files each wrote."""
    folders.cache.mkdir(parents=True, exist_ok=True)
    for number, fit in enumerate(fits, start=1):
        print(f"== {number}/{len(fits)} {fit.name}: {fit.about}", flush=True)
        begin, before = time.monotonic(), contents(fit, shipped)
        fit.run(folders)
        print(f"-- {fit.name}, {time.monotonic() - begin:.0f} s, wrote:")
        for line in changes(before, contents(fit, shipped)) if fit.files else ("nothing",):
            print(f"   {line}", flush=True)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command that the command line names."""
    words = list(sys.argv[1:] if given is None else given)
    parser = needs.parser(__doc__)
    parser.prog = "python -m lab"
    parser.add_argument("kind", nargs="?", choices=commands.KINDS)
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="list the commands and run none")
    args = parser.parse_args(words[:2])
    try:
        if args.list or args.kind is None:
            list_all()
        elif args.kind == "fit" and makes_shipped_files(words[1:]):
            fit_shipped(words[1:])
        elif args.name is None:
            parser.error(f"name a {args.kind}: {', '.join(commands.names(args.kind))}")
        else:
            command = commands.main_of(args.kind, args.name)
            sys.argv[0] = " ".join(("python -m lab", *words[:2]))
            command(words[2:])
    except ValueError as error:
        parser.error(str(error))


def list_all() -> None:
    """Print all commands, and what the fits of shipped files read and write."""
    for kind in commands.KINDS:
        for name, about in commands.names(kind).items():
            print(f"python -m lab {kind} {name}: {about}")
    print("\nFiles that ship, in the order in which they are made:")
    for fit in FITS:
        print(f"{fit.name}: {fit.about}")
        print(f"    writes {', '.join(fit.files)}")
        print(f"    reads {', '.join((*fit.tables, 'measurements/h200'))}")


def makes_shipped_files(words: Sequence[str]) -> bool:
    """Whether the words after `fit` are names of such fits and the options for all of them."""
    known = {fit.name for fit in FITS}
    places = [word for word in words if not word.startswith("-")]
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    values = sum(word in ("--data", "--cache") for word in words)
    named = sum(place in known for place in places)
    return options <= {"--data", "--cache", "--skip"} and len(places) - named <= values


def fit_shipped(words: Sequence[str]) -> None:
    """Make the files of the named fits again, or of all."""
    parser = needs.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them by default")
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME", help="all but these")
    parser.add_argument("--data", type=Path, help="folder of the public tables (docs/sources.md)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="default: .cache/lab")
    args = parser.parse_args(words)
    skipped = {fit.name for fit in chosen(args.skip)} if args.skip else set()
    fits = [fit for fit in chosen(args.names) if fit.name not in skipped]
    check_data(fits, args.data)
    run(fits, Folders(args.data or Path(), args.cache))


if __name__ == "__main__":
    main()
