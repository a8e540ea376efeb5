"""python -m wavecast, and the command `wavecast`.

Importing the commands takes a while, so Ctrl-C is handled before anything else is imported.
"""

import os
import signal
import sys
from typing import Any, NoReturn


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    try:
        from wavecast.cli import main as run
    except ModuleNotFoundError as error:
        from wavecast.errors import missing_requirement

        if (message := missing_requirement(error)) is None:
            raise
        sys.exit(f"error: {message}")
    run()


def _stop(signal_number: int, frame: Any) -> NoReturn:
    """End the process at once. Nothing has begun yet, and C code could hide an exception."""
    if sys.stderr is not None:
        os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
