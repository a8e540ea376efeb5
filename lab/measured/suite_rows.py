"""Rows of `wavecast suite run` brought up to date from the traces that were measured with them.

    python -m lab.measured.suite_rows

Rewrites measurements/h200/suite.csv: memory by kind as today's rules divide the measured
allocations, and throughput in today's units. What was measured (times, utilisation, peaks) stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.measured import campaigns
from lab.places import H200
from wavecast import Trace, suite
from wavecast.footprint.kinds import peak_by_tbd_kind
from wavecast.runs.suite_results import TABLE, SuiteResult, read_results


def renewed(row: SuiteResult, trace: Trace) -> SuiteResult:
    """The row with memory by kind and throughput as they are counted today."""
    kinds: dict[str, Any] = {
        f"{kind.replace(' ', '_')}_bytes": n for kind, n in peak_by_tbd_kind(trace).items()
    }
    benchmark = suite.benchmark(row.model)
    assert row.seconds is not None
    tokens = benchmark.tags.tokens_per_sample
    in_todays_unit = row.batch * benchmark.units_per_sample / row.seconds
    return replace(
        row,
        unit=benchmark.unit,
        throughput_per_s=row.throughput_per_s if row.unit == benchmark.unit else in_todays_unit,
        tokens_per_s=tokens and row.batch * tokens / row.seconds,
        **kinds,
    )


def renew(path: Path, traces: Mapping[str, Trace]) -> None:
    """Write the file again with each of its rows renewed."""
    rows = [
        renewed(row, traces[f"{row.model}-b{row.batch}-{row.precision}"])
        if row.status == "ok"
        else row
        for row in read_results(path)
    ]
    path.unlink()
    _write(path, rows)


def _write(path: Path, rows: Iterable[SuiteResult]) -> None:
    with TABLE.growing(path, lambda _: None) as (_, add):
        for row in rows:
            add(row)


if __name__ == "__main__":
    renew(H200 / "suite.csv", campaigns.traces("suite"))
