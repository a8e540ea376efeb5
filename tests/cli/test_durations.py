"""Times as users write them."""

from __future__ import annotations

import pytest

from wavecast.errors import InvalidInput
from wavecast.reading import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5 h", 5400), ("1h30min", 5400), ("2d", 172_800), ("1W", 604_800)],
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert seconds_of(text, "--deadline") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3h", "3 parsecs", "3h later", "1e3h", "nan"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--deadline is a time such as 48h"):
        seconds_of(text, "--deadline")
