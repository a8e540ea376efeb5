"""lab.score.kills: commands that are killed lose nothing and store nothing twice."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy", reason="needs wavecast[runs]")

from lab.score.kills import Killable, killables, outlive

COMMANDS = ("collect", "campaign of the suite", "runs add", "runs export")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=COMMANDS)
def test_a_killed_command_loses_nothing(number: int, tmp_path: Path) -> None:
    tried = killables(tmp_path, layers=60, steps=500, runs=25_000)[number]
    result = outlive(tried, 2, random.Random(1))
    assert result.name == COMMANDS[number]
    assert (result.kills, result.stored, result.lost, result.twice) == (2, tried.whole, 0, 0)


def test_what_is_lost_or_stored_twice_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    code = "import sys, time; open(sys.argv[1], 'a').write('x\\n'); time.sleep(60)"
    tried = Killable(
        "careless",
        (sys.executable, "-c", code, str(file)),
        file,
        lambda: file.read_text().split() if file.exists() else (),
        5,
        lambda: None,
    )

    class Late(random.Random):
        def random(self) -> float:
            return 0.9

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.score.kills.subprocess.run", lambda *_, **__: None)
        result = outlive(tried, 3, Late())
    assert result.kills == 3
    assert result.twice == 0 + 1 + 2
    assert result.lost == 4
