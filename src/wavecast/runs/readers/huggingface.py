"""`trainer_state.json` of Hugging Face's Trainer: the time of the whole training.

It has no time of each step, so warm-up cannot be dropped; every run of it says so. The callback
`wavecast.integrations.huggingface.RunRecorder` records runs without their warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.runs.readers.facts import Facts, Given, make_run
from wavecast.runs.readers.text import Doubts, number_of, parse_json, read_whole, whole_of
from wavecast.runs.run import Run

_MOST_BYTES = 256 << 20


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file is the state of a trainer."""
    return path.name == "trainer_state.json" or (
        path.suffix == ".json" and b'"log_history"' in head and b'"global_step"' in head
    )


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of a trainer's state.

    Raises:
        InvalidInput: the training had not ended, or what must be known is not; says where.
    """
    state = parse_json(read_whole(path, _MOST_BYTES), str(path))
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise InvalidInput(f"{path}: is not the state of a trainer: it has no log_history")
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
        doubts.tell(
            "", f"has {len(ends)} ends of trainings; all but the last are of runs before, left out"
        )
    place, entry = ends[-1]
    where = f"log_history[{place}]"
    steps = whole_of(entry.get("step", state.get("global_step")))
    whole_s = number_of(entry.get("train_runtime"))
    tests_s = _tests_s(history[:place])
    if steps is None or whole_s is None or tests_s is None or steps < 1 or whole_s <= tests_s:
        raise InvalidInput(
            f"{path}: {where}: {entry.get('step')} steps in {entry.get('train_runtime')} s, less "
            f"{tests_s} s of evaluations, cannot be"
        )
    doubts.tell(
        where,
        "has no time of each step, so warm-up is within the time; and of a training that was "
        "resumed it would be the time of the last part; wavecast's callback for the Trainer knows",
    )
    facts = Facts(_model(path), _batch(entry, state), framework="pytorch")
    yield make_run(facts, given, steps, whole_s - tests_s, f"{path}: {where}")


def _tests_s(history: list[Any]) -> float | None:
    """The time of evaluations between steps, which the time of the training holds."""
    times = [e["eval_runtime"] for e in history if isinstance(e, dict) and "eval_runtime" in e]
    seconds = [number_of(each) for each in times]
    known = [each for each in seconds if each is not None and each >= 0]
    return sum(known) if len(known) == len(times) else None


def _batch(entry: dict[str, Any], state: dict[str, Any]) -> int | None:
    """Samples a step, over all GPUs; the file has them as a ratio of two rounded rates."""
    samples = number_of(entry.get("train_samples_per_second"))
    steps = number_of(entry.get("train_steps_per_second"))
    batch_of_a_process = whole_of(state.get("train_batch_size"))
    if samples is None or steps is None or samples <= 0 or steps <= 0.0005:
        return None
    ratio = samples / steps
    slack = ratio * (0.0005 / steps + 0.0005 / samples)  # both have three decimals
    if batch_of_a_process is not None and batch_of_a_process > 0:
        # Whole batches of a process, times processes, times accumulation; a short last batch of
        # an epoch makes the ratio a little smaller.
        multiple = max(1, round(ratio / batch_of_a_process)) * batch_of_a_process
        return multiple if abs(multiple - ratio) <= slack + 0.02 * multiple else None
    return round(ratio) if slack < 0.5 and abs(round(ratio) - ratio) <= slack else None


def _model(path: Path) -> str | None:
    """The name in the configuration that the Trainer saves beside its state."""
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
