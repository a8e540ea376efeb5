"""The page of questions has an answer to each question, for the command that the lab runs."""

from __future__ import annotations

import pytest

from lab import pages
from lab.score.questions import PAGE, QUESTIONS


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_question_has_its_answer(name: str) -> None:
    answer = pages.section(PAGE, f"answer: {name}")
    assert answer.startswith(f"```sh\nwavecast {QUESTIONS[name]}\n```\n\n```text\n")
    chosen = ("the recipe", "rent ", "takes: ", "run: ", "look closer: wavecast predict")
    spread = ("tokens/s", "MFU", "data=", "shard=")
    for words in chosen if QUESTIONS[name].startswith("choose ") else spread:
        assert words in answer
