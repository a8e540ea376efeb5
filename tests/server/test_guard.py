"""The checks that every request passes, of the whole application and of a server of its own."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import MutableMapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp

from wavecast.errors import InvalidInput
from wavecast.server.app import make_app
from wavecast.server.guard import HEADERS, UPLOAD_PATH
from wavecast.server.limits import ServerLimits
from wavecast.server.running import TellingServer, run_server, server_config
from wavecast.server.service import PredictionService

LIMITS = ServerLimits(body_bytes=100, upload_bytes=1000, receive_s=0.2, answer_s=0.5)
RESULT = f"/api/results/{'0' * 32}/save"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The application without workers: no question is ever answered."""
    service = PredictionService(tmp_path_factory.mktemp("guarded"), LIMITS)
    return make_app(service, LIMITS, frozenset({"gpu.example"}))


def ask(app: ASGIApp, *parts: bytes, **options: Any) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body of the answer to a request that arrives in parts."""
    return asyncio.run(asked(app, *parts, **options))


async def asked(
    app: ASGIApp,
    *parts: bytes,
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


def test_a_length_that_is_too_large_is_refused_before_anything_is_read(app: FastAPI) -> None:
    for length in ("101", "9" * 500):
        assert ask(app, stalls=True, content_length=length)[0] == 413


def test_a_request_that_never_ends_is_ended(app: FastAPI) -> None:
    status, headers, _ = ask(app, b"x", stalls=True)
    assert status == 408
    assert headers["connection"] == "close"


def test_an_answer_that_never_comes_is_ended(app: FastAPI) -> None:
    upload = {"path": UPLOAD_PATH, "content_type": "application/json"}
    status, headers, _ = ask(app, b"x" * 1000, **upload)
    assert status == 503
    assert int(headers["retry-after"]) > 0


def test_connections_beyond_the_limit_are_told_to_come_again() -> None:
    assert asyncio.run(crowd(4, ServerLimits(connections=3))) == [b"404", b"404", b"503", b"503"]


async def crowd(size: int, limits: ServerLimits) -> list[bytes]:
    """The statuses that so many connections get, one after the other and all kept open."""
    listening = asyncio.Event()
    server = TellingServer(server_config(FastAPI(), limits), listening.set)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await listening.wait()
        statuses, kept = [], []
        for _ in range(size):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            statuses.append((await reader.readline()).split()[1])
            kept.append(writer)
        for writer in kept:
            writer.close()
        server.should_exit = True
        await serving
    return statuses
