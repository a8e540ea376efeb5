"""What a hostile client may send is refused or shown harmlessly, and the server goes on."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from made import call, mm, relu, trace, unknown

from wavecast.traces.step import Allocation, Phase, Role, Trace

EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e</script>&\"'"
GZIP = {"content-type": "application/gzip"}


def hostile_trace() -> Trace:
    """A trace whose names are markup, terminal codes and marks that turn the text around."""
    calls = (
        call(mm(64, 64, 64), module=EVIL),
        call(unknown(EVIL), module=f"net.{EVIL}"),
        call(relu(64, 64), Phase.BACKWARD, EVIL),
    )
    made = trace(*calls, samples=8, notes=(EVIL,))
    kept = (Allocation(1 << 20, None, None, Role.PARAMETER, module=EVIL),)
    return Trace(made.calls, kept, EVIL, samples=8, unit=EVIL, notes=(EVIL,))


@pytest.fixture
def alive(client: TestClient) -> Iterator[TestClient]:
    """The server, which must answer an ordinary question afterwards."""
    yield client
    question = {"model": "dcgan", "batch": 2, "gpus": ["l4"]}
    answer = client.post("/api/predictions", json=question)
    assert answer.status_code == 200, answer.text


def bomb() -> bytes:
    """A file that unpacks to 300 MB."""
    return gzip.compress(b'{"traceEvents": [' + b" " * 300_000_000, compresslevel=1)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (bomb, "application/gzip"),
        (lambda: gzip.compress(gzip.compress(b" " * 10_000_000)), "application/gzip"),
        (lambda: nested(500_000), "application/json"),
        (lambda: gzip.compress(nested(500_000)), "application/gzip"),
        (lambda: b'{"traceEvents": ' + nested(100_000) + b"}", "application/json"),
        (lambda: b'{"traceEvents": [NaN, Infinity, -Infinity]}', "application/json"),
        (lambda: b'{"traceEvents": [{"ts": 1e999, "dur": NaN}]}', "application/json"),
        (lambda: b'{"traceEvents": [' + b"9" * 1_000_000 + b"]}", "application/json"),
        (lambda: b'{"a": "\xff\xfe"}', "application/json"),
        (lambda: b'{"traceEvents": "../../../etc/passwd"}', "application/json"),
        (lambda: b"", "application/octet-stream"),
        (lambda: b"\x1f\x8b", "application/gzip"),
        (lambda: b"PK\x03\x04" + b"\0" * 1000, "application/octet-stream"),
        (lambda: b"\x80\x04\x95 a pickle cos\nsystem\n", "application/octet-stream"),
        (lambda: b"import os; os.system('true')", "application/octet-stream"),
        (lambda: gzip.compress(b'{"format":"wavecast-trace","version":2}'), "application/gzip"),
    ],
)
def test_files_that_are_no_traces_are_refused(alive: TestClient, content: Any, kind: str) -> None:
    answer = alive.post("/api/traces", content=content(), headers={"content-type": kind})
    assert answer.status_code in (413, 422), answer.text
    message = answer.json()["error"]["message"]
    assert 0 < len(message) < 900
    assert "/" not in message.replace("://", "")


@pytest.mark.parametrize("kind", ["text/html", "multipart/form-data; boundary=x", "", "image/png"])
def test_other_kinds_of_content_are_refused(alive: TestClient, kind: str) -> None:
    headers = {"content-type": kind}
    assert alive.post("/api/traces", content=b"x", headers=headers).status_code == 415
    assert alive.post("/api/predictions", content=b"x", headers=headers).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        nested(10_000),
        b'{"model": "dcgan", "gpus": ["l4"], "batch": NaN}',
        b'{"model": "dcgan", "gpus": ["l4"], "batch": 1e400}',
        b'{"model": "dcgan", "gpus": ["l4"], "batch": ' + b"9" * 5000 + b"}",
        b'{"model": "dcgan", "gpus": ["l4"], "sizes": {"width": 99999999999999999999}}',
        b'{"model": "\\ud800", "gpus": ["l4"]}',
        b"\xff\xfe{}",
        b'{"model": "dcgan", "gpus": ["l4"]',
        b"",
    ],
)
def test_questions_that_are_no_json_are_refused(alive: TestClient, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = alive.post("/api/predictions", content=body, headers=headers)
    assert answer.status_code in (400, 422), answer.text
    assert len(answer.text) < 1000


def test_a_damaged_trace_is_refused_and_not_kept(alive: TestClient, saved_step: Path) -> None:
    content = saved_step.read_bytes()
    document = json.loads(gzip.decompress(content))
    document["trace"]["unit"] = "lies"
    for damaged in (content[:-20], gzip.compress(json.dumps(document).encode())):
        answer = alive.post("/api/traces", content=damaged, headers=GZIP)
        assert answer.status_code == 422
        assert "upload.json.gz" in answer.json()["error"]["message"]


def test_names_are_shown_harmlessly(alive: TestClient, tmp_path: Path) -> None:
    hostile_trace().save(tmp_path / "x.json.gz")
    content = (tmp_path / "x.json.gz").read_bytes()
    trace = alive.post("/api/traces", content=content, headers=GZIP).json()["trace"]
    question = {"trace": trace, "label": f"../../{EVIL}"[:80], "gpus": ["l4"]}
    answer = alive.post("/api/predictions", json=question).json()
    details = alive.get(f"/api/results/{answer['id']}/gpus/l4").json()
    report = alive.get(f"/api/results/{answer['id']}/report").text
    html = "".join([*map(str, answer["parts"].values()), *details["sections"], report])
    assert "<img" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "&lt;img src=x" in html


def test_a_model_that_is_too_large_is_refused(alive: TestClient) -> None:
    sizes = {"width": 10_000_000, "image": 10_000_000}
    question = {"model": "resnet50", "batch": 10_000_000, "sizes": sizes, "gpus": ["l4"]}
    answer = alive.post("/api/predictions", json=question)
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert answer.json()["rows"][0]["fits"] is False


def connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def is_alive(port: int) -> bool:
    with connection(port) as sock:
        sock.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"200 OK" in sock.recv(1 << 16)


def test_a_stream_of_a_gigabyte_is_cut_off(port: int) -> None:
    head = (
        b"POST /api/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    part = b"[" + b"1," * (1 << 19)
    chunk = f"{len(part):x}\r\n".encode() + part + b"\r\n"
    sent = 0
    with connection(port) as sock:
        sock.sendall(head)
        with suppress(OSError):  # the server closes the connection
            for _ in range(1024):
                sock.sendall(chunk)
                sent += len(chunk)
        answer = b""
        with suppress(OSError):
            answer = sock.recv(1 << 16)
    assert sent < 200 << 20
    assert answer == b"" or b"413" in answer
    assert is_alive(port)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /api/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/gzip\r\n"
        b"Content-Length: 1000\r\n\r\nonly this",
        b"POST /api/predictions HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"GET /static/../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /%00%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_requests_that_are_cut_short_or_no_http_do_no_harm(port: int, request_bytes: bytes) -> None:
    with connection(port) as sock:
        with suppress(OSError):
            sock.sendall(request_bytes)
            sock.shutdown(socket.SHUT_WR)  # the server may have closed the connection already
        answer = b""
        with suppress(OSError):
            answer = sock.recv(1 << 16)
    assert b"200 OK" not in answer
    assert is_alive(port)
