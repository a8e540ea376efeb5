"""What the server does with a question: look for its answer, else ask a worker, and keep it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import wavecast
from wavecast.errors import InvalidInput, StoreUnavailable, UnknownName, WavecastError
from wavecast.files import config_folder, shipped
from wavecast.report.units import one_line
from wavecast.server.guard import ServerLimits
from wavecast.server.pool import WorkerPool
from wavecast.server.questions import ChoiceQuestion, PlanQuestion, PredictionQuestion, digest
from wavecast.server.store import FileStore, ResultStore, recent_results

_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\w.@~-]*[/\\])+[\w.@~-]+")
_NAMES_BYTES = 1 << 20
"""How many names of results are remembered by the words of their questions."""
VISITOR: ContextVar[str] = ContextVar("VISITOR", default="")
"""The address from which the present request came."""
_NOT_KEPT = "no longer kept here; ask for it again"


class UnknownResult(UnknownName):
    """There is no result, or no uploaded file, of that name; it may have been forgotten."""


class PredictionService:
    """Predictions with their uploads and results; the routes of the API call it."""

    def __init__(self, folder: Path, limits: ServerLimits) -> None:
        self.limits = limits
        self.results = ResultStore(folder, limits)
        self.uploads = FileStore(folder / "uploads", limits.uploads_bytes)
        self.traces = FileStore(folder / "traces", limits.traces_bytes)
        self.pool = WorkerPool(limits, folder / "work")
        self._facts = fingerprint()
        self._asked_lately = recent_results(_NAMES_BYTES)

    async def start(self) -> None:
        """Start the workers, and remove what is too much."""
        await asyncio.to_thread(self.uploads.forget)
        await asyncio.to_thread(self.traces.forget)
        await self.pool.start()

    async def close(self) -> None:
        """End the workers and close the store."""
        await self.pool.close()
        self.results.close()

    async def catalogue(self) -> bytes:
        """The choices of the page, as JSON."""
        bounds = {"most_upload_bytes": self.limits.upload_bytes}
        return await self._kept(self._name("catalogue", bounds), "", {"ask": "catalogue"}, bounds)

    async def upload(self, content: AsyncIterator[bytes]) -> bytes:
        """Keep an uploaded file if it can be read; what it holds, as JSON.

        Raises:
            InvalidInput: it is not a trace or profile; says why.
            StoreUnavailable: the disk is full, for example.
        """
        draft = self.uploads.folder / f"{secrets.token_hex(8)}.part"
        try:
            name = await _written(content, draft)
            kept = await asyncio.to_thread(self.uploads.adopt, draft, name)
        except OSError as error:
            raise StoreUnavailable(
                f"the server cannot keep the file: {error.strerror}; who runs it can make room, or "
                "start it with another --folder"
            ) from error
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        question = {"ask": "inspect", "file": str(kept)}
        try:
            reply = await self.pool.ask(f"inspect-{name}", name, question, VISITOR.get())
        except WavecastError as error:
            with suppress(OSError):
                kept.unlink()
            raise shown(error) from None
        about = reply["answer"] | {"trace": name, "doubts": [tidy(d) for d in reply["doubts"]]}
        return json.dumps(about).encode()

    def name_of(self, question: PredictionQuestion) -> str:
        """The name of the result of a question, which is part of its link."""
        return self._name("prediction", question.model_dump())

    def known(self, question: PredictionQuestion) -> bytes | None:
        """The answer to a question that was asked lately in the same words; None if it was not.

        Most requests repeat others, and looking up names of GPUs takes longer than the rest.
        """
        name = self._asked_lately.get(question.model_dump_json())
        return None if name is None else self.results.recent(name.decode())

    async def predict(self, asked: PredictionQuestion) -> bytes:
        """The answer to a question, as JSON.

        Raises:
            UnknownResult: its uploaded file is no longer kept.
            WavecastError: it cannot be answered; says why.
        """
        question = asked.canonical()
        name = self.name_of(question)
        self._asked_lately.put(asked.model_dump_json(), name.encode())
        about = {"id": name, "made": datetime.now(UTC).date().isoformat()}
        about["version"] = wavecast.__version__
        return await self._kept(
            name, self._topic(question), self._asked("predict", question), about
        )

    async def result(self, name: str) -> dict[str, Any]:
        """A kept result.

        Raises:
            UnknownResult: there is none of that name, or no longer.
        """
        body = await self.result_bytes(name)
        try:
            result: dict[str, Any] = json.loads(body)
            PredictionQuestion.model_validate(result["question"])
        except (ValueError, LookupError, TypeError):
            raise UnknownResult(f"the result {name} is {_NOT_KEPT}") from None
        return result

    async def result_bytes(self, name: str) -> bytes:
        """A kept result as JSON."""
        body = self.results.recent(name) or await asyncio.to_thread(self.results.get, name)
        if body is None:
            raise UnknownResult(f"the result {name} is {_NOT_KEPT}")
        return body

    async def details(self, name: str, gpu: str) -> bytes:
        """Where time and memory go on one GPU of a result, as JSON.

        Raises:
            UnknownResult: there is no such result, or it has no such GPU.
        """
        question = await self._question(name, gpu)
        asked = self._asked("details", question, gpu=gpu)
        return await self._kept(f"{name}-{gpu}", self._topic(question), asked)

    async def advice(self, name: str, gpu: str) -> bytes:
        """What would make the step of a result better on one of its GPUs, as JSON.

        Raises:
            UnknownResult: there is no such result, or it has no such GPU.
        """
        question = await self._question(name, gpu)
        asked = self._asked("advise", question, gpu=gpu)
        return await self._kept(f"{name}-{gpu}-advice", self._topic(question), asked)

    async def choice(self, name: str, limits: ChoiceQuestion) -> bytes:
        """The GPUs to rent for the training of a result, within limits, as JSON."""
        question, within = await self._question(name), limits.model_dump()
        asked = self._asked("choose", question, limits=within)
        return await self._kept(f"{name}-{digest(within)}", self._topic(question), asked)

    async def plan(self, question: PlanQuestion) -> bytes:
        """A plan of many jobs, as JSON.

        Raises:
            WavecastError: the jobs cannot be read or planned; names the key or the job.
        """
        asked = question.model_dump()
        name = self._name("plan", asked)
        await self._kept(name, "plan", {"ask": "plan", "plan": asked}, {"id": name})
        return await self.kept_plan(name)

    async def kept_plan(self, name: str) -> bytes:
        """A plan that was made before, as JSON."""
        plan = await self._plan(name)
        return json.dumps({key: plan[key] for key in plan if key != "html"}).encode()

    async def plan_report(self, name: str) -> str:
        """A plan that was made before, as one self-contained page."""
        return str((await self._plan(name))["html"])

    async def _plan(self, name: str) -> dict[str, Any]:
        plan: dict[str, Any] = json.loads(await self.result_bytes(name))
        if "meets_deadlines" not in plan:
            raise UnknownResult(f"the result {name} is no plan")
        return plan

    async def report(self, name: str) -> str:
        """The report of a result, as one self-contained page."""
        question = await self._question(name)
        asked = self._asked("report", question)
        page = json.loads(await self._kept(f"{name}-report", self._topic(question), asked))
        return str(page["html"])

    async def save(self, name: str) -> None:
        """Keep a result with all its details for as long as possible."""
        question = await self._question(name)
        gpus = [row["gpu"] for row in (await self.result(name))["rows"]]
        await asyncio.gather(*(self.details(name, gpu) for gpu in question.gpus if gpu in gpus))
        names = [name, *(f"{name}-{gpu}" for gpu in gpus)]
        await asyncio.to_thread(self.results.save, names)

    async def _question(self, name: str, gpu: str | None = None) -> PredictionQuestion:
        """The question of a result, which must have asked for the GPU, if one is given."""
        question = PredictionQuestion.model_validate((await self.result(name))["question"])
        if gpu is not None and gpu not in question.gpus:
            raise UnknownResult(f"the result has no GPU {gpu}; it has {', '.join(question.gpus)}")
        return question

    def _topic(self, question: PredictionQuestion) -> str:
        return digest(question.step())

    def _asked(self, ask: str, question: PredictionQuestion, **more: Any) -> dict[str, Any]:
        file = None if question.trace is None else self.uploads.path(question.trace)
        asked = {"ask": ask, "question": question.model_dump(), "traces": str(self.traces.folder)}
        return asked | {"file": None if file is None else str(file)} | more

    async def _kept(
        self, name: str, topic: str, question: dict[str, Any], more: dict[str, Any] | None = None
    ) -> bytes:
        """The kept answer of that name, else that of a worker, which is kept then."""
        body = self.results.recent(name) or await asyncio.to_thread(self.results.get, name)
        if body is not None:
            return body
        if "question" in question and question["question"]["trace"] and not question["file"]:
            raise UnknownResult(f"the uploaded file is {_NOT_KEPT}")
        try:
            reply = await self.pool.ask(name, topic, question, VISITOR.get())
        except WavecastError as error:
            raise shown(error) from None
        doubts = {"doubts": [tidy(doubt) for doubt in reply["doubts"]]}
        body = json.dumps(reply["answer"] | doubts | (more or {})).encode()
        await asyncio.to_thread(self.results.put, name, body)
        await asyncio.to_thread(self.traces.forget)
        return body

    def _name(self, *parts: object) -> str:
        return digest(self._facts, *parts)


async def _written(content: AsyncIterator[bytes], draft: Path) -> str:
    """Write what arrives to a file; the digest of it."""
    digested, size = hashlib.sha256(), 0
    with draft.open("wb") as file:
        async for part in content:
            digested.update(part)
            size += len(part)
            await asyncio.to_thread(file.write, part)
    if not size:
        raise InvalidInput("the file is empty; choose a trace or a torch.profiler file")
    return digested.hexdigest()


def fingerprint() -> str:
    """A digest of what answers depend on beside the question: the version, facts and fits."""
    files = []
    for folder in (shipped(""), config_folder()):
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            status = path.stat()
            files.append([path.name, status.st_size, status.st_mtime_ns])
    return digest(wavecast.__version__, files, os.environ.get("WAVECAST_HOST"))


def shown(error: WavecastError) -> WavecastError:
    """The same error without paths of this machine."""
    return type(error)(tidy(str(error)))


def tidy(message: str) -> str:
    """A message without paths of this machine and without control characters."""
    return one_line(_PATH.sub(lambda path: _short_path(path[0]), message))


def _short_path(path: str) -> str:
    name = re.split(r"[/\\]", path)[-1]
    if uploaded := re.fullmatch(r"[0-9a-f]{64}(\.json(?:\.gz)?)", name):
        return f"upload{uploaded[1]}"
    is_code, is_long = name.endswith(".py"), len(re.findall(r"[/\\]", path)) > 1
    return name if is_code else "..." if is_long else path
