"""Do traces made without a GPU have the same ops as the same steps run on one?

    python -m lab score agreement

Needs transformers, and the campaign `steps`, recorded on the GPU. The command
traces each step on this machine. It prints the share of ops and of GPU time that both traces have,
and the ops that differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from lab import needs
from lab.measured import campaigns
from lab.measured.agreement import RECORDED, compare, describe
from lab.steps.reality import PRECISIONS, STEPS
from wavecast.frameworks.pytorch.capture import capture


def main(given: Sequence[str] = ()) -> None:
    """Compare traces made here with the steps recorded on the GPU."""
    needs.parser(__doc__).parse_args(given)
    for (name, (make, batch)), precision in itertools.product(STEPS.items(), PRECISIONS):
        real = campaigns.traces(RECORDED)[f"{name}-{precision}"]
        traced = capture(partial(make, batch, precision))
        print(describe(f"{name} {precision}", compare(real, traced)))
