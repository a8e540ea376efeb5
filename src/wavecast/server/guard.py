"""Who may ask, and how long a request may take to arrive.

Starlette checks host names (`TrustedHostMiddleware`), uvicorn the number of connections and the
size of headers. Here is what they do not do, or do without a reason that helps.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD_PATH = "/api/traces"
HEADERS = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("x-frame-options", "DENY"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
]
"""The headers of every response."""
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+))(?::[0-9]+)?")


def trusted_hosts(app: ASGIApp, names: frozenset[str] = frozenset()) -> ASGIApp:
    """The application for requests to an address, to localhost and to a name that is allowed.

    A page elsewhere whose name was made to lead here (DNS rebinding) would send its own name. An
    address leads to one place only. Others get 400.
    """
    by_name = TrustedHostMiddleware(app, ["localhost", *names], www_redirect=False)

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        await (app if _is_address(host) else by_name)(scope, receive, send)

    return checked


def _is_address(host: str) -> bool:
    """Whether a host header has an address, with or without a port."""
    match = _ADDRESS.fullmatch(host)
    try:
        return match is not None and bool(ipaddress.ip_address(match[1] or match[2]))
    except ValueError:
        return False


async def same_origin(request: Request) -> None:
    """Refuse what a page of another origin sends. Programs that are no browsers send no origin."""
    headers = request.headers
    ours = f"{request.scope['scheme']}://{headers.get('host', '')}".lower()
    is_ours = headers.get("origin", ours).lower() == ours
    if request.method == "POST" and not (
        is_ours and headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    ):
        raise HTTPException(403, "this was sent by a page of another origin")


def bounded_bodies(app: ASGIApp, limits: ServerLimits) -> ASGIApp:
    """The application for requests whose body is neither too large (413) nor too slow (408)."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + limits.receive_s
        is_upload, complete, size = scope["path"] == UPLOAD_PATH, False, 0
        announced = Headers(scope=scope).get("content-length", "")

        async def received() -> Message:
            nonlocal complete, size
            if complete:
                return await receive()  # waits until the client goes away
            _check_size(int(announced) if announced.isdecimal() else 0, is_upload, limits)
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise HTTPException(499, "the client went away")
            size += len(message.get("body", b""))
            _check_size(size, is_upload, limits)
            complete = not message.get("more_body", False)
            return message

        await app(scope, received, send)

    return bounded


def _check_size(size: int, is_upload: bool, limits: ServerLimits) -> None:
    """Refuse a body that is too large, before or while it arrives."""
    if is_upload and size > limits.upload_bytes:
        most = f"a file may have at most {limits.upload_bytes / (1 << 20):g} MiB as it is sent"
        raise HTTPException(413, f"{most}; compress it with gzip, or profile fewer steps")
    if not is_upload and size > limits.body_bytes:
        most = f"{limits.body_bytes / (1 << 10):g} KiB"
        raise HTTPException(413, f"a question may have at most {most}")


# How much the server takes on: sizes, numbers, seconds.


@dataclass(frozen=True)
class ServerLimits:
    """The bounds of one server. What is beyond them is refused with a reason."""

    upload_bytes: int = 64 << 20
    """The largest file that can be uploaded, as it is sent."""
    body_bytes: int = 32 << 10
    """The largest other request."""
    connections: int = 512
    """Connections at the same time, idle ones included. Others are told to come again (503)."""
    queue: int = 128
    """Questions that wait for a worker. Others are told to come again (503)."""
    visitor_queue: int = 64
    """Questions of one address that wait or run, so that it leaves room for others."""
    workers: int = max(1, min(4, os.cpu_count() or 1))
    """Worker processes."""
    job_s: float = 120.0
    """The longest that a worker works on one question. It is ended then."""
    job_bytes: int = 3 << 30
    """The most memory that a worker may allocate."""
    jobs: int = 500
    """Questions after which a worker is replaced by a new one."""
    receive_s: float = 60.0
    """The longest that a request takes to arrive."""
    answer_s: float = 300.0
    """The longest that a question waits for its answer, the work of a worker included."""
    uploads_bytes: int = 1 << 30
    """All uploaded files together. The longest unused ones are forgotten."""
    traces_bytes: int = 256 << 20
    """All traces of suite models together, on disk."""
    results_bytes: int = 512 << 20
    """All results together. The longest unused ones are forgotten, saved ones last."""
    cached_bytes: int = 64 << 20
    """The results that are kept in memory."""
