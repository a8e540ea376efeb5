"""How much slower are steps after a profiler has run in the same process?

    python -m lab.score.profiler_cost

Reads measurements/h200/profiler.json (`lab.collect.profiler_cost`) and prints the table of
docs/concepts/timeline.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab.measured.profiler_cost import STEPS, before_and_after_s


def table() -> Iterator[str]:
    """A line for each step."""
    yield "| step | no profiler | a profiler ran before | times as long |"
    yield "|---|---:|---:|---:|"
    for name in STEPS:
        before_s, after_s = before_and_after_s(name)
        ratio = after_s / before_s
        yield f"| {name} | {before_s * 1e3:.1f} ms | {after_s * 1e3:.1f} ms | {ratio:.2f} |"


def main() -> None:
    """Print the table."""
    print("\n".join(table()))


if __name__ == "__main__":
    main()
