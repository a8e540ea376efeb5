from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from wavecast.server.guard import UPLOAD_PATH, Guard, Receive, Send
from wavecast.server.limits import ServerLimits

LIMITS = ServerLimits(body_bytes=100, upload_bytes=1000, requests=2, receive_s=0.2, request_s=0.5)


async def echo(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Reads the whole request, and answers with its size."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def sleepy(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    await asyncio.sleep(3600)


def ask(guard: Guard, *parts: bytes, **options: Any) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body of the answer to a request that arrives in parts."""
    return asyncio.run(asked(guard, *parts, **options))


async def asked(
    guard: Guard,
    *parts: bytes,
    method: str = "POST",
    path: str = "/api/x",
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

    scope = {"type": "http", "method": method, "path": path, "scheme": "http", "headers": pairs}
    await guard(scope, receive, send)
    told = {name.decode(): value.decode() for name, value in answer[0]["headers"]}
    return answer[0]["status"], told, b"".join(message["body"] for message in answer[1:])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("192.168.1.7:8080", 200),
        ("gpu.example", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_only_our_own_names_reach_the_server(host: str, status: int) -> None:
    guard = Guard(echo, LIMITS, frozenset({"gpu.example"}))
    assert ask(guard, method="GET", host=host)[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:8080", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://localhost:8080"}, 403),
        ({"origin": "http://localhost:9090"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_pages_of_other_origins_cannot_send(headers: dict[str, str], status: int) -> None:
    assert ask(Guard(echo, LIMITS), b"x", **headers)[0] == status


def test_every_answer_has_the_policy_and_no_permission_for_other_origins() -> None:
    for guard, path in ((Guard(echo, LIMITS), "/"), (Guard(echo, LIMITS), "/api/x")):
        for host in ("localhost", "evil.example"):
            _, headers, _ = ask(guard, path=path, host=host, origin=f"http://{host}")
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "access-control-allow-origin" not in headers


def test_other_methods_are_refused() -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert ask(Guard(echo, LIMITS), method=method)[0] == 405


def test_a_body_is_counted_while_it_arrives() -> None:
    guard = Guard(echo, LIMITS)
    assert ask(guard, b"x" * 60, b"x" * 40) == (200, *ask(guard, b"x" * 100)[1:])
    status, headers, body = ask(guard, b"x" * 60, b"x" * 41)
    assert status == 413
    assert headers["connection"] == "close"
    assert json.loads(body)["error"]["message"]
    assert ask(guard, b"x" * 900, path=UPLOAD_PATH)[0] == 200
    assert ask(guard, b"x" * 1001, path=UPLOAD_PATH)[0] == 413


def test_a_length_that_is_too_large_is_refused_before_anything_is_read() -> None:
    assert ask(Guard(echo, LIMITS), stalls=True, content_length="101")[0] == 413
    assert ask(Guard(echo, LIMITS), stalls=True, content_length="9" * 500)[0] == 413


def test_a_request_that_never_ends_is_ended() -> None:
    status, headers, _ = ask(Guard(echo, LIMITS), b"x", stalls=True)
    assert status == 408
    assert headers["connection"] == "close"


def test_an_answer_that_never_comes_is_ended() -> None:
    status, headers, _ = ask(Guard(sleepy, LIMITS))
    assert status == 503
    assert int(headers["retry-after"]) > 0


def test_requests_beyond_the_limit_are_told_to_come_again() -> None:
    guard = Guard(sleepy, LIMITS)

    async def crowd() -> list[tuple[int, dict[str, str], bytes]]:
        return await asyncio.gather(*(asked(guard) for _ in range(4)))

    answers = asyncio.run(crowd())
    at_once = [headers["retry-after"] for _, headers, body in answers if b"too many" in body]
    assert at_once == ["1", "1"]
    assert ask(Guard(echo, LIMITS))[0] == 200
