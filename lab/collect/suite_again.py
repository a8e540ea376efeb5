"""Time the suite once more, by the protocol that says whether a run has settled.

    python -m lab.collect.suite_again suite-again.csv --seconds 3 --within 240

Each model runs at its default batch in fp32 and bf16, until 50 iterations are stable, at most
`--seconds` long. No profiler runs, so that all steps share one process; utilisation and memory by
kind are those of measurements/h200/suite.csv. Ends `--within` seconds, and continues when it is
started again. Needs torch and numpy.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path

from lab.places import H200
from wavecast.campaigns.suite_runs import configurations, time_again
from wavecast.runs.suite_results import TABLE, read_results


def main(given: Sequence[str] | None = None) -> None:
    """Time the steps that the file does not have yet, and print how they compare."""
    parser = argparse.ArgumentParser(prog="python -m lab.collect.suite_again")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--within", type=float, default=240.0)
    args = parser.parse_args(given)
    import torch

    until = time.monotonic() + args.within
    before = {row.configuration: row for row in read_results(H200 / "suite.csv")}
    wanted = [step for step in configurations([], ("fp32", "bf16"), (1.0,)) if step in before]
    with TABLE.growing(args.out, lambda _: None) as (rows, add):
        done = {row.configuration for row in rows}
        for step in wanted:
            if step in done or time.monotonic() > until:
                continue
            row = before[step]
            try:
                new = time_again(row, args.seconds)
            except Exception as error:  # one failing step must not cost the others
                print(f"{step}: {error}", flush=True)
                continue
            add(new)
            assert new.seconds
            assert row.seconds
            print(
                f"{step.model:20} {step.precision} {row.seconds * 1e3:8.1f} "
                f"{new.seconds * 1e3:8.1f} ms {new.iterations:5} settled {new.settled}",
                flush=True,
            )
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
