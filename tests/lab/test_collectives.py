"""The fit of collectives: it finds constants again, and leaves out what it says."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy")

from lab.fit.collectives import (
    BY_GENERATION,
    count_of,
    fit,
    left_out,
    log_errors,
    machines_of,
    to_toml,
    usable,
    with_ranges,
)
from lab.measured.collectives import MeasuredCollective
from wavecast.hardware.clusters import cluster
from wavecast.hardware.devices import device
from wavecast.predictors.collectives import Collectives, LinkConstants

TRUE = replace(LinkConstants(), launch_s=9e-6, nvlink_hop_s=2e-6, nvlink_efficiency=0.6)


def made_rows(ranks: tuple[int, ...] = (2, 4, 8, 16)) -> list[MeasuredCollective]:
    """Collectives whose times follow from other constants than the fit starts from."""
    place, gpu, rows = cluster("dgx-a100"), device("a100-sxm-80gb"), []
    for count in ranks:
        for kind in ("all_reduce", "all_gather"):
            for power in (10, 16, 20, 24, 28):
                placement = place.placement(count)
                size = float(1 << power)
                answer = Collectives(TRUE).estimate(kind, size, place, gpu, placement)
                assert answer is not None
                rows.append(
                    MeasuredCollective("made", kind, size, gpu, place, placement, answer.seconds)
                )
    return rows


def test_the_fit_finds_made_times_again() -> None:
    rows = made_rows()
    before = np.abs(log_errors(LinkConstants(), rows))
    after = np.abs(log_errors(fit(rows), rows))
    assert np.median(before) > 0.2
    assert np.median(after) < 0.03


def test_a_count_that_is_left_out_is_predicted_from_the_others() -> None:
    parts = left_out(made_rows(), TRUE, count_of)
    assert [part.what for part in parts] == ["2 GPUs", "4 GPUs", "8 GPUs"]
    assert all(row.placement.ranks == 8 for row in parts[2].rows)
    assert all(np.median(np.abs(part.log_errors)) < 0.1 for part in parts)
    machines = {machines_of(row) for row in made_rows()}
    assert machines == {None, "made"}


def test_rows_that_say_nothing_about_links_are_not_fitted() -> None:
    row = made_rows()[0]
    short = replace(row, source="vidur", size=2048.0)
    unstated = replace(row, source="vidur, two machines", size=float(1 << 24))
    twice = replace(row, seconds=4 * row.seconds)
    kept = usable([row, twice, short, unstated])
    assert len(kept) == 1
    assert kept[0].seconds == pytest.approx(2 * row.seconds)


def test_the_written_file_has_the_constants_and_their_ranges() -> None:
    rows = made_rows((2, 8))
    constants = replace(TRUE, generations={"nvlink3": dict.fromkeys(BY_GENERATION, 1.5)})
    parts = left_out(rows, TRUE, count_of)
    ranged = with_ranges(constants, parts, parts, parts)
    assert 1 <= ranged.node_range < 1.5
    table = tomllib.loads(to_toml(ranged, rows))
    again = LinkConstants(**table["constants"], generations=table["generations"])
    assert np.allclose(log_errors(again, rows), log_errors(ranged, rows), atol=2e-3)
