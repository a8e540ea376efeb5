"""Damaged logs: an error or a warning that names file and line, never a wrong time in silence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import run_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_samples import LOGS, STEADY_S, TABLE, Sample, read

import wavecast
from wavecast.errors import InvalidInput
from wavecast.runs.readers import FORMATS, trackers
from wavecast.runs.readers.tensorboard import records
from wavecast.runs.readers.text import Doubts
from wavecast.runs.run import Run, check

TEXT_LOGS = {name: sample for name, sample in LOGS.items() if name != "tensorboard"}
TABLES = {
    "csv": Sample("runs.csv", TABLE.encode, {}, 32, 0),
    "json": Sample(
        "runs.json",
        lambda: (
            b'[\n{"model": "a", "batch": 1, "iterations": 10,\n "seconds": 2.5},\n'
            b'{"model": "a", "batch": 2, "iterations": 10, "seconds": 4.5}\n]\n'
        ),
        {},
        1,
        0,
    ),
    "jsonl": Sample(
        "runs.jsonl",
        lambda: (
            b'{"model": "a", "batch": 1, "iterations": 10, "seconds": 2.5}\n'
            b'{"model": "a", "batch": 2, "iterations": 10, "seconds": 4.5}\n'
        ),
        {},
        1,
        0,
    ),
    "huggingface": Sample(
        "trainer_state.json", lambda: samples.trainer_state().encode(), {"model": "m"}, 16, 0
    ),
    "mlflow": Sample(
        "metrics/train/loss", lambda: samples.mlflow_metric().encode(), {"batch": 1}, 1, 0
    ),
}

every_log = pytest.mark.parametrize("name", LOGS)
every_text_log = pytest.mark.parametrize("name", TEXT_LOGS)


def damaged(
    name: str, folder: Path, damage: Callable[[list[bytes]], object]
) -> tuple[tuple[Run, ...], list[str], Path]:
    """A log of which the lines were changed in place: what is read, what is told, the file."""
    lines = LOGS[name].content().splitlines(keepends=True)
    damage(lines)
    file = LOGS[name].write(folder, b"".join(lines))
    return *read(file, **LOGS[name].given), file


def is_right(runs: tuple[Run, ...]) -> bool:
    """Whether the times are those of the training that the samples tell of."""
    times = [run.seconds / run.iterations for run in runs if run.phase == "training"]
    return times == pytest.approx([STEADY_S] * len(times), rel=0.01) and bool(times)


def says(told: list[str], file: Path, where: str, why: str) -> bool:
    """Whether a doubt names the file and the place, and says why."""
    return any(t.startswith(f"{file}: {where}") and re.search(why, t) for t in told)


@every_text_log
def test_a_log_that_is_cut_off_loses_its_last_line(name: str, tmp_path: Path) -> None:
    def cut(lines: list[bytes]) -> None:
        del lines[-5:]
        lines[-1] = lines[-1][: len(lines[-1]) // 2]

    count = len(LOGS[name].content().splitlines()) - 5
    runs, told, file = damaged(name, tmp_path, cut)
    assert is_right(runs)
    assert says(told, file, f"line {count}: ", "may be cut off and is left out")


def test_an_event_file_that_is_cut_off_loses_its_last_record(tmp_path: Path) -> None:
    sample = LOGS["tensorboard"]
    for less in (3, 45):  # within a record's data, and within its head
        file = sample.write(tmp_path, sample.content()[:-less])
        runs, told = read(file)
        assert is_right(runs)
        assert says(told, file, "byte ", "the last record is cut off")


@every_text_log
def test_a_line_in_another_encoding_is_told(name: str, tmp_path: Path) -> None:
    at = len(LOGS[name].content().splitlines()) // 2
    runs, told, file = damaged(
        name, tmp_path, lambda lines: lines.insert(at, "Gerät heiß\n".encode("latin-1"))
    )
    assert is_right(runs)
    assert says(told, file, f"line {at + 1}: ", "is not UTF-8 text")


@every_text_log
def test_zeros_and_utf_16_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"line 31 has zero bytes"):
        damaged(name, tmp_path, lambda lines: lines.insert(30, b"\0\0\0\n"))
    text = LOGS[name].content().decode()
    file = LOGS[name].write(tmp_path, text.encode("utf-16"))
    with pytest.raises(InvalidInput, match=rf"{file}: (is UTF-16 text|has no known format)"):
        read(file, format=name)


@every_text_log
def test_lines_that_are_there_twice_change_nothing(name: str, tmp_path: Path) -> None:
    def repeat(lines: list[bytes]) -> None:
        half = len(lines) // 2
        lines[half:] = [line for line in lines[half:] for _ in range(2)]

    runs, told, file = damaged(name, tmp_path, repeat)
    assert is_right(runs)
    assert says(told, file, "line ", "appears twice; the second one is left out")


def test_records_that_are_there_twice_change_nothing(tmp_path: Path) -> None:
    sample = LOGS["tensorboard"]
    file = sample.write(tmp_path)
    *_, (last, _) = records(file, Doubts(file))
    sample.write(tmp_path, sample.content() + sample.content()[last:])
    runs, told = read(file)
    assert is_right(runs)
    assert says(told, file, "byte ", "appears twice")


MINUTE = {
    "caffe": (rb" 10:0(\d):", lambda m: b" 09:0%s:" % m[1]),
    "dllogger": (rb'"timestamp": "16', lambda m: b'"timestamp": "15'),
    "lightning": (rb",(\d+\.\d{12}),,", lambda m: b",%.12f,," % (float(m[1]) - 100)),
}


@every_text_log
def test_a_clock_that_goes_back_is_told(name: str, tmp_path: Path) -> None:
    pattern, put = MINUTE[name]
    at = len(LOGS[name].content().splitlines()) * 3 // 4

    def set_back(lines: list[bytes]) -> None:
        lines[at:] = [re.sub(pattern, put, line) for line in lines[at:]]

    runs, told, file = damaged(name, tmp_path, set_back)
    assert is_right(runs)
    assert says(told, file, "line ", "the clock went back by")


def test_a_clock_of_events_that_goes_back_is_told(tmp_path: Path) -> None:
    written = b"".join(
        samples.record(
            samples.event(
                1.6e9 + at_s - (3600 if step > 900 else 0),
                step,
                samples.field(5, samples.field(1, samples.field(1, b"loss") + b"\x15\0\0\0\0")),
            )
        )
        for step, at_s in samples.moments(1200, 10)
    )
    file = LOGS["tensorboard"].write(tmp_path, written)
    runs, told = read(file, model="m", batch=1)
    assert is_right(runs)
    assert says(told, file, "byte ", r"the clock went back by 359\d")


@every_text_log
def test_a_clock_that_jumps_ahead_is_a_pause(name: str, tmp_path: Path) -> None:
    pattern, put = {
        "caffe": (rb" 10:0(\d):", lambda m: b" 11:0%s:" % m[1]),
        "dllogger": (rb'"timestamp": "16', lambda m: b'"timestamp": "17'),
        "lightning": (rb",(\d+\.\d{12}),,", lambda m: b",%.12f,," % (float(m[1]) + 3600)),
    }[name]
    at = len(LOGS[name].content().splitlines()) * 3 // 4

    def set_ahead(lines: list[bytes]) -> None:
        lines[at:] = [re.sub(pattern, put, line) for line in lines[at:]]

    runs, told, file = damaged(name, tmp_path, set_ahead)
    assert is_right(runs)
    assert says(told, file, "line ", "a pause, left out")


@every_text_log
def test_a_training_that_goes_back_is_two(name: str, tmp_path: Path) -> None:
    lines = LOGS[name].content().splitlines(keepends=True)
    begin = 30 if name == "caffe" else 3 if name == "dllogger" else 1
    file = LOGS[name].write(tmp_path, b"".join(lines + lines[begin:]))
    runs, told = read(file, **LOGS[name].given)
    assert is_right(runs)
    assert len([run for run in runs if run.phase == "training"]) == 2
    assert says(told, file, "line ", "goes back from iteration .* another training")


TIMES_THAT_CANNOT_BE = {
    "dllogger": (rb'"timestamp": "[\d.]+"', [b"NaN", b'"nan"', b'"-5"', b"null", b"1e999", b"[]"]),
    "lightning": (rb"\d+\.\d{12}", [b"nan", b"inf", b"-5", b"1e999", b"x"]),
    "caffe": (rb"I1102 10:0\d:\d\d", [b"I1302 10:00:00", b"I1102 25:00:00", b"I1102 10:61:00"]),
}


@pytest.mark.parametrize(
    ("name", "time"), [(name, t) for name, (_, some) in TIMES_THAT_CANNOT_BE.items() for t in some]
)
def test_times_that_cannot_be_are_told(name: str, time: bytes, tmp_path: Path) -> None:
    pattern = TIMES_THAT_CANNOT_BE[name][0]
    put = b'"timestamp": ' + time if name == "dllogger" else time
    lines = LOGS[name].content().splitlines()
    at = next(n for n in range(len(lines) * 3 // 4, len(lines)) if re.search(pattern, lines[n]))

    def spoil(lines: list[bytes]) -> None:
        lines[at] = re.sub(pattern, put, lines[at])

    runs, told, file = damaged(name, tmp_path, spoil)
    assert is_right(runs)
    assert says(told, file, f"line {at + 1}: ", "left out")


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1.0])
def test_times_of_events_that_cannot_be_are_told(time: float, tmp_path: Path) -> None:
    value = samples.field(5, samples.field(1, samples.field(1, b"train/loss") + b"\x15\0\0\0\0"))
    file = LOGS["tensorboard"].write(
        tmp_path, LOGS["tensorboard"].content() + samples.record(samples.event(time, 1210, value))
    )
    runs, told = read(file)
    assert is_right(runs)
    assert says(told, file, "byte ", "is impossible; left out")


@pytest.mark.parametrize("place", [0, 8, 12, 40, 700, -3])
def test_a_changed_byte_of_an_event_file_is_found(place: int, tmp_path: Path) -> None:
    content = bytearray(LOGS["tensorboard"].content())
    content[place] ^= 0x10
    file = LOGS["tensorboard"].write(tmp_path, bytes(content))
    with pytest.raises(InvalidInput, match=r"tfevents\S+: byte \d+: .*(checksum|cut off)"):
        read(file)


@every_text_log
def test_a_torn_line_is_told_or_passed_over(name: str, tmp_path: Path) -> None:
    lines = LOGS[name].content().splitlines(keepends=True)
    at = next(n for n in range(len(lines) * 3 // 4, len(lines)) if b"loss" in lines[n] or n % 2)

    def tear(lines: list[bytes]) -> None:
        lines[at] = lines[at][: len(lines[at]) // 2] + lines[at + 1]
        del lines[at + 1]

    runs, told, file = damaged(name, tmp_path, tear)
    assert is_right(runs)
    assert says(told, file, f"line {at + 1}: ", "left out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("2.5", "nan"), "line 2: seconds is 'nan', but must be a finite number"),
        (("2.5", "inf"), "line 2: seconds is 'inf'"),
        (("2.5", "-2.5"), "line 2: seconds is -2.5, but must be a finite number above 0"),
        (("2.5", "0"), "line 2: seconds is 0.0, but must be"),
        (("2.5", "2,5"), "line 2 has 12 values, but line 1 has 11"),
        (("2.5", "1e999"), "line 2: seconds is '1e999'"),
        (("2.5", "٢"), "line 2: seconds is"),
        (("2.5", ""), "line 2: does not say seconds"),
        (("AlexNet,32", "AlexNet,32.5"), "line 2: batch is '32.5', but must be a whole number"),
        (("AlexNet,32", "AlexNet,-1"), "line 2: batch is -1"),
        (("AlexNet,32", ",32"), "line 2: does not say model"),
        (("AlexNet,32", '"Alex,32'), r"line \d: is not CSV"),
        (("AlexNet,32", "Alex\x1bNet,32"), "line 2: model is .* cannot be printed"),
        (("testing", "sleeping"), "line 4: phase is 'sleeping', but must be training or testing"),
        (("seconds", "batch"), "line 1 has the same column twice: batch"),
        (("iterations,seconds", "its,s"), "line 2: does not say iterations and seconds"),
    ],
)
def test_a_wrong_row_refuses_the_table(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(TABLE.replace(*change, 1), encoding="utf-8")
    with pytest.raises(InvalidInput, match=message) as refused:
        read(file)
    assert str(refused.value).startswith(str(file))


def test_tables_in_other_encodings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_bytes(TABLE.replace("m6000,2", "größe,2").encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"runs.csv: line 4 is not UTF-8 text"):
        read(file)
    file.write_bytes(TABLE.encode("utf-8-sig"))  # as Excel saves it
    assert len(read(file)[0]) == 3


def test_a_table_whose_last_line_has_no_end_loses_it(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(TABLE.rstrip("\n")[:-18])  # "...,caffe,5,old.csv:7" may have been longer
    runs, told = read(file)
    assert len(runs) == 2
    assert says(told, file, "line 4: ", "may be cut off and is left out")


def test_columns_that_nobody_knows_are_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(TABLE.replace("precision", "precison"))
    _, told = read(file)
    assert told == [f"{file}: line 1: unknown columns are left out: precison"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"model": "a", "batch": 1,\n', r"runs.json: is not JSON: .*line 3 column 1"),
        ('{"model": "a"}', "is not a list of runs"),
        ("[\n1\n]", "line 2 is not an object"),
        (
            '[\n{"model": "a", "batch": 1, "iterations": 1, "seconds": NaN}]',
            "line 2: seconds is nan",
        ),
        ('[\n\n{"model": 1}]', "line 3: model is 1, but must be text"),
        ('[{"batch": 1, "Batch": 2}]', "line 1 has the same value under two names"),
        ("[" * 100_000, "is not readable JSON"),
        ('[{"batch": ' + "9" * 5000 + "}]", "is not readable JSON|batch is"),
    ],
)
def test_wrong_json_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"train_runtime": 120.0', '"train_runtime": NaN'), r"log_history\[5\]: .* in nan s"),
        (('"train_runtime": 120.0', '"train_runtime": -1'), "in -1 s"),
        (('"train_runtime": 120.0', '"train_runtime": 4'), "is impossible"),
        (('"eval_runtime": 5.0', '"eval_runtime": NaN'), "is impossible"),
        (('"train_runtime"', '"other"'), "has no train_runtime: it was saved before"),
        (('"log_history"', '"history"'), "has no log_history"),
        (('"train_steps_per_second"', '"other"'), "does not say the batch"),
        (('"train_samples_per_second": 53', '"train_samples_per_second": 47'), "not say the batch"),
    ],
)
def test_a_wrong_state_of_a_trainer_is_refused(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    text = samples.trainer_state()
    assert change[0] in text
    file = tmp_path / "trainer_state.json"
    file.write_text(text.replace(*change, 1))
    with pytest.raises(InvalidInput, match=message):
        read(file, model="m")


@pytest.mark.parametrize(
    "line", ["nan 0.5 700", "-5 0.5 700", "1600000900000 0.5", "x", "1600000900000 0.5 -1"]
)
def test_wrong_lines_of_mlflow_are_told(line: str, tmp_path: Path) -> None:
    file = samples.write_mlflow(tmp_path, samples.mlflow_metric() + line + "\n")
    runs, told = read(file)
    assert is_right(runs)
    assert says(told, file, "train/loss: line 92: ", "left out")


def test_an_mlflow_run_that_was_deleted_or_failed_is_told(tmp_path: Path) -> None:
    file = samples.write_mlflow(tmp_path)
    meta = file.read_text()
    file.write_text(meta.replace("status: 3", "status: 4"))
    assert "did not finish" in read(file)[1][0]
    file.write_text(meta.replace("active", "deleted"))
    runs, told = read(file)
    assert runs == ()
    assert "was deleted" in told[0]


def test_a_training_that_is_too_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,time\n0,0,0.5\n0,20,5.5\n0,40,10.5\n")
    with pytest.raises(InvalidInput, match=r"metrics.csv: line 3: 2 logged times are too few"):
        read(file, model="m", batch=1)
    file = LOGS["caffe"].write(tmp_path, samples.caffe_log(200).encode())
    assert not is_right(read(file)[0])  # used whole, with the warm-up, and told
    assert is_right(read(file, warm_up=80)[0])
    with pytest.raises(InvalidInput, match="are within the warm-up of 500"):
        read(file, warm_up=500)


def test_a_training_that_is_too_noisy_is_refused(tmp_path: Path) -> None:
    lines = ["epoch,step,time\n"]
    lines += [f"0,{n},{n + (n % 2) * 0.3}\n" for n in range(400)]
    file = tmp_path / "metrics.csv"
    file.write_text("".join(lines))
    with pytest.raises(InvalidInput, match=r"metrics.csv: line 3: the iterations scatter by"):
        read(file, model="m", batch=1)


def test_a_clock_that_goes_back_again_and_again_is_refused(tmp_path: Path) -> None:
    lines = ["epoch,step,time\n", *(f"0,{n},{n + (n % 4) * 0.4}\n" for n in range(400))]
    file = tmp_path / "metrics.csv"
    file.write_text("".join(lines))
    with pytest.raises(InvalidInput, match=r"metrics.csv: line \d+: the clock goes back at \d+ of"):
        read(file, model="m", batch=1)


def test_a_log_without_iterations_is_refused(tmp_path: Path) -> None:
    file = LOGS["caffe"].write(tmp_path, samples.CAFFE_HEAD.encode())
    with pytest.raises(InvalidInput, match="has no line of an iteration"):
        read(file)
    file = LOGS["lightning"].write(tmp_path, b"epoch,step,loss\n0,1,0.5\n")
    with pytest.raises(InvalidInput, match="has no times; log them"):
        read(file)


def mutations(content: bytes) -> st.SearchStrategy[bytes]:
    """The content with pieces cut out, put in, repeated, or overwritten."""
    size = len(content)

    @st.composite
    def made(draw: st.DrawFn) -> bytes:
        mutated = bytearray(content)
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, max(0, len(mutated) - 1)))
            end = min(len(mutated), at + draw(st.integers(0, 200)))
            kind = draw(st.sampled_from(["cut", "put", "repeat", "overwrite", "end"]))
            if kind == "cut":
                del mutated[at:end]
            elif kind == "put":
                mutated[at:at] = draw(st.binary(max_size=20))
            elif kind == "repeat":
                mutated[at:at] = mutated[at:end]
            elif kind == "overwrite":
                mutated[at:end] = draw(
                    st.sampled_from([b"NaN", b"-1", b"", b"9" * 30, b"\n", b'"', b"1e400", b"\0"])
                )
            else:
                del mutated[at:]
        return bytes(mutated)

    return st.one_of(made(), st.binary(max_size=min(size, 300)))


@pytest.mark.parametrize("name", [*LOGS, *TABLES])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_whatever_happens_to_a_log_is_a_clear_error_or_true_runs(
    name: str, tmp_path: Path, data: st.DataObject
) -> None:
    sample = (LOGS | TABLES)[name]
    if name == "mlflow":
        samples.write_mlflow(tmp_path)
    file = sample.write(tmp_path, data.draw(mutations(sample.content())))
    told: list[str] = []
    runs: tuple[Run, ...] = ()
    try:
        runs = wavecast.read_runs(
            tmp_path / "meta.yaml" if name == "mlflow" else file,
            told=told.append,
            format={"csv": "table", "json": "table", "jsonl": "table"}.get(name, name),
            **sample.given,
        )
    except InvalidInput as error:
        told.append(str(error))
    for run in runs:
        assert check(run)
    assert all(str(tmp_path) in warning for warning in told)


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(sorted(FORMATS)))
def test_bytes_at_random_never_confuse_a_reader(
    content: bytes, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("random") / "file"
    file.write_bytes(content)
    FORMATS[name].recognises(file, content)
    told: list[str] = []
    try:
        wavecast.read_runs(file, told=told.append, format=name)
    except InvalidInput as error:
        told.append(str(error))
    assert all(str(file.parent) in warning for warning in told)


def test_a_table_of_metrics_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "MOST_LINES", 100)
    file = LOGS["lightning"].write(tmp_path)
    with pytest.raises(InvalidInput, match="has more than 100 lines; log less often"):
        wavecast.read_runs(file, model="net")


def test_a_table_of_blank_lines_has_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_bytes(b"\n" * 1000)
    assert list(trackers._metric_rows(file, Doubts(file))) == []


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800"])
def test_a_log_whose_name_no_file_can_have_does_not_exist(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no such file or folder"):
        wavecast.read_runs(tmp_path / name)


def test_a_warning_does_not_control_the_terminal(tmp_path: Path) -> None:
    told: list[str] = []
    Doubts(tmp_path / "a\x1b[31m.csv", told.append).tell("line 2", "has \x1b]0;title\x07 in it")
    assert told == [rf"{tmp_path}/a\x1b[31m.csv: line 2: has \x1b]0;title\x07 in it"]
