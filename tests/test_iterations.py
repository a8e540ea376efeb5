"""The suite's iterations on calibrated machines: what is read of the files."""

from __future__ import annotations

from benchmarks import blind
from benchmarks.iterations import FOLDER, ROUNDS, documents, repeated, rounds, steps
from training.host import LEASES
from training.op_data import HELD_OUT
from wavecast import suite


def test_no_fit_reads_them() -> None:
    assert FOLDER.name in HELD_OUT
    assert FOLDER.name not in LEASES


def test_every_benchmark_comes_in_every_precision_and_the_order_is_drawn_once() -> None:
    names = [name for name, _ in steps()]
    assert names == [name for name, _ in steps()]
    assert len(names) == len(set(names))
    pairs = {(name.split()[0], name.split()[2]) for name in names}
    assert pairs == {(b.name, p) for b in suite.benchmarks() for p in suite.PRECISIONS}


def test_of_rounds_the_median_counts_and_the_gpu_is_that_of_another_machine() -> None:
    known, raw = documents(), blind.read(FOLDER)
    for machine, document in known.items():
        for name, step in document["steps"].items():
            found = raw[machine]["steps"][name]
            rounds = found.get("rounds_s", [found.get("seconds")])
            assert step["seconds"] == sorted(rounds)[len(rounds) // 2]
            assert step["gpu_s"] > 0
    assert sum(len(each["steps"]) for each in known.values()) == 189
    assert {"cpu", "cuda"} == set(known["third"]["host"])


def test_a_round_is_told_best_by_what_includes_it() -> None:
    perfect_of_first = {name: each[0] for name, each in rounds().items()}
    off = dict(repeated(perfect_of_first))
    count = len(rounds())
    assert all(len(each) == count * ROUNDS for each in off.values())
    assert off["our prediction, host calibrated"][::ROUNDS] == [0.0] * count
    means = {title: sum(each) / len(each) for title, each in off.items()}
    assert min(means, key=means.__getitem__) == "the median of all, in hindsight"
