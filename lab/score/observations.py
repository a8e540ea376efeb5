"""Do TBD's observations (Zhu et al., IISWC 2018, section IV) hold in measurements of the suite?

    python -m lab score observations RESULTS.csv TRACES

`wavecast suite run --traces` writes RESULTS.csv and the folder TRACES. The command prints how many
models show each observation that can be made on one GPU with one framework, and names the models
that do not. The observations about frameworks (3), two GPUs (9) and several machines (12) are left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab import needs
from lab.measured import campaigns
from wavecast import device
from wavecast.runs.suite_results import observe, observe_kernels, read_results


def main(given: Sequence[str] = ()) -> None:
    """Print every observation, and the models that do not show it."""
    parser = needs.parser(__doc__)
    parser.add_argument("results", type=Path, help="results of wavecast suite run")
    parser.add_argument("folder", type=Path, help="the traces that were measured with them")
    args = parser.parse_args(given)
    rows = read_results(args.results)
    eighth = observe_kernels(campaigns.loose_traces(args.folder), device(rows[0].gpu))
    for seen in sorted((*observe(rows), eighth), key=lambda observation: observation.number):
        total = len(seen.agreeing) + len(seen.others)
        print(f"{seen.number:2}. {seen.claim}: {len(seen.agreeing)} of {total}")
        if seen.others:
            print(f"    not in: {', '.join(seen.others)}")
