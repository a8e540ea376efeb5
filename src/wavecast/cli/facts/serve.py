"""`wavecast serve`: the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavecast.cli.app import app
from wavecast.cli.output.screen import tell, warn
from wavecast.errors import InvalidInput, needing_extra
from wavecast.files import data_folder


@app.command()
def serve(
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; only this machine by default.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="The port to listen on; 0 for any that is free.")
    ] = 8080,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where results and uploads are kept; yours by default."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A host name under which the page is opened; repeat."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Processes that predict; one for each core, up to 4."),
    ] = None,
) -> None:
    """Serve a web page that predicts models of the suite and uploaded traces.

    \b
    wavecast serve
    wavecast serve --port 0 --folder /tmp/wavecast

    The server runs no code of yours. There is no log-in: whoever reaches the address can use it, so
    it listens on this machine only, unless --host says otherwise.
    """
    with needing_extra("the web page"):
        from wavecast.server.guard import ServerLimits
        from wavecast.server.running import is_loopback, run_server
    if not 0 <= port <= 65535:
        raise InvalidInput(f"--port is a number from 0 to 65535, not {port}")
    if workers is not None and not 1 <= workers <= 64:
        raise InvalidInput(f"--workers is a number from 1 to 64, not {workers}")
    if not is_loopback(host):
        warn([f"there is no log-in: everybody who reaches {host} can use this server"])
    limits = ServerLimits() if workers is None else ServerLimits(workers=workers)
    run_server(
        folder or data_folder() / "server",
        host=host,
        port=port,
        names=frozenset(name.lower() for name in allow_host or ()),
        limits=limits,
        listening=lambda url: tell(f"open {url} in a browser; Ctrl-C ends the server"),
    )
