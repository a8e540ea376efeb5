"""Threads: one trace at a time, and steps that run GPU work in threads of their own.

Torch can end the whole process when fake tensors are used in a thread without its modes. So the
steps run in another process, once for all tests.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from networks import Step, calls_of, mlp, training
from torch._subclasses.fake_tensor import FakeTensor

from wavecast.errors import CaptureError, WavecastError
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Trace

Train = Callable[[Any, Any, Any], None]


def _step(train: Train) -> Callable[[], Step]:
    """A `make_step` whose step trains a model, given a batch on the GPU and one on the host."""

    def make_step() -> Step:
        model = mlp().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, on_host = torch.randn(4, 8, device="cuda"), torch.randn(4, 8)

        def step() -> None:
            optimizer.zero_grad()
            train(model, x, on_host)
            optimizer.step()

        return step

    return make_step


def _loss(model: Any, x: Any) -> Any:
    return model(x).sum()


def _in_this_thread(model: Any, x: Any, on_host: Any) -> None:
    _loss(model, x).backward()


def _prefetch(model: Any, x: Any, on_host: Any) -> None:
    batches: queue.Queue[Any] = queue.Queue()
    stream = torch.cuda.Stream()

    def load() -> None:
        with torch.cuda.stream(stream):
            batches.put(on_host.cuda(non_blocking=True))

    threading.Thread(target=load).start()
    _loss(model, batches.get()).backward()


def _in_pool(model: Any, x: Any, on_host: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: _loss(model, x).backward()).result()


def _backward_in_pool(model: Any, x: Any, on_host: Any) -> None:
    loss = _loss(model, x)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()


def _made_in_pool(model: Any, x: Any, on_host: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(torch.randn, 4, 8, device="cuda").result()
    _loss(model, batch).backward()


def _left_behind(model: Any, x: Any, on_host: Any) -> None:
    """The next batch is copied after the step asked for it, and nobody waits for it."""
    _loss(model, x).backward()
    threading.Thread(target=on_host.cuda).start()


def _low_level(model: Any, x: Any, on_host: Any) -> None:
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            _loss(model, x).backward()
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()


class _Worker:
    """A thread that runs tasks, started before tracing."""

    def __init__(self) -> None:
        self.tasks: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            task, future = self.tasks.get()
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

    def __call__(self, task: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self.tasks.put((task, future))
        return future.result()


def _autocast(model: Any, x: Any, on_host: Any) -> None:
    """Autocast, modules and gradients belong to the thread that set them."""

    def other() -> Any:
        with torch.no_grad():
            return model(x)  # no autocast in this thread

    with torch.autocast("cuda", torch.bfloat16), ThreadPoolExecutor(1) as pool:
        pool.submit(other).result()
        _loss(model, x).backward()


def _fails(model: Any, x: Any, on_host: Any) -> None:
    """The step waits for a thread that cannot go on: on a real GPU it would wait for ever, too."""
    batches: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=lambda: batches.put(x.to("cuda:1"))).start()
    _loss(model, batches.get()).backward()


def _fails_unheard(model: Any, x: Any, on_host: Any) -> None:
    """The first signal is lost, as one is that comes just before the step begins to wait."""
    send = mock.Mock(wraps=signal.pthread_kill, side_effect=(None, mock.DEFAULT))
    with mock.patch.object(signal, "pthread_kill", send):
        _fails(model, x, on_host)


def _fails_unasked(model: Any, x: Any, on_host: Any) -> None:
    _loss(model, x).backward()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: x.to("cuda:1"))


def _fails_apart(model: Any, x: Any, on_host: Any) -> None:
    """A thread of a logger, say, cannot write: Python prints its error and goes on."""
    logger = threading.Thread(target=open, args=("/nowhere/log.txt", "w"))
    logger.start()
    logger.join()
    _loss(model, x).backward()


def _nested(model: Any, x: Any, on_host: Any) -> None:
    for run in (lambda task: task(), _pooled):
        assert len(run(lambda: capture(training(mlp)))) > 0
    _loss(model, x).backward()


def _pooled(task: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(task).result()


def _cases() -> dict[str, Train]:
    old_pool, old_thread = ThreadPoolExecutor(1), _Worker()
    old_pool.submit(lambda: None).result()
    return {
        "this thread": _in_this_thread,
        "prefetch": _prefetch,
        "pool": _in_pool,
        "old pool": lambda model, x, _: old_pool.submit(
            lambda: _loss(model, x).backward()
        ).result(),
        "backward in pool": _backward_in_pool,
        "made in pool": _made_in_pool,
        "left behind": _left_behind,
        "low level": _low_level,
        "old thread": lambda model, x, _: old_thread(lambda: _loss(model, x).backward()),
        "old thread copies": lambda model, x, host: _loss(
            model, old_thread(lambda: host.cuda())
        ).backward(),
        "old thread makes": lambda model, x, _: _loss(
            model, old_thread(lambda: torch.randn(4, 8, device="cuda"))
        ).backward(),
        "autocast": _autocast,
        "fails": _fails,
        "fails unheard": _fails_unheard,
        "fails unasked": _fails_unasked,
        "fails apart": _fails_apart,
        "nested": _nested,
    }


def _described(trace: Trace) -> dict[str, Any]:
    return {
        "ops": sorted(Counter((c.phase.value, c.op.base) for c in trace).items()),
        "modules": [c.module for c in calls_of(trace, "aten.mm")],
        "streams": [c.stream for c in calls_of(trace, "aten._to_copy")],
        "dtypes": [c.op.outputs[0].dtype for c in calls_of(trace, "aten.addmm")],
        "pretends": torch.cuda.is_available(),
    }


def _run_all() -> dict[str, Any]:
    """What each case gives: its trace, or its error."""
    results: dict[str, Any] = {}
    for name, train in _cases().items():
        try:
            results[name] = _described(capture(_step(train)))
        except WavecastError as error:
            results[name] = {"error": str(error), "pretends": torch.cuda.is_available()}
    return results


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    answers: dict[str, Any] = json.loads(run.stdout)
    return answers


@pytest.mark.slow
def test_torch_is_as_before_after_each(results: dict[str, Any]) -> None:
    assert [name for name, result in results.items() if result["pretends"]] == []


@pytest.mark.parametrize(
    "name", ["pool", "old pool", "backward in pool", "low level", "old thread", "nested"]
)
def test_the_ops_of_a_thread_are_those_of_the_step(results: dict[str, Any], name: str) -> None:
    assert results[name]["ops"] == results["this thread"]["ops"]


@pytest.mark.parametrize("name", ["pool", "old pool", "backward in pool"])
def test_the_modules_are_known_in_a_pool(results: dict[str, Any], name: str) -> None:
    assert results[name]["modules"] == results["this thread"]["modules"]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("prefetch", "aten._to_copy"),
        ("left behind", "aten._to_copy"),
        ("old thread copies", "aten._to_copy"),
        ("made in pool", "aten.randn"),
    ],
)
def test_a_batch_from_a_thread_is_recorded(results: dict[str, Any], name: str, op: str) -> None:
    more = [item for item in results[name]["ops"] if item not in results["this thread"]["ops"]]
    assert more == [[["forward", op], 1]]


def test_a_thread_has_a_stream_of_its_own(results: dict[str, Any]) -> None:
    assert results["prefetch"]["streams"] != [0]
    assert results["left behind"]["streams"] == [0]


def test_a_thread_has_an_autocast_of_its_own(results: dict[str, Any]) -> None:
    assert results["autocast"]["dtypes"] == ["float32"] * 2 + ["bfloat16"] * 2


@pytest.mark.parametrize("name", ["fails", "fails unheard", "fails unasked"])
def test_what_a_thread_cannot_do_is_an_error_of_the_trace(
    results: dict[str, Any], name: str
) -> None:
    assert "cuda:1 at " in results[name]["error"]
    assert "test_threads.py:" in results[name]["error"]


def test_a_thread_that_runs_no_op_may_fail(results: dict[str, Any]) -> None:
    assert results["fails apart"] == results["this thread"]


def test_a_tensor_made_in_an_old_thread_is_refused_with_its_line(results: dict[str, Any]) -> None:
    error = results["old thread makes"]["error"]
    assert "in a thread that was started before tracing" in error
    assert "test_threads.py:" in error


def test_traces_of_several_threads_are_made_one_after_the_other() -> None:
    alone = capture(training(mlp))
    barrier = threading.Barrier(3)

    def trace_two(_: int) -> list[Trace]:
        barrier.wait()
        return [capture(training(mlp)) for _ in range(2)]

    with ThreadPoolExecutor(3) as pool:
        traces = [trace for pair in pool.map(trace_two, range(3)) for trace in pair]
    assert traces == [alone] * 6
    assert not torch.cuda.is_available()


def test_other_threads_of_the_program_are_not_traced() -> None:
    ask: queue.Queue[Any] = queue.Queue()
    answer: queue.Queue[Any] = queue.Queue()

    def train_for_real() -> float:
        torch.manual_seed(0)
        recurrent = torch.nn.LSTM(8, 8)
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)).double().float()
        optimizer = torch.optim.SGD([*model.parameters(), *recurrent.parameters()], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            y = model(torch.ones(2, 8, 4).cumsum(0))
            y = torch.nn.functional.scaled_dot_product_attention(y, y, y).softmax(-1)
            loss = recurrent(y.transpose(1, 2))[0].pow(2).sum()
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    expected = train_for_real()

    def serve() -> None:
        for _ in iter(ask.get, None):
            try:
                answer.put(train_for_real())
            except Exception as error:
                answer.put(error)

    worker = threading.Thread(target=serve)
    worker.start()

    def beside(model: Any, x: Any, on_host: Any) -> None:
        ask.put(True)
        assert answer.get() == expected
        _loss(model, x).backward()

    try:
        assert capture(_step(beside)) == capture(_step(_in_this_thread))
    finally:
        ask.put(None)
        worker.join()


def test_a_thread_that_outlives_the_trace_works_as_before() -> None:
    ask: queue.Queue[Any] = queue.Queue()
    answer: queue.Queue[Any] = queue.Queue()
    threads: list[threading.Thread] = []

    def serve() -> None:
        for task in iter(ask.get, None):
            try:
                answer.put(task())
            except BaseException as error:
                answer.put(error)

    def make_step() -> Step:
        threads.append(threading.Thread(target=serve, daemon=True))
        threads[0].start()
        return training(mlp)()

    capture(make_step)
    ask.put(lambda: torch.ones(3) * 2)
    result = answer.get()
    assert not isinstance(result, FakeTensor)
    assert result.tolist() == [2.0] * 3
    ask.put(partial(capture, training(mlp)))
    assert answer.get() == capture(training(mlp))
    ask.put(None)
    threads[0].join()
    assert threads[0].run.__func__ is threading.Thread.run  # type: ignore[attr-defined]


def _attention() -> Any:
    return torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


_ATTENTION = training(_attention, (2, 8, 16), dtype=torch.bfloat16)


def test_traces_nest() -> None:
    old, new = (capture(_ATTENTION, capability=capability) for capability in ((7, 0), (9, 0)))
    plain, inner = capture(training(mlp)), []
    assert old.calls != new.calls

    def deeper() -> Step:
        step = training(mlp)()

        def run() -> None:
            inner.append((capture(_ATTENTION), new))
            step()

        return run

    def make_step() -> Step:
        inner.append((capture(training(mlp)), plain))
        step = _ATTENTION()

        def run() -> None:
            inner.append((capture(_ATTENTION, capability=(7, 0)), old))
            inner.append((capture(deeper), plain))
            with pytest.raises(CaptureError, match="ZeroDivisionError"):
                capture(lambda: lambda: 1 / 0)
            step()

        return run

    assert capture(make_step) == new
    assert len(inner) == 9
    assert all(trace == expected for trace, expected in inner)
    assert not torch.cuda.is_available()
    assert capture(_ATTENTION) == new


def test_a_thread_outside_of_nested_traces_computes() -> None:
    worker, x = _Worker(), torch.ones(2, 3)

    def innermost() -> Step:
        assert worker(lambda: torch.dropout(x, 0.0, True)).tolist() == x.tolist()
        return training(mlp)()

    def make_step() -> Step:
        capture(innermost)
        return training(mlp)()

    assert capture(make_step) == capture(training(mlp))


def _stopping(error: BaseException) -> Iterator[Any]:
    def stop(model: Any, x: Any, on_host: Any) -> None:
        raise error

    yield capture(_step(stop))


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, MemoryError])
def test_every_way_out_restores_everything(error: type[BaseException]) -> None:
    methods = (threading.Thread.start, ThreadPoolExecutor.submit, FakeTensor.__torch_dispatch__)
    with pytest.raises((error, CaptureError)):
        next(_stopping(error()))
    assert not torch.cuda.is_available()
    assert methods == (
        threading.Thread.start,
        ThreadPoolExecutor.submit,
        FakeTensor.__torch_dispatch__,
    )
    assert len(capture(training(mlp))) > 0


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_run_all()))
