"""What every request passes first: who may ask, how much may be sent, and how long it may take.

This is plain ASGI, because it runs for every request and reads bodies as they arrive.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from wavecast.server.limits import ServerLimits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

UPLOAD_PATH = "/api/traces"
_METHODS = ("GET", "HEAD", "POST")
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


class Refused(Exception):
    """A request that is not answered, with the status and the message that it gets instead."""

    def __init__(self, status: int, message: str, retry_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_s = status, message, retry_s


@dataclass
class Guard:
    """An application behind the checks that every request must pass."""

    app: Application
    limits: ServerLimits
    names: frozenset[str] = frozenset()
    """Host names under which the server may be reached, beside addresses and localhost."""
    _running: int = field(default=0, init=False)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here; the server closes the connection
        exchange = GuardedExchange(scope, receive, send, self.limits)
        self._running += 1
        try:
            self._check(scope, exchange.headers)
            async with asyncio.timeout(self.limits.request_s):
                await self.app(scope, exchange.receive, exchange.send)
        except Refused as refusal:
            await exchange.refuse(refusal)
        except TimeoutError:
            await exchange.refuse(Refused(503, "the answer took too long; try again later", 10))
        finally:
            self._running -= 1

    def _check(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
        if self._running > self.limits.requests:
            raise Refused(503, "too many requests at the same time; try again in a moment", 1)
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._is_ours(host):
            # A page elsewhere whose name was made to lead here would send its own name.
            raise Refused(403, "this server does not go by that name; see --allow-host")
        if scope["method"] not in _METHODS:
            raise Refused(405, "the methods are GET and POST")
        if scope["method"] == "POST":
            _check_origin(headers, f"{scope['scheme']}://{host}")

    def _is_ours(self, host: str) -> bool:
        name = _without_port(host)
        if name == "localhost" or name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _check_origin(headers: dict[bytes, bytes], ours: str) -> None:
    """Refuse what a page of another origin sends. Programs that are no browsers send no origin."""
    origin = headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", b"same-origin")
    if site not in (b"same-origin", b"none") or (
        origin is not None and origin.decode("latin-1").lower() != ours
    ):
        raise Refused(403, "this was sent by a page of another origin")


class GuardedExchange:
    """One request and its response."""

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send, limits: ServerLimits
    ) -> None:
        self.headers = dict(scope["headers"])
        self._receive, self._send = receive, send
        upload = scope["path"] == UPLOAD_PATH
        self._most = limits.upload_bytes if upload else limits.body_bytes
        self._left, self._complete = self._most, False
        self._deadline = asyncio.get_running_loop().time() + limits.receive_s
        self._started = False
        self._close = False
        self._refusal: Refused | None = None

    async def receive(self) -> Message:
        """The next part of the request, if it is neither too much nor too late."""
        if self._complete:
            return await self._receive()  # waits until the client goes away
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self._most:
            raise self._stop(413, self._too_much)
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise self._stop(408, "the request did not arrive in time") from None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise self._stop(413, self._too_much)
            self._complete = not message.get("more_body", False)
        return message

    def _stop(self, status: int, message: str) -> Refused:
        """The refusal of a request whose rest is not read."""
        self._close, self._refusal = True, Refused(status, message)
        return self._refusal

    @property
    def _too_much(self) -> str:
        return f"a request like this may have at most {self._most >> 10} KiB"

    async def send(self, message: Message) -> None:
        """Send a part of the response, with the headers that all responses have."""
        if self._refusal is not None and not self._started:
            refusal, self._refusal = self._refusal, None
            raise refusal  # the framework made something else of it
        if message["type"] == "http.response.start":
            self._started = True
            given = {name for name, _ in message.get("headers", ())}
            more = [header for header in _HEADERS if header[0] not in given]
            message["headers"] = [*message.get("headers", ()), *more]
        await self._send(message)

    async def refuse(self, refusal: Refused) -> None:
        """Send an error instead of an answer, unless an answer has begun."""
        if self._started:
            return
        self._refusal = None
        body = json.dumps({"error": {"kind": "Refused", "message": refusal.message}}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if refusal.retry_s is not None:
            headers.append((b"retry-after", str(refusal.retry_s).encode()))
        if self._close:
            headers.append((b"connection", b"close"))  # the rest of the request is not read
        await self.send(
            {"type": "http.response.start", "status": refusal.status, "headers": headers}
        )
        await self._send({"type": "http.response.body", "body": body})
