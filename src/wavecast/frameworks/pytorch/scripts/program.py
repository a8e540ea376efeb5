"""A Python script, run as `python train.py ARGS` or `python -m package.train ARGS` would."""

from __future__ import annotations

import ast
import atexit
import importlib.machinery
import importlib.util
import logging
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.recording.user_lines import (
    count_as_users,
    is_ours,
    is_users,
)
from wavecast.frameworks.replacements import environment_kept, replacing
from wavecast.frameworks.target_files import imports_of

_DISPATCH = str(Path(__file__).parents[1] / "capture" / "placement.py")

# Loggers that would talk to a server do nothing, and plots open no window.
_ENVIRONMENT = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MPLBACKEND": "Agg",
}


@dataclass(frozen=True)
class Program:
    """A script or module with its arguments."""

    name: str
    """The path of a file, or the name of a module."""
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def shown(self) -> str:
        """The script as the user named it."""
        return f"-m {self.name}" if self.is_module else self.name

    def check(self, steps: int | None) -> None:
        """Refuse a script that does not exist, and a number of steps that it cannot have."""
        if steps is not None and steps < 1:
            raise InvalidInput(f"steps is {steps}; it must be at least 1")
        path = Path(self.name)
        if not self.is_module and not path.is_file():
            file, _, function = self.name.rpartition(":")
            if Path(file).is_file() and function.isidentifier():
                raise InvalidInput(
                    f"{self.name} names a function, and a script is run as a whole; give {file}, "
                    f"or predict what the function makes: wavecast predict {self.name}"
                )
            folder = " (it is a folder)" if path.is_dir() else f" (looked in {Path.cwd()})"
            raise InvalidInput(f"there is no script {self.name}{folder}")

    def is_jax(self) -> bool:
        """Whether the script's own file imports JAX or a library on it, and not torch."""
        try:
            with _surroundings(self):
                return imports_of(self._file()).jax
        except (OSError, InvalidInput):
            return False

    def mentions(self, name: str) -> bool:
        """Whether the script has a function of torch's or of a module's with a name in it."""
        try:
            with _surroundings(self):  # which find the modules beside the script
                path = Path(self._file())
            tree = ast.parse(path.read_bytes())
        except (OSError, InvalidInput, SyntaxError, ValueError):
            return False
        uses = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        return any(node.attr == name and ast.unparse(node.value) != "re" for node in uses)

    def run(self) -> None:
        """Run the script in this process, under the name `__main__`."""
        with _surroundings(self), _own_exit_functions():
            count_as_users(self._file())
            if self.is_module:
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(self.name, run_name="__main__")

    def _file(self) -> str:
        """The file that runs under the name `__main__`."""
        if not self.is_module:
            return self.name
        spec = _find_module(self.name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _find_module(f"{self.name}.__main__")
            if spec is None:
                raise InvalidInput(f"{self.name} is a package without __main__.py; name a module")
        if spec is None or spec.origin is None:
            raise InvalidInput(
                f"there is no module {self.name} (looked in {Path.cwd()} and in "
                "the installed packages)"
            )
        return spec.origin


def _find_module(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where a module is, as `python -m` finds it; None if there is none."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            return None
        raise  # a package that it lies in imports something that is missing


@contextmanager
def _surroundings(program: Program) -> Iterator[None]:
    """The arguments, paths and environment of a script, restored after the block."""
    first = str(Path.cwd() if program.is_module else Path(program.name).resolve().parent)
    with ExitStack() as stack:
        replace = stack.enter_context(replacing())
        replace(sys, argv=[program.name, *program.arguments], path=[first, *sys.path])
        replace(sys, dont_write_bytecode=True)
        # A script may set once how processes are started; another run of it sets it again.
        replace(multiprocessing.context._default_context, _actual_context=None)
        if sys.modules.get("torch"):
            from wavecast.frameworks.pytorch.scripts.torch_processes import kept_in_this_process

            stack.enter_context(kept_in_this_process())
        stack.enter_context(environment_kept())
        os.environ |= _ENVIRONMENT
        stack.callback(_restore_logging, logging.root.handlers[:], logging.root.level)
        # A user's module may hold fake tensors or the answers of the pretended machine.
        stack.callback(_forget_user_modules, set(sys.modules))
        yield


def _restore_logging(handlers: list[logging.Handler], level: int) -> None:
    for handler in logging.root.handlers[:]:
        if handler not in handlers:
            logging.root.removeHandler(handler)
            handler.close()
    logging.root.setLevel(level)


def _forget_user_modules(before: set[str]) -> None:
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and is_users(file):
            del sys.modules[name]


@contextmanager
def _own_exit_functions() -> Iterator[None]:
    """Call the functions that the script registers for the end of the program after the block."""
    register = atexit.register
    functions: list[Callable[[], Any]] = []

    def registered(function: Any, *args: Any, **kwargs: Any) -> Any:
        code = getattr(function, "__code__", None)
        if code is None or not is_users(code.co_filename):
            return register(function, *args, **kwargs)
        functions.append(lambda: function(*args, **kwargs))
        return function

    atexit.register = registered  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register = register
        for function in reversed(functions):
            function()


def own_traceback(error: BaseException) -> list[str]:
    """The lines of an error's traceback as the script alone would print them."""
    shown = traceback.TracebackException.from_exception(error)
    frames = list(shown.stack)
    own = [i for i, frame in enumerate(frames) if is_users(frame.filename)]
    kept = []
    for frame in frames[own[0] if own else 0 :]:
        if frame.filename == _DISPATCH:
            break  # torch's fake tensors follow
        if not is_ours(frame.filename):
            kept.append(frame)
    shown.stack = traceback.StackSummary.from_list(kept)
    return list(shown.format())
