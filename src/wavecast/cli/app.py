"""The application that commands register with, and the options they share."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console

import wavecast
from wavecast.cli import standard_output
from wavecast.cli.screen import print_text
from wavecast.errors import InvalidInput, WavecastError
from wavecast.frameworks.targets import FORMS
from wavecast.traces.file import SUFFIXES

_ORDER = (
    *("run", "predict", "memory", "fits", "max-batch", "profile", "extrapolate"),
    *("trace", "measure", "import", "devices", "calibrate", "suite"),
    *("runs", "design", "collect", "fit"),
)
"""The order of the commands in the help: the most used ones first."""


INCOMPLETE = 3
"""The exit code of a prediction in which too many ops could not be predicted."""
_ANSWERS_BY_CODE = ("fits",)
"""Commands whose exit code 1 is an answer: "no". Their errors have exit code 2."""


class _Group(typer.core.TyperGroup):
    """The group of all commands. It prints an error of Wavecast as one line and exits with 1."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of the help."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: (name not in _ORDER, [*_ORDER, name].index(name)))

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and turn its errors into exit codes."""
        with standard_output.given_back_at_end():
            try:
                return super().invoke(ctx)
            except WavecastError as error:
                line = " ".join(str(error).split())
                console = Console(stderr=True, soft_wrap=True, highlight=False)
                console.print(f"error: {line}", markup=False, style="red")
                raise typer.Exit(_error_code(ctx)) from error
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            except Exception as error:
                if _error_code(ctx) == 1 or _is_typers(error):
                    raise
                traceback.print_exc()  # Python would exit with 1, which means "no" here
                raise typer.Exit(_error_code(ctx)) from error


def _error_code(ctx: Any) -> int:
    """The exit code of an error in a command."""
    return 2 if ctx.invoked_subcommand in _ANSWERS_BY_CODE else 1


def _is_typers(error: Exception) -> bool:
    """Whether typer itself turns an error into an exit code."""
    return isinstance(error, typer.Abort | OSError) or hasattr(error, "exit_code")


app = typer.Typer(
    name="wavecast",
    cls=_Group,
    help="Predict time, memory and cost of training on GPUs you do not have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help=f"The training step: {FORMS}.")
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", "-b", help="The number of samples in a batch.")
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", "-p", help="The precision: fp32, tf32, bf16 or fp16.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Save the trace as FILE.json.gz or FILE.trace."),
]


def main() -> None:
    """Run the command line."""
    standard_output.own_process()
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print_text(f"wavecast {wavecast.__version__}")
        raise typer.Exit


def refuse_unwritable(out: Path) -> None:
    """Refuse a bad path for a trace at once, before tracing or measuring takes its time."""
    if not out.name.endswith(SUFFIXES):
        raise InvalidInput(f"a trace is saved as FILE.json.gz, not {out} (FILE.trace works, too)")
    if out.is_dir():
        raise InvalidInput(f"cannot write {out}: it is a directory; name a file in it")
    if not out.parent.is_dir():
        raise InvalidInput(f"cannot write {out}: there is no directory {out.parent}; make it first")
