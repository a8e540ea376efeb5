"""The corpus of scripts: what it has, its generators, and how its table judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score.corpus import ScriptVerdict, cell, row, summary, written
from lab.steps import corpus
from lab.steps import made_up_data as made


def test_it_is_large_and_its_own_scripts_exist() -> None:
    assert len(corpus.corpus()) >= 60
    assert all(script.path.is_file() for script in corpus.own())
    assert all(script.path.suffix == ".py" for script in (*corpus.PYPI, *corpus.PUBLIC))


@pytest.mark.parametrize(
    "data",
    [
        *(made.no_data, made.digits, made.words, made.tokens, made.pictures, made.waves),
        *(made.names, made.shakespeare, made.language_model, made.torchtitan_assets),
    ],
)
def test_data_can_be_made(data: made.Generator, tmp_path: Path) -> None:
    if data is made.pictures:
        pytest.importorskip("PIL")
    if data in (made.language_model, made.torchtitan_assets):
        pytest.importorskip("transformers")
    folder = tmp_path / "here"
    folder.mkdir()
    data(folder)
    assert (data is made.no_data) == (not any(folder.iterdir()))


def test_the_table_tells_what_was_answered_and_what_was_not_tried() -> None:
    script = corpus.PUBLIC[0]
    table = [
        row(ScriptVerdict(script, True, "3.0 ms", 10.0, 5.0)),
        row(ScriptVerdict(script, False, "error: a | b", 70.0, 61.0)),
    ]
    assert "| answered | 3.0 ms | 10 | 5 |" in table[0]
    assert "| no answer | error: a / b |" in table[1]
    text = "\n".join(summary(table, ["`x/y.py`"]))
    assert "1 of 2 scripts were answered; 1 took more than 60 CPU s" in text
    assert "`x/y.py`" in text


def test_rows_of_the_page_are_found_again_by_their_scripts() -> None:
    cells = [cell(script) for script in corpus.corpus()]
    assert len(set(cells)) == len(cells)
    assert len(written()) >= 60
    assert set(written()) <= set(cells)
