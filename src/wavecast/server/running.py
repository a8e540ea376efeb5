"""The server as a process: it listens until it is stopped."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from wavecast.errors import InvalidInput
from wavecast.server.app import make_app
from wavecast.server.guard import HEADERS, ServerLimits
from wavecast.server.service import PredictionService

_HEADER_S = 20.0
"""The longest that a connection waits for a request with all of its headers."""
_TAKEN_S = 300.0
"""The longest that a client takes no more of its answer."""


class PromptProtocol(H11Protocol):
    """HTTP in which no connection waits for its client for ever.

    The headers of each request, not only of the first, arrive in time, and each answer is taken in
    time. When all places are in use, those of idle connections are given to new ones.
    """

    _waiting_since = 0.0
    _late: asyncio.TimerHandle | None = None
    """What happens if the client does not send, or take the last of an answer, in time."""
    _untaken: asyncio.TimerHandle | None = None
    """What happens if the client takes no more of an answer."""

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request, in the place of an idle connection if there is no other."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) >= (self.limit_concurrency or math.inf):
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        for waiting in filter(None, (self._late, self._untaken)):
            waiting.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait until the client takes more of its answer."""
        super().pause_writing()
        self._untaken = self.loop.call_later(_TAKEN_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Write the rest of an answer."""
        super().resume_writing()
        if self._untaken is not None:
            self._untaken.cancel()

    @property
    def awaits_request(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        """Close the connection that has waited longest for a request, else for the rest of one."""
        others = [other for other in self.connections if isinstance(other, PromptProtocol)]
        others.remove(self)
        idle = [other for other in others if other.awaits_request]
        if waiting := idle or [other for other in others if other.cycle.more_body]:
            longest = min(waiting, key=lambda other: other._waiting_since)
            self.connections.discard(longest)
            longest.transport.abort()

    def _await_request(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._waiting_since = self.loop.time()
        self._late = self.loop.call_later(_HEADER_S, self._close_without_request, self.cycle)

    def _close_without_request(self, last: Any) -> None:
        """Close the connection, unless a request came after the last one."""
        if self.cycle is last:
            self.transport.close()  # what the client has not taken yet is still sent
            self._late = self.loop.call_later(_TAKEN_S, self.transport.abort)


class TellingServer(uvicorn.Server):
    """A server that tells when it can be reached."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then tell."""
        await super().startup(sockets)
        self._listening()


def is_loopback(host: str) -> bool:
    """Whether an address reaches only this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run_server(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    names: frozenset[str] = frozenset(),
    limits: ServerLimits | None = None,
    listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page and its API until Ctrl-C.

    Args:
        folder: where results and uploaded files are kept.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        names: host names under which the server may be reached, beside addresses and localhost.
        limits: what the server takes on.
        listening: called with the URL of the page once it can be opened.

    Raises:
        InvalidInput: the address cannot be listened on, or a name is none.
        StoreUnavailable: the folder cannot be written.
    """
    limits = limits or ServerLimits()
    if wrong := [name for name in names if "*" in name.removeprefix("*.")]:
        raise InvalidInput(f"--allow-host is a name or, for all below it, *.NAME, not {wrong[0]}")
    with _bound(host, port) as sock:
        service = PredictionService(folder, limits)
        config = server_config(make_app(service, limits, names), limits)
        place = f"[{host}]" if ":" in host else host
        url = f"http://{place}:{sock.getsockname()[1]}"
        server = TellingServer(config, lambda: listening(url))
        with suppress(KeyboardInterrupt):  # the usual end of a server, after it has shut down
            asyncio.run(server.serve(sockets=[sock]))


def server_config(app: FastAPI, limits: ServerLimits) -> uvicorn.Config:
    """The settings of uvicorn: the headers of all responses, and the bounds of connections."""
    return uvicorn.Config(
        app,
        http=PromptProtocol,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=HEADERS,
        limit_concurrency=limits.connections,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=16 << 10,
    )


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {reason}; choose another --port or --host"
        ) from None
    return sock
