"""How well are steps predicted now that stand for models known to be badly predicted?

    python -m lab score revisited [--write]

Reads measurements/h200/revisited: what was measured of 29 steps (`lab.steps.revisited`), and their
traces, made without a GPU. No fit reads them, but they were looked at to find what was wrong.
`--write` puts the table into docs/appendix/accuracy-blind.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab import needs
from lab.places import H200
from lab.score import pages
from lab.score.blind_torch import TRACED, all_told, compared, modes_of, table, with_its_host

FOLDER = H200 / "revisited"


def tables() -> str:
    """The errors of each step with today's models."""
    said = all_told(modes_of("revisited"), FOLDER / TRACED)
    return "\n".join([*table(compared(FOLDER, said)), "", with_its_host(FOLDER, said)])


def main(given: Sequence[str] = ()) -> None:
    """Print the table, and write it into the page if asked."""
    parser = needs.parser(__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    args = parser.parse_args(given)
    text = tables()
    print(text)
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-blind.md", "revisited", text)
