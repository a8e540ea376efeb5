"""A training script as a target: its arguments, how it is run, and which option is its batch."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.frameworks.scripts import PATIENCE_S

_BATCH = re.compile(
    r"(per_(device|gpu)_|train(ing)?_|micro_|mini_|device_|local_)*"
    r"(batch|batch_?size|bs|b)(_per_(gpu|device)|_train)?"
)
"""The names that scripts give to the samples of a batch, without dashes and in small letters."""


@dataclass(frozen=True)
class ScriptOptions:
    """How a script is run: how many steps, where they end, how long to wait, its batch."""

    steps: int | None = None
    until: str | None = None
    patience: float = PATIENCE_S
    offline: bool = False
    batch_option: str | None = None
    """The option of the script that sets its batch. None to look for it."""
    loader: bool = False
    """Whether its data loader is timed apart."""
    quiet: bool = False
    """Whether what it prints is left out."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of `wavecast.run_script`."""
        names = ("steps", "until", "patience", "offline", "loader", "quiet")
        return {name: getattr(self, name) for name in names}

    def given(self) -> list[str]:
        """The options that differ from their defaults, as they are typed."""
        names = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return ["--" + name.replace("_", "-") for name in names]


NO_SCRIPT_OPTIONS = ScriptOptions()


@dataclass(frozen=True)
class Script:
    """A script with its arguments."""

    path: str
    """The file, or the name of a module."""
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    options: ScriptOptions = NO_SCRIPT_OPTIONS
    is_asked: bool = False
    """Whether its batch is not the user's own but asked for, so that its data may be too small."""

    @property
    def text(self) -> str:
        """The script as it is typed."""
        return shlex.join((*(("-m",) if self.is_module else ()), self.path, *self.arguments))

    @property
    def batch(self) -> int | None:
        """The batch that its arguments ask for. None if they do not say."""
        try:
            option = self._batch_option()
        except InvalidInput:
            return None
        value = self._value(option)
        return int(value) if value is not None and value.isdecimal() and int(value) else None

    def with_batch(self, batch: int) -> Script:
        """The script, asked for another batch by its own option.

        Raises:
            InvalidInput: no option of the script is known to be its batch.
        """
        option = self._batch_option()
        name, joined = option.rstrip("="), not option.startswith("-") or option.endswith("=")
        words = list(self.arguments)
        for index, word in enumerate(words):
            if word == name and not joined and index + 1 < len(words):
                words[index + 1] = str(batch)
                break
            if word.startswith(f"{name}="):
                words[index] = f"{name}={batch}"
                break
        else:
            words += [f"{name}={batch}"] if joined else [name, str(batch)]
        return replace(self, arguments=tuple(words), is_asked=True)

    def _value(self, option: str) -> str | None:
        """The value of an option among the arguments; the last one counts."""
        name, value = option.rstrip("="), None
        for word, following in pairwise((*self.arguments, None)):
            if word is not None and word.startswith(f"{name}="):
                value = word.partition("=")[2]
            elif word == name:
                value = following
        return value

    def _batch_option(self) -> str:
        """The option that sets the batch: the one that was named, or the only one there is."""
        if self.options.batch_option is not None:
            return self.options.batch_option
        words = (word.partition("=") for word in self.arguments)
        given = [name + sign for name, sign, _ in words if _is_batch(name, sign)]
        known = list(dict.fromkeys(given)) or list(self._declared())
        if len(known) == 1:
            return known[0]
        found = f"{len(known)} of its options may be: {', '.join(known)}" if known else "none is"
        raise InvalidInput(
            f"which option of {self.path} sets its batch is not known ({found}); name it, as in "
            "--batch-option --batch-size, or --batch-option train.batch= where the value follows "
            "an equals sign"
        )

    def _declared(self) -> Iterator[str]:
        """The options for a batch that the script's own file gives to an argument parser."""
        try:
            tree = ast.parse(Path(self.path).read_bytes())
        except (SyntaxError, ValueError, OSError):
            return  # running it will say what is wrong
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) == "add_argument":
                names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                options = [str(name) for name in names if _is_batch(str(name), "")]
                if options:
                    yield max(options, key=len)

    def may_have(self, option: str) -> bool:
        """Whether the script's own code may take an option: it names it, or cannot be read."""
        name, seen = option.lstrip("-").replace("-", "_"), set[Path]()
        module = Path(*self.path.split("."))
        first = (module.with_suffix(".py"), module / "__main__.py") if self.is_module else ()
        waiting = [path for path in first or (Path(self.path),) if path.is_file()]
        while waiting:
            path = waiting.pop()
            seen.add(path)
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, OSError):
                return True
            if name in _option_names(tree):
                return True
            folders = {Path(self.path).parent if not self.is_module else Path(), path.parent}
            waiting += [p for p in _local_files(tree, folders) if p not in seen]
        return not seen


def _option_names(tree: ast.Module) -> Iterator[str]:
    """The names that code may give to options: texts, arguments, fields and global variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (part.lstrip("-").replace("-", "_") for part in node.value.split("/"))
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _local_files(tree: ast.Module, folders: set[Path]) -> Iterator[Path]:
    """The files beside a script that its code imports, or names as text."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)}
    paths = {Path(*name.split(".")) for name in names if name}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = {Path(text) for text in texts if isinstance(text, str) and text.endswith(".py")}
    for folder in folders:
        for path in (
            {p.with_suffix(".py") for p in paths} | {p / "__init__.py" for p in paths} | named
        ):
            if (folder / path).is_file():
                yield folder / path


def _is_batch(name: str, sign: str) -> bool:
    """Whether an option's name, or the name before an equals sign, is that of a batch."""
    if not name.startswith("-") and not sign:
        return False
    last = name.lstrip("-").rpartition(".")[2]
    return _BATCH.fullmatch(last.replace("-", "_").lower()) is not None


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else ""


def script_of(text: str, options: ScriptOptions = NO_SCRIPT_OPTIONS) -> Script | None:
    """The script that a text names, with its arguments; None if it names none.

    A script is `train.py --lr 0.1`, or `-m package.train --lr 0.1`.

    Raises:
        InvalidInput: there is no such file, or a quotation mark is missing.
    """
    if text.endswith(".py") and Path(text).is_file():
        return Script(text, options=options)  # its name may have spaces
    if ".py" not in text and not text.startswith("-m"):
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"the script {text!r} cannot be read: {error}") from None
    is_module = words[:1] == ["-m"]
    path, *arguments = words[1:] if is_module else words
    if not is_module and (not path.endswith(".py") or ":" in path):
        return None
    if not is_module and not Path(path).is_file():
        raise InvalidInput(f"there is no script {path} (looked in {Path.cwd()})")
    return Script(path, tuple(arguments), is_module, options)
