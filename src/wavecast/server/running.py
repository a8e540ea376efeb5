"""The server as a process: it listens until it is stopped."""

from __future__ import annotations

import asyncio
import ipaddress
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
from wavecast.server.guard import HEADERS
from wavecast.server.limits import ServerLimits
from wavecast.server.service import PredictionService

_HEADER_S = 20.0
"""The longest that the first line and the headers of a request take to arrive."""


class PromptProtocol(H11Protocol):
    """HTTP in which a connection is closed if its first request does not begin in time."""

    def connection_made(self, transport: Any) -> None:
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self.loop.call_later(_HEADER_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


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
        url = f"http://{_in_url(host)}:{sock.getsockname()[1]}"
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


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
