"""How many measured steps lie in their ranges, for the shipped constants and their neighbours.

    python -m benchmarks.ranges --data FOLDER --cache FOLDER

`prediction.BELOW`, `ABOVE` and `UNKNOWN_HOST` turn the ranges of ops into ranges of steps. They
were chosen by this table: the narrowest of these that hold nine in ten of all steps, and no fewer
than 85 in 100 of any set. Steps that are
compiled are left out. The shipped models predict; `benchmarks.accuracy` leaves chips out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import wavecast
from benchmarks import own_steps, public_steps
from benchmarks.public_steps.case import Traces
from benchmarks.scoring import read
from training.generations import Aged
from wavecast import prediction
from wavecast.predictors.learned import Learned

CANDIDATES = (
    (0.67, 0.8, (0.63, 1.65)),
    (1.0, 0.8, (0.6, 1.6)),
    (1.2, 0.9, (0.6, 1.7)),
    (1.5, 1.0, (0.55, 1.75)),
)


def covered(data: Path, cache: Path) -> dict[str, float]:
    """The share of the steps of each set, and of all, that lie in their ranges."""
    found: dict[str, list[bool]] = {}
    cases = [*own_steps.cases(), *public_steps.cases(data)]
    for case, trace in read([c for c in cases if "compiled" not in c.set], Traces(cache)):
        predictor = Aged.shipped() if case.old else Learned.shipped()
        said = wavecast.predict(trace, case.gpu, predictor=predictor)
        within = said.low_s <= case.measured_s <= said.high_s
        for name in (case.set, "all"):
            found.setdefault(name, []).append(within)
    return {name: sum(each) / len(each) for name, each in sorted(found.items())}


def main() -> None:
    """Print a line for each candidate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    given = parser.parse_args()
    for below, above, host in CANDIDATES:
        prediction.BELOW, prediction.ABOVE, prediction.UNKNOWN_HOST = below, above, host
        shares = covered(given.data, given.cache)
        cells = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        print(f"below {below}, above {above}, host {host}: {cells}", flush=True)


if __name__ == "__main__":
    main()
