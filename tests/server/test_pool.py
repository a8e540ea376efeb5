from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wavecast.errors import InvalidInput, StoreUnavailable, UnknownName
from wavecast.server import answers
from wavecast.server.guard import ServerLimits
from wavecast.server.pool import ServerBusy, Unanswerable, WorkerPool, answered

LIMITS = ServerLimits(workers=1, queue=3)


def with_pool(
    folder: Path, use: Callable[[WorkerPool], Awaitable[Any]], limits: ServerLimits = LIMITS
) -> Any:
    async def run() -> Any:
        pool = WorkerPool(limits, folder)
        await pool.start()
        try:
            return await use(pool)
        finally:
            await pool.close()

    return asyncio.run(run())


def predict(gpus: list[str], **step: Any) -> dict[str, Any]:
    return {"ask": "predict", "question": {"model": "dcgan", "batch": 2, "gpus": gpus} | step}


def test_a_worker_answers_refuses_and_goes_on(tmp_path: Path) -> None:
    async def use(pool: WorkerPool) -> None:
        first = await pool.ask("a", "", predict(["l4"]))
        assert first["answer"]["rows"][0]["gpu"] == "l4"
        with pytest.raises(InvalidInput, match="no size depth"):
            await pool.ask("b", "", predict(["l4"], sizes={"depth": 3}))
        with pytest.raises(UnknownName, match="h1000"):
            await pool.ask("c", "", predict(["h1000"]))
        assert await pool.ask("d", "", predict(["l4"])) == first
        assert pool.load == {"waiting": 0, "running": 0, "workers": 1}
        await equal_questions_are_asked_once(pool)

    with_pool(tmp_path, use)


def test_questions_have_a_place_and_an_address_leaves_room_for_others(tmp_path: Path) -> None:
    async def use() -> None:
        # Without workers, every question waits.
        pool = WorkerPool(replace(LIMITS, workers=0, visitor_queue=2), tmp_path)
        asked = [asyncio.ensure_future(pool.ask(name, "", {}, name[0])) for name in ("a1", "b1")]
        await asyncio.sleep(0)
        asked.append(asyncio.ensure_future(pool.ask("a2", "", {}, "a")))
        await asyncio.sleep(0)
        assert pool.places("a") == [1, 3]
        assert pool.places("b") == [2]
        assert pool.places("c") == []
        pool.limits = replace(pool.limits, queue=10)
        with pytest.raises(ServerBusy, match="2 of your questions wait"):
            await pool.ask("a3", "", {}, "a")
        await pool.close()
        assert all(
            isinstance(each, asyncio.CancelledError)
            for each in await asyncio.gather(*asked, return_exceptions=True)
        )

    asyncio.run(use())


def test_a_worker_ends_when_its_server_is_gone() -> None:
    nobody = subprocess.Popen(
        [sys.executable, "-m", "wavecast.server.pool", str(1 << 30), "1"], stdin=subprocess.PIPE
    )
    assert nobody.wait(60) == 0  # although its input is still open
    assert nobody.stdin is not None
    nobody.stdin.close()


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("")
    with pytest.raises(StoreUnavailable, match="remove what is in the way"):
        WorkerPool(LIMITS, tmp_path / "work")


async def equal_questions_are_asked_once(pool: WorkerPool) -> None:
    """And too many of them are refused, and those that nobody waits for are forgotten."""
    pool.limits = replace(LIMITS, queue=2)
    running = asyncio.ensure_future(pool.ask("running", "", predict(["t4"])))
    same = [asyncio.ensure_future(pool.ask("same", "", predict(["l4"]))) for _ in range(20)]
    other = asyncio.ensure_future(pool.ask("other", "", predict(["v100-sxm-16gb"])))
    await asyncio.sleep(0)
    assert pool.load == {"waiting": 2, "running": 1, "workers": 1}
    with pytest.raises(ServerBusy, match="try again"):
        await pool.ask("more", "", predict(["t4"]))
    other.cancel()
    with suppress(asyncio.CancelledError):
        await other
    assert pool.load["waiting"] == 1
    answers = await asyncio.gather(*same)
    assert all(answer == answers[0] for answer in answers)
    assert (await running)["answer"]["rows"][0]["gpu"] == "t4"


@pytest.mark.slow
def test_a_question_that_takes_too_long_costs_one_worker(tmp_path: Path) -> None:
    async def use(pool: WorkerPool) -> None:
        await pool.ask("first", "", predict(["l4"]))
        pool.limits = replace(LIMITS, job_s=0.01)
        with pytest.raises(Unanswerable, match="longer than"):
            await pool.ask("slow", "", predict(["l4"], batch=77))
        pool.limits = LIMITS
        asking = asyncio.ensure_future(pool.ask("killed", "", predict(["l4"], batch=33)))
        while not pool.load["running"]:
            await asyncio.sleep(0.01)
        (worker,) = pool._all
        worker.process.kill()
        with pytest.raises(Unanswerable, match=r"ended by signal SIGKILL; perhaps memory ran out"):
            await asking
        assert (await pool.ask("next", "", predict(["l4"])))["answer"]["rows"]
        (worker,) = pool._all
        worker.process.kill()  # while it has nothing to do
        await worker.process.wait()
        assert (await pool.ask("last", "", predict(["l4"])))["answer"]["rows"]

    with_pool(tmp_path, use)


def test_a_worker_has_no_more_memory_than_it_may() -> None:
    code = "from wavecast.server.pool import limit_memory; limit_memory(1 << 28); b'x' * (1 << 29)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("MemoryError")


def test_errors_of_a_worker_tell_their_kind_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(question: Any) -> Any:
        raise MemoryError("/secret/path")

    def broken(question: Any) -> Any:
        raise RuntimeError("/secret/path")

    monkeypatch.setitem(answers.ANSWERS, "full", full)
    monkeypatch.setitem(answers.ANSWERS, "broken", broken)
    assert answered({"ask": "full"}) == {"ended": "memory"}
    assert answered({"ask": "broken"}) == {"ended": "RuntimeError"}
