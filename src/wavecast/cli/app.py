"""The application that commands register with, and the options they share."""

from __future__ import annotations

import io
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import typer.core
import typer.main

import wavecast
from wavecast.cli.commands import COMMANDS, HIDDEN, MODULES
from wavecast.cli.output import standard_output
from wavecast.cli.output.screen import (
    name_command,
    print_error,
    print_text,
    print_traceback,
    show_warnings_safely,
    tell,
)
from wavecast.errors import WavecastError, missing_requirement
from wavecast.frameworks.stages import last

_Function = TypeVar("_Function", bound=Callable[..., Any])
_INTERRUPTED = 130
"""The exit code after Ctrl-C, as in a shell."""
INCOMPLETE = 3
"""The exit code of a prediction in which too many ops could not be predicted."""
_ANSWERS_BY_CODE = ("fits", "check", "plan", "capacity")
"""Commands whose exit code 1 is an answer: "no". Their errors have exit code 2."""


class _Group(typer.core.TyperGroup):
    """The group of all commands. It prints an error of Wavecast as one line and exits with 1."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of the help."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help, by what people want to do; none is loaded."""
        longest = max(len(name) for names in COMMANDS.values() for name in names)
        limit = formatter.width - 6 - longest
        for title, lines in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(longest), _Command(name, help=line).get_short_help_str(limit))
                        for name, line in lines.items()
                    ]
                )

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """Find a command. A group may print by itself, so it counts as one until another runs."""
        resolved = super().resolve_command(ctx, args)
        name_command(str(resolved[0]))
        return resolved

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and turn its errors into exit codes."""
        with standard_output.given_back_at_end():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as error:
                tell(_interruption(error))
                raise typer.Exit(_INTERRUPTED) from None
            except Exception as error:
                if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):  # typer's own
                    raise
                if _was_interrupted(error):
                    tell(_interruption(error))
                    raise typer.Exit(_INTERRUPTED) from error
                if not _explained(error):
                    if _error_code(ctx) == 1:
                        raise
                    print_traceback(error)  # Python would exit with 1, which means "no" here
                raise typer.Exit(_error_code(ctx)) from error

    def main(  # type: ignore[override]
        self, args: Any = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run the command line, and print what typer has to say without control characters."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except (KeyboardInterrupt, typer.Abort):
            tell("interrupted")
            sys.exit(_INTERRUPTED)
        except OSError as error:  # typer could not print its help
            print_error(f"cannot write the results: {error.strerror or error}")
            sys.exit(1)
        except Exception as error:
            if not hasattr(error, "show") or not hasattr(error, "exit_code"):
                raise
            message = io.StringIO()
            error.show(message)
            tell(message.getvalue().rstrip("\n"))
            sys.exit(error.exit_code)
        finally:
            standard_output.abandon(sys.stdout)
        sys.exit(code if isinstance(code, int) else 0)


def _error_code(ctx: Any) -> int:
    """The exit code of an error in a command."""
    return 2 if ctx.invoked_subcommand in _ANSWERS_BY_CODE else 1


def _explained(error: Exception) -> bool:
    """Whether one line says all about an error; it is then printed."""
    if isinstance(error, standard_output.UnwrittenResults):
        if not error.nobody_reads:
            print_error(str(error))
    elif isinstance(error, OSError) and error.errno is not None:
        print_error(str(error))  # the machine's fault: a full disk, a file that went away
    elif isinstance(error, WavecastError):
        print_error(str(error))
    elif (message := missing_requirement(error)) is not None:
        print_error(message)
    else:
        return False
    return True


def _interruption(error: BaseException) -> str:
    """What was interrupted, as far as it is known."""
    if isinstance(error, KeyboardInterrupt) and str(error):
        return f"interrupted: {error}"
    return f"interrupted while {last()}" if last() else "interrupted"


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: C code turns it into an ImportError, for example."""
    return error is not None and (
        isinstance(error, KeyboardInterrupt)
        or _was_interrupted(error.__cause__ or error.__context__)
    )


class _Command(typer.core.TyperCommand):
    """A command whose results alone reach the standard output."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. A flag of typer's takes no value, so "--compile both" is joined."""
        joined: list[str] = []
        for arg in _with_arguments(args) if ctx.allow_interspersed_args else args:
            if arg == "--compile=both" or (arg == "both" and joined[-1:] == ["--compile"]):
                joined[len(joined) - (arg == "both") :] = ["--compile-both"]
            else:
                joined.append(arg)
        try:
            return list(super().parse_args(ctx, joined))
        except Exception as error:
            is_unknown = type(error).__name__ == "NoSuchOption"
            if is_unknown and ctx.allow_interspersed_args and any(map(_is_script, args)):
                message = str(getattr(error, "message", ""))
                error.message = f"{message}; the script's own follow a --, after all others"  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command. What others print from here on goes to the standard error."""
        standard_output.keep_for_results()
        name_command(_name(ctx))
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options into the help, under the headings of their groups."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            title = getattr(param, "rich_help_panel", None) or usual
            sections.setdefault(title, []).append(record)
        # What every command has comes first, its groups of options last.
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _with_arguments(args: list[str]) -> list[str]:
    """The arguments of a command; what follows a -- belongs to the scripts that it names."""
    if "--" not in args:
        return args
    place = args.index("--")
    own, script = args[:place], args[place + 1 :]
    if script[:1] == ["-m"]:
        return [*own, "--", shlex.join(script)]
    if not any(map(_is_script, own)):
        return args
    return [shlex.join((arg, *script)) if _is_script(arg) else arg for arg in own]


def _is_script(arg: str) -> bool:
    from wavecast.frameworks.target_files import is_python

    return is_python(arg) and not arg.startswith("-")


def _name(ctx: Any) -> str:
    """The name of a command as it is typed, without that of the program."""
    above = _name(ctx.parent) if ctx.parent is not None else ""
    return f"{above} {ctx.info_name}".strip() if ctx.parent is not None else ""


class _Commands(Mapping[str, Any]):
    """The commands by their names; one is loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*(name for lines in COMMANDS.values() for name in lines), *HIDDEN))

    def __len__(self) -> int:
        return len(MODULES)


@cache
def _command(name: str) -> Any:
    """A command, from the module that defines it."""
    import_module(MODULES[name])
    alone = typer.Typer(rich_markup_mode=None)
    alone.registered_commands = [
        command
        for command in app.registered_commands
        if name in (command.name, getattr(command.callback, "__name__", None))
    ]
    alone.registered_groups = [
        group
        for group in app.registered_groups
        if group.typer_instance is not None and name in (group.name, group.typer_instance.info.name)
    ]
    return typer.main.get_group(alone).commands[name]


class Commands(typer.Typer):
    """A group of commands: all of them keep the standard output for their results."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        """A decorator that registers a command."""
        return super().command(name, **{"cls": _Command, **options})


app = Commands(
    name="wavecast",
    cls=_Group,
    help="Predict time, memory and cost of training on GPUs you do not have.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Save the trace as FILE.json.gz or FILE.trace."),
]


def main() -> None:
    """Run the command line."""
    standard_output.own_process()
    show_warnings_safely()
    if _handles_signals() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # no background job of a shell
    try:
        app()
    except Exception as error:
        _end_quietly()
        print_traceback(error)
        sys.exit(1)
    finally:
        _end_quietly()


def _end_quietly() -> None:
    """From here on, Ctrl-C ends the process at once: nothing is left that it could spoil."""
    if _handles_signals() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _handles_signals() -> bool:
    """Whether this is the thread that may say what a signal does."""
    return threading.current_thread() is threading.main_thread()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print_text(f"wavecast {wavecast.__version__}")
        raise typer.Exit
