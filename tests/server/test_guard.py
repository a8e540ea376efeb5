"""The checks that every request passes, of the whole application and of a server of its own."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from wavecast.errors import InvalidInput
from wavecast.server import running
from wavecast.server.app import make_app
from wavecast.server.guard import HEADERS, UPLOAD_PATH, ServerLimits
from wavecast.server.running import TellingServer, run_server, server_config
from wavecast.server.service import PredictionService

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
LIMITS = ServerLimits(body_bytes=100, upload_bytes=1000, receive_s=0.2, answer_s=0.5)
RESULT = f"/api/results/{'0' * 32}/save"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The application without workers: no question is ever answered."""
    service = PredictionService(tmp_path_factory.mktemp("guarded"), LIMITS)
    return make_app(service, LIMITS, frozenset({"gpu.example"}))


def ask(app: ASGIApp, *parts: bytes | None, **options: Any) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body of the answer to a request that arrives in parts."""
    return asyncio.run(asked(app, *parts, **options))


async def asked(
    app: ASGIApp,
    *parts: bytes | None,
    method: str = "POST",
    path: str = "/api/predictions",
    stalls: bool = False,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    sent = {"host": "localhost:8080"} | {k.replace("_", "-"): v for k, v in headers.items()}
    pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
    left = list(parts)
    answer: list[Any] = []

    async def receive() -> MutableMapping[str, Any]:
        if not left and stalls:
            await asyncio.sleep(3600)
        part = left.pop(0) if left else b""
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(left) or stalls}

    async def send(message: MutableMapping[str, Any]) -> None:
        answer.append(message)

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "scheme": "http"}
    scope |= {"headers": pairs, "query_string": b""}
    await app(scope, receive, send)
    told = {name.decode(): value.decode() for name, value in answer[0]["headers"]}
    return answer[0]["status"], told, b"".join(message["body"] for message in answer[1:])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("[::1]:8080", 200),
        ("192.168.1.7:8080", 200),
        ("gpu.example", 200),
        ("evil.example", 400),
        ("localhost.evil.example:8080", 400),
        ("127.0.0.1.evil.example", 400),
        ("127.0.0.1@evil.example", 400),
        ("[evil.example]", 400),
        ("[", 400),
        ("", 400),
    ],
)
def test_only_our_own_names_reach_the_server(app: FastAPI, host: str, status: int) -> None:
    assert ask(app, method="GET", path="/api/health", host=host)[0] == status


def test_a_name_that_allows_everybody_is_refused(tmp_path: Path) -> None:
    for name in ("*", "gpu.*", "*example"):
        with pytest.raises(InvalidInput, match="--allow-host"):
            run_server(tmp_path, names=frozenset({name}))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"origin": "http://localhost:8080", "sec_fetch_site": "same-origin"}, 404),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://localhost:8080"}, 403),
        ({"origin": "http://localhost:9090"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_pages_of_other_origins_cannot_send(
    app: FastAPI, headers: dict[str, str], status: int
) -> None:
    assert ask(app, path=RESULT, **headers)[0] == status
    assert ask(app, b"x", path=UPLOAD_PATH, **headers)[0] == (403 if status == 403 else 415)


def test_every_answer_has_the_policy_and_no_permission_for_other_origins(port: int) -> None:
    for path in ("/", "/api/x", "/static/page.js", RESULT):
        for host in ("localhost", "evil.example"):
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", path, headers={"host": host, "origin": f"http://{host}"})
            headers = dict(connection.getresponse().getheaders())
            connection.close()
            assert dict(HEADERS).items() <= headers.items()
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "access-control-allow-origin" not in headers


def test_other_methods_are_refused(app: FastAPI) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        for path in ("/", "/api/predictions", UPLOAD_PATH, "/static/page.js"):
            assert ask(app, method=method, path=path)[0] == 405


def test_a_body_is_counted_while_it_arrives(app: FastAPI) -> None:
    assert ask(app, b"x" * 60, b"x" * 40)[0] == 422
    status, headers, body = ask(app, b"x" * 60, b"x" * 41)
    assert status == 413
    assert headers["connection"] == "close"
    assert "at most" in json.loads(body)["error"]["message"]
    json_type = {"content_type": "application/json"}
    status, headers, body = ask(app, b"x" * 600, b"x" * 401, path=UPLOAD_PATH, **json_type)
    assert (status, headers["connection"]) == (413, "close")


def test_a_length_that_is_too_large_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    limits = ServerLimits(receive_s=0.2)
    app = make_app(PredictionService(tmp_path, limits), limits)
    json_type = {"content_type": "application/json"}
    for path, length, limit in (
        ("/api/predictions", "32769", "32 KiB"),
        ("/api/predictions", "9" * 500, "32 KiB"),
        (UPLOAD_PATH, "150000000", "64 MiB as it is sent; compress it"),
    ):
        status, headers, body = ask(app, stalls=True, path=path, content_length=length, **json_type)
        assert (status, headers["connection"]) == (413, "close")
        assert limit in json.loads(body)["error"]["message"]


def test_a_client_that_goes_away_while_it_sends_is_no_fault_of_the_server(app: FastAPI) -> None:
    json_type = {"content_type": "application/json"}
    for path in ("/api/predictions", UPLOAD_PATH):
        assert ask(app, b"x", None, path=path, **json_type)[0] == 499


def test_a_full_disk_is_told(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda path, *how: opened(Path("/dev/full") if path.suffix == ".part" else path, *how),
    )
    json_type = {"content_type": "application/json"}
    status, _, body = ask(app, b"x" * 100, path=UPLOAD_PATH, **json_type)
    assert status == 503
    assert "cannot keep the file: No space left" in json.loads(body)["error"]["message"]


def test_a_request_that_never_ends_is_ended(app: FastAPI) -> None:
    status, headers, _ = ask(app, b"x", stalls=True)
    assert status == 408
    assert headers["connection"] == "close"


def test_an_answer_that_never_comes_is_ended(app: FastAPI) -> None:
    upload = {"path": UPLOAD_PATH, "content_type": "application/json"}
    status, headers, _ = ask(app, b"x" * 1000, **upload)
    assert status == 503
    assert int(headers["retry-after"]) > 0


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"


def test_places_of_idle_connections_are_given_to_new_ones() -> None:
    async def statuses(connect: Connect, answer: asyncio.Event) -> list[bytes]:
        seen = []
        for request in (GET, GET, b"GET /", b"", GET, GET):
            reader, writer = await connect()
            writer.write(request)
            seen.append((await reader.readline())[9:12] if request == GET else b"")
        return seen

    told = asyncio.run(serving(statuses, ServerLimits(connections=3)))
    assert told == [b"404", b"404", b"", b"", b"404", b"404"]


def test_connections_beyond_the_limit_are_told_to_come_again() -> None:
    async def statuses(connect: Connect, answer: asyncio.Event) -> list[bytes]:
        places = [await connect() for _ in range(2)]
        for _, writer in places:
            writer.write(GET.replace(b"/ ", b"/waits "))
        reader, writer = await connect()
        writer.write(GET)
        late = (await reader.readline())[9:12]
        answer.set()
        return [late, *[(await reader.readline())[9:12] for reader, _ in places]]

    told = asyncio.run(serving(statuses, ServerLimits(connections=3)))
    assert told == [b"503", b"200", b"200"]


def test_who_does_not_send_all_of_a_request_makes_room() -> None:
    async def statuses(connect: Connect, answer: asyncio.Event) -> list[bytes]:
        readers = []
        for request in (POST.replace(b"/ ", b"/reads "), GET.replace(b"/ ", b"/waits "), GET):
            reader, writer = await connect()
            writer.write(request)
            await asyncio.sleep(0.1)  # until the server has it
            readers.append(reader)
        last = (await readers[-1].readline())[9:12]
        answer.set()
        with suppress(ConnectionResetError):
            assert await readers[0].read() == b""
        return [last, (await readers[1].readline())[9:12]]

    assert asyncio.run(serving(statuses, ServerLimits(connections=3))) == [b"404", b"200"]


@pytest.mark.parametrize(
    "begun", [b"GET /", b"", POST + b"12345678", GET.replace(b"/ ", b"/large ") * 2]
)
def test_no_request_after_the_first_waits_for_ever(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_HEADER_S", 0.2)
    monkeypatch.setattr(running, "_TAKEN_S", 0.2)

    async def closed(connect: Connect, answer: asyncio.Event) -> bool:
        reader, writer = await connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begun)
        with suppress(OSError):
            while True:  # each byte ends the time that an idle connection is kept
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        return True

    assert asyncio.run(serving(closed, ServerLimits()))


async def serving(
    use: Callable[[Connect, asyncio.Event], Awaitable[Any]], limits: ServerLimits
) -> Any:
    """What a client sees that connects to a server; `/waits` waits for its event."""
    app, listening, answer = FastAPI(), asyncio.Event(), asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    @app.get("/waits")
    async def waits() -> None:
        await answer.wait()

    @app.post("/reads")
    async def reads(request: Request) -> None:
        with suppress(ClientDisconnect):
            await request.body()

    @app.get("/large")
    async def large() -> Response:
        return Response(bytes(50 << 20))

    server = TellingServer(server_config(app, limits), listening.set)
    with socket.create_server(("127.0.0.1", 0)) as sock:

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writers.append(writer)
            return reader, writer

        until_exit = asyncio.create_task(server.serve(sockets=[sock]))
        await listening.wait()
        try:
            async with asyncio.timeout(30):
                return await use(connect, answer)
        finally:
            for writer in writers:
                writer.transport.abort()
            server.should_exit = True
            await until_exit
