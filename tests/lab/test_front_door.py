"""The tables of scripts and `hf:` targets that ran on a GPU, and what the pages say of them."""

from __future__ import annotations

from lab import pages
from lab.score import front_door


def test_the_pages_have_the_tables_of_the_measurements() -> None:
    assert pages.section(front_door.SCRIPTS, front_door.MARK) == front_door.scripts_table()
    assert pages.section(front_door.MODELS, front_door.MARK) == front_door.models_table()


def test_the_pages_say_how_many_steps_lie_in_their_range() -> None:
    assert front_door.summary("scripts") == "16 of 20 in range, which took 1.2 times as long"
    assert front_door.summary("huggingface").startswith("10 of 12 in range")
    assert "16 of the 20 lie in their range" in front_door.SCRIPTS.read_text(encoding="utf-8")
    assert "took 1.2 times as long" in front_door.SCRIPTS.read_text(encoding="utf-8")
    assert "Ten of twelve lie in their range" in front_door.MODELS.read_text(encoding="utf-8")
