"""How long do whole runs take? The grid of Gianniti et al. 2019, measured on this machine's GPU.

    python -m lab collect run_grid OUT.csv                     a tenth of the printed iterations
    python -m lab collect run_grid OUT.csv --share 1 --nets alexnet --precisions tf32

Needs a GPU and only torch and numpy. It is `wavecast runs campaign --graph` for several precisions:
each iteration is a CUDA graph, as an H200 would wait for the host and the paper's P100 did not. The
20 runs that models are fitted on have start-ups of their own; the others are read off one run for
each batch. OUT.csv becomes measurements/h200/run_grid.csv; `lab.score.run_grid` reads it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lab import needs
from wavecast.campaigns import run_grids
from wavecast.campaigns.progress import Progress
from wavecast.campaigns.run_grids import Start
from wavecast.runs.regression.end_to_end import BATCHES, ITERATIONS, NETS, SPLITS


def main(given: Sequence[str] = ()) -> None:
    """Measure the runs that the file lacks."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--nets", nargs="+", default=list(NETS))
    parser.add_argument("--precisions", nargs="+", default=["tf32", "fp32"])
    parser.add_argument("--share", type=float, default=0.1, help="of the printed iterations")
    parser.add_argument("--seconds", type=float, default=290, help="begin no run after this time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    args = parser.parse_args(given)
    from wavecast.frameworks.pytorch.measurement.layers import gpu_id
    from wavecast.frameworks.pytorch.measurement.whole_runs import software

    began, graph = time.monotonic(), args.device == "cuda"
    lengths = run_grids.scaled(ITERATIONS, args.share)
    splits = [run_grids.scaled_split(split, args.share) for split in SPLITS]
    for precision in args.precisions:
        for net in args.nets:
            starts = run_grids.plan([net], args.batches, lengths, splits, precision=precision)
            first = Start(net, min(args.batches), (1,), precision)
            run_grids.measure_here(first, args.device, graph=graph)  # libraries are loaded

            def failed(start: Start, error: Exception) -> None:
                print(f"{start}: {error!r}", flush=True)

            def shown(at: Progress, what: str = f"{net} {precision}") -> None:
                if at.done == at.total:
                    print(f"{time.monotonic() - began:.0f} s: {what}: {at.done}", flush=True)

            run_grids.run(
                starts,
                args.out,
                partial(run_grids.measure_here, device=args.device, graph=graph),
                gpu=gpu_id(args.device),
                software=software(graph),
                limit_s=args.seconds - (time.monotonic() - began),
                progress=shown,
                failed=failed,
            )
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)
