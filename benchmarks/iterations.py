"""Iterations of the suite on machines whose hosts were calibrated: predicted against measured.

    python -m benchmarks.iterations measure OUT [SECONDS]    on the GPU
    python -m benchmarks.iterations --cache FOLDER [PAGE]    from the files, with traces kept there

Hosts differ by more than models do, and `wavecast calibrate` times them within a minute. Here it
runs first, as users do it, and then steps of the whole suite in four precisions, at the usual batch
and at a quarter of it, in an order drawn once; what time does not allow is left out. The files
under measurements/h200/iterations, one a machine, are in no fit. What is there is not measured
again.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import blind
from benchmarks.blind import MakeStep
from wavecast import suite

FOLDER = Path(__file__).parent.parent / "measurements" / "h200" / "iterations"
SEED = 5


def steps() -> Iterator[tuple[str, MakeStep]]:
    """Every benchmark in every precision, at two batches."""
    found = []
    for each in suite.benchmarks():
        quarter = max(each.default_batch // 4, each.smallest_batch)
        for batch in sorted({quarter, each.default_batch}):
            for precision in suite.PRECISIONS:
                make = partial(each.make_step, batch, precision)
                found.append((f"{each.name} b{batch} {precision}", make))
    random.Random(SEED).shuffle(found)
    yield from found


def main() -> None:
    """Measure."""
    known = blind.known(FOLDER)
    missing = ((name, make) for name, make in steps() if name not in known)
    blind.measure(Path(sys.argv[2]), float(sys.argv[3]), missing, traced=False)


if __name__ == "__main__":
    main()
