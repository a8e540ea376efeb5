"""The routes of the page and of its API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

import wavecast
from wavecast.errors import StoreUnavailable, UnknownName, WavecastError
from wavecast.server.guard import (
    UPLOAD_PATH,
    ServerLimits,
    bounded_bodies,
    same_origin,
    trusted_hosts,
)
from wavecast.server.pool import ServerBusy, Unanswerable
from wavecast.server.questions import ChoiceQuestion, PlanQuestion, PredictionQuestion
from wavecast.server.service import VISITOR, PredictionService, UnknownResult, tidy

_T = TypeVar("_T")
_UPLOADED = (
    *("application/octet-stream", "application/gzip", "application/x-gzip"),
    "application/json",
)
_STATUS: tuple[tuple[type[WavecastError], int], ...] = (
    (ServerBusy, 503),
    (StoreUnavailable, 503),
    (UnknownResult, 404),
    (UnknownName, 422),
    (Unanswerable, 422),
    (WavecastError, 422),
)
_DESCRIPTION = """
Predicts how long a training step takes, its memory and its cost, on GPUs that you do not have.
Upload a trace or a torch.profiler file, or name a model of the suite. Times are in seconds, sizes
in bytes; what is unknown is null. The server runs no code of yours: it reads traces only.
"""

_NOT_STORED = {"cache-control": "no-store"}

Name = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Gpu = Annotated[str, Path(pattern="^[a-z0-9.-]{1,60}$")]


def make_app(
    service: PredictionService, limits: ServerLimits, names: frozenset[str] = frozenset()
) -> FastAPI:
    """The application that a server runs.

    Args:
        service: what answers questions. It is started and closed with the application.
        limits: the bounds of requests.
        names: host names under which the server may be reached, beside addresses and localhost.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.close()

    app = FastAPI(
        title="Wavecast",
        version=wavecast.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # its scripts would come from other machines
        redoc_url=None,
        dependencies=[Depends(same_origin), Depends(_note_visitor)],
    )
    app.add_middleware(bounded_bodies, limits=limits)
    app.add_middleware(trusted_hosts, names=names)
    _add_errors(app)
    _add_pages(app)
    _add_questions(app, service)
    _add_results(app, service)
    _add_plans(app, service)
    return app


async def _note_visitor(request: Request) -> None:
    VISITOR.set("" if request.client is None else request.client.host)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(WavecastError)
    async def refused(_: Request, error: WavecastError) -> JSONResponse:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        headers = {"retry-after": "2"} if status == 503 else None
        return JSONResponse(
            _error(type(error).__name__, tidy(str(error))), status_code=status, headers=headers
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not repeated: it may be long, or meant for somebody's screen.
        reasons = [f"{_place(e['loc'])}: {e['msg']}" for e in error.errors()[:5]]
        return JSONResponse(_error("InvalidInput", tidy("; ".join(reasons))), status_code=422)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> JSONResponse:
        status = error.status_code
        # The rest of a request that is too large or too slow is not read.
        headers = {"connection": "close"} if status in (408, 413) else error.headers
        answer = _error("Refused", str(error.detail))
        return JSONResponse(answer, status_code=status, headers=headers)


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message}}


def _place(location: tuple[int | str, ...]) -> str:
    """Where in a question something is wrong; names that the client made up are left out."""
    known = {
        *PredictionQuestion.model_fields,
        *PlanQuestion.model_fields,
        "data",
        "shard",
        "tensor",
        "pipeline",
        "cluster",
    }
    named = [str(part) for part in location if isinstance(part, int) or part in known]
    return ".".join(named) or "the question"


class _Pages(StaticFiles):
    """Files for which a browser asks each time, and which it gets only after a change."""

    def file_response(self, *place: Any, **options: Any) -> Response:
        """A file, or 304 if the browser has it."""
        response = super().file_response(*place, **options)
        response.headers["cache-control"] = "no-cache"
        return response


def _add_pages(app: FastAPI) -> None:
    # The parts of an answer look and behave as in a report.
    pages = _Pages(packages=[("wavecast.server", "static"), ("wavecast.report", "templates")])
    app.mount("/static", pages)

    @app.get("/", include_in_schema=False)
    @app.get("/r/{name}", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await pages.get_response("index.html", request.scope)

    @app.get("/plan", include_in_schema=False)
    @app.get("/plan/{name}", include_in_schema=False)
    async def plan_page(request: Request) -> Response:
        return await pages.get_response("plan.html", request.scope)


def _add_questions(app: FastAPI, service: PredictionService) -> None:
    @app.get("/api/health")
    async def health() -> dict[str, Any]:
        """Whether the server answers, and how busy it is."""
        return {"version": wavecast.__version__, **service.pool.load}

    @app.get("/api/queue")
    async def queue() -> dict[str, Any]:
        """How many questions wait, and the places of yours: 0 for one that is being answered."""
        waiting = service.pool.load["waiting"]
        return {"waiting": waiting, "yours": service.pool.places(VISITOR.get())}

    @app.get("/api/catalogue")
    async def catalogue() -> Response:
        """The models with their sizes, the GPUs, the precisions and the clusters to choose from."""
        return _json(await service.catalogue())

    @app.post(UPLOAD_PATH, openapi_extra=_upload_body())
    async def upload(request: Request) -> Response:
        """Keep a trace (`FILE.json.gz`, `FILE.trace`) or a torch.profiler file, sent as the body.

        The answer says what the file holds. Its `trace` names the file in a prediction.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _UPLOADED:
            raise HTTPException(415, f"send the file as one of {', '.join(_UPLOADED)}")
        return _json(await service.upload(request.stream()))

    @app.post("/api/predictions")
    async def predict(question: PredictionQuestion, request: Request) -> Response:
        """The step on each GPU: time with its range, throughput, memory, price.

        The answer is kept under its `id`. Equal questions get the same answer.
        """
        known = service.known(question)
        if known is not None:
            return _json(known)
        return _json(await _unless_gone(request, service.predict(question)))


def _add_results(app: FastAPI, service: PredictionService) -> None:
    @app.get("/api/results/{name}")
    async def result(name: Name) -> Response:
        """A prediction that was made before."""
        return _json(await service.result_bytes(name))

    @app.get("/api/results/{name}/gpus/{gpu}")
    async def details(name: Name, gpu: Gpu, request: Request) -> Response:
        """Where time and memory go on one GPU: sections of HTML, and the data of their script."""
        return _json(await _unless_gone(request, service.details(name, gpu)))

    @app.get("/api/results/{name}/gpus/{gpu}/advice")
    async def advice(name: Name, gpu: Gpu, request: Request) -> Response:
        """What would make the step faster, smaller or cheaper on one GPU, as sections of HTML."""
        return _json(await _unless_gone(request, service.advice(name, gpu)))

    @app.post("/api/results/{name}/choices")
    async def choices(name: Name, limits: ChoiceQuestion, request: Request) -> Response:
        """The GPUs to rent for the whole training, of all with an offer, as sections of HTML."""
        return _json(await _unless_gone(request, service.choice(name, limits)))

    @app.get("/api/results/{name}/report", response_class=HTMLResponse)
    async def report(name: Name, request: Request) -> Response:
        """The report of a prediction as one self-contained file, to keep or to send."""
        return _page(await _unless_gone(request, service.report(name)), name[:8])

    @app.post("/api/results/{name}/save", status_code=204)
    async def save(name: Name) -> None:
        """Keep a prediction and its details for as long as there is room."""
        await service.save(name)


def _add_plans(app: FastAPI, service: PredictionService) -> None:
    @app.post("/api/plans")
    async def plan(question: PlanQuestion, request: Request) -> Response:
        """Which GPUs many jobs get, and when: a sentence, and sections of HTML.

        The answer is kept under its `id`.
        """
        return _json(await _unless_gone(request, service.plan(question)))

    @app.get("/api/plans/{name}")
    async def kept(name: Name) -> Response:
        """A plan that was made before."""
        return _json(await service.kept_plan(name))

    @app.get("/api/plans/{name}/report", response_class=HTMLResponse)
    async def report(name: Name) -> Response:
        """A plan as one self-contained file, to keep or to send."""
        return _page(await service.plan_report(name), f"plan-{name[:8]}")


def _page(page: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="wavecast-{name}.html"'}
    return Response(page, media_type="text/html", headers=headers | _NOT_STORED)


def _upload_body() -> dict[str, Any]:
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": dict.fromkeys(_UPLOADED, schema)}}


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers=_NOT_STORED)


async def _unless_gone(request: Request, answer: Awaitable[_T]) -> _T:
    """The answer, or nothing if the client goes away before: its question is forgotten then."""
    answering = asyncio.ensure_future(answer)
    watching = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise HTTPException(499, "the client went away")
        return answering.result()
    finally:
        for task in (answering, watching):
            task.cancel()


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
