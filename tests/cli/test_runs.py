"""`wavecast runs`: adding, listing, exporting."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import run_samples as samples
from run_samples import LOGS, TABLE
from shell import run, run_in_terminal, run_process

import wavecast

pytest.importorskip("sqlalchemy", reason="needs wavecast[runs]")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "runs.csv"
    file.write_text(TABLE)
    return file


def test_runs_are_added_listed_and_exported(place: str, table: Path, tmp_path: Path) -> None:
    done = run("runs", "add", table, "--store", place)
    assert (done.code, done.err) == (0, "")
    first, last = done.out.splitlines()
    assert first == f"{table}: 3 runs, 3 new"
    assert last.startswith("3 new of 3 runs, in ")
    assert "0 new of 3 runs" in run("runs", "add", table, "--store", place).out

    listed = run("runs", "list", "--store", place, "--model", "AlexNet", "--last", 2)
    assert re.search(r"AlexNet +testing +m6000 +2 +64 +fp32 +5 +200 +9.25 s +46.2 ms", listed.out)
    assert listed.out.splitlines()[-1].startswith("2 of 3 runs in ")
    rows = json.loads(run("runs", "list", "--store", place, "--phase", "testing", "--json").out)
    assert [(row["seconds"], row["source"]) for row in rows] == [(9.25, "old.csv:7")]

    out = tmp_path / "out.csv"
    assert run("runs", "export", out, "--store", place).code == 0
    assert len(out.read_text().splitlines()) == 4
    told = json.loads(run("runs", "export", out, "-s", place, "--gpu", "l4", "--json").out)
    assert (told["runs"], told["file"]) == (0, str(out))


def test_what_a_log_does_not_say_the_options_do(tmp_path: Path) -> None:
    file = LOGS["lightning"].write(tmp_path)
    place = tmp_path / "runs.sqlite"
    refused = run("runs", "add", file, "--store", place)
    assert refused.code == 1
    assert "does not say the model; give it" in refused.err
    options = ("--model", "net", "--gpu", "l4", "--precision", "bf16", "--warm-up", 100)
    done = json.loads(run("runs", "add", file, "--store", place, *options, "--json").out)
    assert done["files"] == [{"file": str(file), "runs": 1, "new": 1, "resumed_at": 0}]
    (record,) = json.loads(run("runs", "list", "--store", place, "--json").out)
    assert (record["model"], record["gpu"], record["precision"], record["iterations"]) == (
        *("net", "l4", "bf16"),
        900 - 10 - 100,
    )


def test_a_dry_run_shows_and_adds_nothing(table: Path, tmp_path: Path) -> None:
    env = {"WAVECAST_RUNS": str(tmp_path / "runs.sqlite")}
    shown = run("runs", "add", table, "--dry-run", env=env)
    assert shown.code == 0
    assert shown.out.count("AlexNet") == 3
    assert not (tmp_path / "runs.sqlite").exists()
    record = json.loads(run("runs", "add", table, "--dry-run", "--json", env=env).out)
    assert [row["batch"] for row in record["runs"]] == [32, 64, 64]


def test_doubts_go_to_the_other_stream(table: Path, tmp_path: Path) -> None:
    table.write_text(TABLE + TABLE.splitlines()[1] + "\n")
    done = run("runs", "add", table, "--store", tmp_path / "runs.sqlite")
    assert done.code == 0
    assert f"warning: {table}: line 5: repeats an earlier run" in done.err
    told = json.loads(run("runs", "add", table, "-s", tmp_path / "x.sqlite", "--json").out)
    assert len(told["warnings"]) == 1


def test_a_wrong_file_keeps_no_other_from_being_added(table: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(TABLE.replace("2.5", "nan"))
    done = run("runs", "add", wrong, table, "--store", tmp_path / "runs.sqlite")
    assert done.code == 1
    assert "error: " in done.err
    assert "wrong.csv: line 2: seconds is 'nan'" in done.err
    assert "3 new of 3 runs" in done.out


def test_folders_are_searched(tmp_path: Path) -> None:
    LOGS["caffe"].write(tmp_path / "logs")
    samples.write_mlflow(tmp_path / "logs" / "mlruns" / "1" / "abc")
    done = run("runs", "add", tmp_path / "logs", "--store", tmp_path / "runs.sqlite")
    assert "5 new of 5 runs" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "gone.log"), "gone.log: there is no such file or folder"),
        (("add", ".", "--format", "wandb"), 'there is no format "wandb"'),
        (("add", "gone.log", "--batch", "0"), "batch must be a whole number from 1 on"),
        (("list", "--store", "mysql://x/y"), "a file or a postgresql:// URL, not mysql:"),
        (("export", "runs.parquet"), "exported as FILE.csv or FILE.jsonl, not runs.parquet"),
        (("export", "no/such/place.csv"), "cannot write no/such/place.csv: No such file"),
    ],
)
def test_wrong_uses_are_one_clear_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wavecast.RunStore(tmp_path / "runs.sqlite").close()
    done = run("runs", *arguments, env={"WAVECAST_RUNS": str(tmp_path / "runs.sqlite")})
    assert done.code == 1
    assert message in done.err
    assert done.err.count("\n") == 1


def test_without_sqlalchemy_the_extra_is_named(tmp_path: Path) -> None:
    hidden = "sys.modules['sqlalchemy'] = None"
    (tmp_path / "r.sqlite").touch()
    done = run_process("runs", "list", "--store", tmp_path / "r.sqlite", python=hidden)
    assert done.code == 1
    assert "RunStore needs SQLAlchemy: pip install 'wavecast[runs]'" in done.err


@pytest.mark.slow
def test_a_long_import_shows_how_far_it_is(tmp_path: Path) -> None:
    file = tmp_path / "many.csv"
    rows = "".join(f"AlexNet,32,{n},{n / 7!r}\n" for n in range(1, 25_001))
    file.write_text("model,batch,iterations,seconds\n" + rows)
    piped = run("runs", "add", file, "--store", tmp_path / "a.sqlite")
    assert piped.err.splitlines()[0] == "adding many.csv: 10000 of 25000"
    assert piped.err.splitlines()[-1] == "adding many.csv: 25000 of 25000"
    shown = run_in_terminal(
        "runs",
        "add",
        file,
        "--store",
        tmp_path / "b.sqlite",
        PYTHONPATH=os.environ.get("PYTHONPATH", ""),
    )
    assert "/25000" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "list"),
        ("runs", "export", "out.csv"),
        ("runs", "predict", "AlexNet", "--from", "runs", "--batch", "8", "--iterations", "9"),
        ("fit", "--runs", "runs"),
    ],
)
@pytest.mark.parametrize("there", ["nothing", "an empty file"])
def test_to_read_a_store_that_is_not_there_makes_nothing(
    arguments: tuple[str, ...], there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "folder" / "runs.sqlite"
    if there == "an empty file":
        place.parent.mkdir()
        place.touch()
    before = sorted(tmp_path.rglob("*"))
    done = run(*arguments, env={"WAVECAST_RUNS": str(place)})
    assert done.code == 1
    assert "run store" in done.err
    assert "wavecast runs add" in done.err
    assert done.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert there == "nothing" or not place.read_bytes()


def test_many_refused_logs_are_listed_one_per_line(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(samples.CAFFE_HEAD)
    (tmp_path / "c.log").write_text(samples.caffe_log())
    for more in (["--dry-run"], ["--store", tmp_path / "runs.sqlite"]):
        done = run("runs", "add", *sorted(tmp_path.glob("*.log")), *more)
        assert done.code == 1
        refused = [line for line in done.err.splitlines() if line.startswith("refused: ")]
        assert [line.split(":")[1].strip()[-5:] for line in refused] == ["a.log", "b.log"]
        assert done.err.splitlines()[-1] == "error: 2 of 3 files were refused"
        assert "AlexNet" in done.out or "c.log" in done.out  # the other is read
