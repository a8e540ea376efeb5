"""Who may ask, and how long a request may take to arrive.

Starlette checks host names (`TrustedHostMiddleware`) and sizes (`RequestBodyLimitMiddleware`),
uvicorn the number of connections and the size of headers. Here is what they do not do.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
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
    small, large = (
        RequestBodyLimitMiddleware(app, most) for most in (limits.body_bytes, limits.upload_bytes)
    )

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        deadline = asyncio.get_running_loop().time() + limits.receive_s
        complete = scope["type"] != "http"

        async def received() -> Message:
            nonlocal complete
            if complete:
                return await receive()  # waits until the client goes away
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request did not arrive in time") from None
            complete = not message.get("more_body", False)
            return message

        await (large if scope.get("path") == UPLOAD_PATH else small)(scope, received, send)

    return bounded
