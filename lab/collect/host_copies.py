"""How long do copies from the host to the GPU take, from pinned and from pageable memory?

    python -m lab collect host_copies OUT

On the GPU, in less than a minute. For each size: how long `tensor.to("cuda")` takes until the copy
is done, and how long the host is kept by it, from pinned and from pageable memory, with and without
`non_blocking`. OUT/host_copies.json becomes measurements/h200/host_copies.json. Predictions take
one share of the link for all copies; these rows tell how far pageable ones are below it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import needs

SIZES = tuple(1 << power for power in range(14, 29, 2))
"""Bytes of a copy, from 16 KiB to 256 MiB."""
REPEATS = 30


def timed(copy: Callable[[], Any], wait: Callable[[], None]) -> dict[str, float]:
    """The median time until the copy is done, and until the call returns."""
    done, returned = [], []
    for _ in range(REPEATS + 3):
        wait()
        begin = time.perf_counter()
        copy()
        returned.append(time.perf_counter() - begin)
        wait()
        done.append(time.perf_counter() - begin)
    return {
        "seconds": statistics.median(done[3:]),
        "host_s": statistics.median(returned[3:]),
    }


def rows() -> Iterator[dict[str, Any]]:
    """The times of each size and kind of copy on this machine's GPU."""
    import torch

    for nbytes in SIZES:
        plain = torch.ones(nbytes, dtype=torch.uint8)
        for pinned in (False, True):
            source = plain.pin_memory() if pinned else plain
            for free in (False, True):

                def copy(source: Any = source, free: bool = free) -> Any:
                    return source.to("cuda", non_blocking=free)

                times = timed(copy, torch.cuda.synchronize)
                yield {"nbytes": nbytes, "pinned": pinned, "non_blocking": free, **times}


def main(given: Sequence[str] = ()) -> None:
    """Measure all copies, and write them."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    args = parser.parse_args(given)
    import torch

    name, copies = torch.cuda.get_device_name(), list(rows())
    args.out.mkdir(parents=True, exist_ok=True)
    document = {"gpu": name, "torch": torch.__version__, "copies": copies}
    (args.out / "host_copies.json").write_text(json.dumps(document, indent=1) + "\n")
    for row in copies:
        print(row, f"{row['nbytes'] / row['seconds'] / 1e9:.1f} GB/s")
