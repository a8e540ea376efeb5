"""Tables that fit a width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavecast.report.tables import Column, fitting, width_of

columns = st.lists(
    st.builds(
        Column,
        st.text("abc", min_size=1, max_size=9),
        st.lists(st.text("xyz", min_size=1, max_size=20), min_size=2, max_size=2),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=8,
)


@given(columns, st.integers(1, 150))
def test_a_table_fits_its_width_unless_its_needed_columns_are_wider(
    given_: list[Column], width: int
) -> None:
    kept = fitting(given_, width)
    needed = [column for column in given_ if column.rank == 0]
    assert [column for column in kept if column.rank == 0] == needed
    assert width_of(kept) <= max(width, width_of(needed) if needed else 0)
    for column in given_:
        if column not in kept and kept:
            assert column.rank >= max(other.rank for other in kept)


def test_a_column_without_known_values_is_left_out() -> None:
    known, unknown_ = Column("a", ["?", "1"], 1), Column("b", ["?", ""], 1)
    assert fitting([known, unknown_], 100) == [known]
