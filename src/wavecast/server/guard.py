"""Who may ask, and how long a request may take to arrive.

Starlette checks host names (`TrustedHostMiddleware`), uvicorn the number of connections and the
size of headers. Here is what they do not do, or do without a reason that helps.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wavecast.server.limits import ServerLimits

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
