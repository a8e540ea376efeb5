"""`trainer_state.json` of Hugging Face's Trainer: the time of the whole training.

It has no times of single steps, so warm-up cannot be dropped; a warning says so. The callback
`wavecast.integrations.huggingface.TrainerRunRecorder` records runs without their warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.runs.readers.text import Doubts, number_of, parse_json, read_whole, whole_of
from wavecast.runs.readers.timing import Facts, Given, RunTotals, make_run
from wavecast.runs.run import Run

_MOST_BYTES = 256 << 20


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file is the saved state of a Trainer."""
    return path.name == "trainer_state.json" or (
        path.suffix == ".json" and b'"log_history"' in head and b'"global_step"' in head
    )


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training in the saved state of a Trainer.

    Raises:
        InvalidInput: the training had not ended, or the model or batch is unknown; says where.
    """
    state = parse_json(read_whole(path, _MOST_BYTES), str(path))
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise InvalidInput(f"{path}: is not the state of a Trainer: it has no log_history")
    ends = [
        (place, entry)
        for place, entry in enumerate(history)
        if isinstance(entry, dict) and "train_runtime" in entry
    ]
    if not ends:
        raise InvalidInput(
            f"{path}: has no train_runtime: it was saved before the training ended; call "
            "trainer.save_state() after trainer.train()"
        )
    if len(ends) > 1:
        doubts.tell("", f"holds the ends of {len(ends)} trainings; only the last one is used")
    place, entry = ends[-1]
    where = f"log_history[{place}]"
    steps = whole_of(entry.get("step", state.get("global_step")))
    whole_s = number_of(entry.get("train_runtime"))
    tests_s = _tests_s(history[:place])
    if steps is None or whole_s is None or tests_s is None or steps < 1 or whole_s <= tests_s:
        raise InvalidInput(
            f"{path}: {where}: {entry.get('step')} steps in {entry.get('train_runtime')} s, less "
            f"{tests_s} s of evaluations, is impossible"
        )
    rate = number_of(entry.get("train_steps_per_second"))
    if rate is not None and steps > 1.1 * (rate + 0.0005) * whole_s + 1:
        raise InvalidInput(
            f"{path}: {where}: {steps} steps in {whole_s:.6g} s contradict its "
            f"train_steps_per_second of {rate:g}; one of these numbers is wrong"
        )
    doubts.tell(
        where,
        "has no times of single steps, so the time includes warm-up, and after a resumed training "
        "covers only the last part; wavecast's callback for the Trainer avoids both",
    )
    facts = Facts(_model(path), _batch(entry, state), framework="pytorch")
    totals = RunTotals(steps, whole_s, whole_s - tests_s, tests_s)
    yield make_run(facts, given, steps, whole_s - tests_s, f"{path}: {where}", totals=totals)


def _tests_s(history: list[Any]) -> float | None:
    """The seconds of evaluations, which the training time includes. None if one is unreadable."""
    times = [e["eval_runtime"] for e in history if isinstance(e, dict) and "eval_runtime" in e]
    seconds = [number_of(time) for time in times]
    valid = [value for value in seconds if value is not None and value >= 0]
    return sum(valid) if len(valid) == len(times) else None


def _batch(entry: dict[str, Any], state: dict[str, Any]) -> int | None:
    """The samples of one step on all GPUs, computed from two rounded rates in the file."""
    samples = number_of(entry.get("train_samples_per_second"))
    steps = number_of(entry.get("train_steps_per_second"))
    batch_of_a_process = whole_of(state.get("train_batch_size"))
    if samples is None or steps is None or samples <= 0 or steps <= 0.0005:
        return None
    ratio = samples / steps
    slack = ratio * (0.0005 / steps + 0.0005 / samples)  # both have three decimals
    if batch_of_a_process is not None and batch_of_a_process > 0:
        # A multiple of the batch of one process: times processes, times accumulation. A short
        # last batch of an epoch makes the ratio a little smaller.
        multiple = max(1, round(ratio / batch_of_a_process)) * batch_of_a_process
        return multiple if abs(multiple - ratio) <= slack + 0.02 * multiple else None
    return round(ratio) if slack < 0.5 and abs(round(ratio) - ratio) <= slack else None


def _model(path: Path) -> str | None:
    """The model's name in the configuration that the Trainer saves next to its state."""
    beside = path.parent / "config.json"
    if not beside.is_file():
        return None
    try:
        config = parse_json(read_whole(beside, 1 << 20), str(beside))
    except InvalidInput:
        return None
    if not isinstance(config, dict):
        return None
    kinds = config.get("architectures")
    names = [config.get("_name_or_path"), *(kinds if isinstance(kinds, list) else [])]
    return next((name for name in names if isinstance(name, str) and name.strip()), None)
