"""Python's functions on files, redirected to an overlay while a script runs."""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import io
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from wavecast.frameworks.pytorch.scripts.overlay import Overlay
from wavecast.frameworks.replacements import replacing

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Functions of `os` that only look at the path that they are given first.
_READERS = (
    *("stat", "lstat", "access", "readlink", "statvfs", "pathconf", "listxattr", "getxattr"),
)
# Functions of `os` that change the file that they are given first, but not its name.
_CHANGERS = ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr")

# What Hugging Face's datasets read their cache with, in C++; Python's `open` has written it.
_OF_PYARROW = ("memory_map", "input_stream")


@contextmanager
def redirected(overlay: Overlay) -> Iterator[None]:
    """Let the block read the file system through an overlay, and write to the overlay only."""
    with ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        replace = stack.enter_context(replacing())
        functions = _Functions(overlay)
        replace(builtins, open=functions.open(builtins.open))
        replace(io, open=functions.open(io.open))
        replace(os, **functions.of_os())
        replace(shutil, rmtree=functions.remove_tree)
        replace(sqlite3, connect=functions.connect(sqlite3.connect))
        replace(tempfile, tempdir=overlay.temporary)

        def replace_readers(pyarrow: Any) -> None:
            for name in _OF_PYARROW:
                replace(pyarrow, **{name: functions.reader(getattr(pyarrow, name))})

        def replace_reader_of_torch(torch: Any) -> None:
            replace(torch, from_file=functions.reader(torch.from_file))

        stack.enter_context(after_import("pyarrow", replace_readers))
        stack.enter_context(after_import("torch", replace_reader_of_torch))
        yield


class _Functions:
    """The functions that replace Python's own."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def of_os(self) -> dict[str, Callable[..., Any]]:
        """The functions of the module `os` to replace, by name."""
        view = self._overlay
        places: dict[str, Callable[[str], str]] = dict.fromkeys(_READERS, view.to_read)
        places |= dict.fromkeys(_CHANGERS, lambda path: view.to_write(path, keep=True))
        functions = {
            name: self._at_place(getattr(os, name), place)
            for name, place in places.items()
            if hasattr(os, name)
        }
        # A folder keeps its time and permissions: nothing that a script reads depends on them.
        for name in ("chmod", "utime", "chown", "lchown", "setxattr"):
            if name in functions:
                functions[name] = self._unless_folder(functions[name])
        for name, act in {
            "mkdir": view.make_folder,
            "rmdir": view.remove_folder,
            "remove": view.remove,
            "unlink": view.remove,
            "listdir": view.names,
            "chdir": view.enter_folder,
        }.items():
            functions[name] = self._instead(getattr(os, name), act)
        functions["scandir"] = self._scandir(os.scandir)
        functions["open"] = self._os_open(os.open)
        for name in ("rename", "replace"):
            functions[name] = self._rename(getattr(os, name))
        functions["symlink"] = self._link(os.symlink, is_symbolic=True)
        functions["link"] = self._link(os.link, is_symbolic=False)
        functions["getcwd"] = self._getcwd(os.getcwd)
        return functions

    def open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`open`."""

        def act(place: str, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+"):
                keep, exclusive = "w" not in mode, "x" in mode
                chosen = self._overlay.to_write(place, keep=keep, exclusive=exclusive)
            else:
                chosen = self._overlay.to_read(place)
            return real(chosen if chosen != place else file, mode, *args, **kwargs)

        redirected = self._redirected(real, act)

        def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
            # An opener calls os.open, which is redirected itself.
            function = redirected if kwargs.get("opener") is None else real
            return function(file, *args, **kwargs)

        return opened

    def remove_tree(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """`shutil.rmtree`."""
        redirected_path = self._path(path)
        ignores = bool(args[0] if args else kwargs.get("ignore_errors"))
        try:
            with self._shown_errors():
                if redirected_path is None:
                    _remove_really(os.fspath(path))
                else:
                    self._overlay.remove_tree(redirected_path)
        except OSError:
            if not ignores and not kwargs.get("onerror") and not kwargs.get("onexc"):
                raise

    def connect(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`sqlite3.connect`."""
        redirected = self._at_place(real, lambda path: self._overlay.to_write(path, keep=True))

        def connected(database: Any, *args: Any, **kwargs: Any) -> Any:
            is_file = str(database) and not str(database).startswith((":memory:", "file:"))
            return (redirected if is_file else real)(database, *args, **kwargs)

        return connected

    def reader(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A function of a library in C++ that reads a file, if it is given a path."""
        redirected = self._at_place(real, self._overlay.to_read)

        def read(source: Any, *args: Any, **kwargs: Any) -> Any:
            is_path = isinstance(source, str | os.PathLike)
            return (redirected if is_path else real)(source, *args, **kwargs)

        return read

    def _path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path to redirect. None to leave a call as it is."""
        if self._overlay.busy or path is None or isinstance(path, int):
            return None
        with self._overlay.directly():
            text = os.fsdecode(path)
            if dir_fd is not None and not os.path.isabs(text):
                folder = self._overlay.shown(os.readlink(f"/proc/self/fd/{dir_fd}"))
                text = os.path.join(folder, text)
            absolute = self._overlay.absolute(text)
        return absolute if self._overlay.covers(absolute) else None

    @contextmanager
    def _shown_errors(self) -> Iterator[None]:
        """Run the block on the real file system; its errors name the paths of the script."""
        try:
            with self._overlay.directly():
                yield
        except OSError as error:
            if isinstance(error.filename, str):
                error.filename = self._overlay.shown(error.filename)
            raise

    def _redirected(
        self, real: Callable[..., Any], act: Callable[..., Any], default: Any = None
    ) -> Callable[..., Any]:
        """A function of a path. Where it is redirected, `act` gets its place in front of it."""

        def called(
            path: Any = default, *args: Any, dir_fd: int | None = None, **kwargs: Any
        ) -> Any:
            if (place := self._path(path, dir_fd)) is None:
                kwargs |= {} if dir_fd is None else {"dir_fd": dir_fd}
                return real(path, *args, **kwargs)
            with self._shown_errors():
                return act(place, path, *args, **kwargs)

        return called

    def _at_place(
        self, real: Callable[..., Any], place_of: Callable[[str], str]
    ) -> Callable[..., Any]:
        """The function on another file."""

        def act(place: str, path: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = place_of(place)
            return real(chosen if chosen != place else path, *args, **kwargs)

        return self._redirected(real, act)

    def _instead(self, real: Callable[..., Any], act: Callable[[str], Any]) -> Callable[..., Any]:
        """What the overlay does instead of the function."""
        default = "." if real is os.listdir else None
        return self._redirected(real, lambda place, *_, **__: act(place), default)

    def _unless_folder(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *args: Any, **kwargs: Any) -> Any:
            is_folder = self._path(path) is not None and os.path.isdir(path)
            return None if is_folder else change(path, *args, **kwargs)

        return called

    def _os_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(place: str, _path: Any, flags: int, mode: int = 0o777) -> Any:
            if flags & _WRITES:
                exclusive, keep = bool(flags & os.O_EXCL), not flags & os.O_TRUNC
                chosen = self._overlay.to_write(place, keep=keep, exclusive=exclusive)
            else:
                chosen = self._overlay.to_read(place)
            return real(chosen, flags, mode)

        return self._redirected(real, act)

    def _rename(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def renamed(
            source: Any, target: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None
        ) -> None:
            ends = self._path(source, src_dir_fd), self._path(target, dst_dir_fd)
            if ends == (None, None):
                real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                return
            with self._shown_errors():
                self._overlay.rename(
                    ends[0] or os.path.abspath(source), ends[1] or os.path.abspath(target)
                )

        return renamed

    def _link(self, real: Callable[..., Any], is_symbolic: bool) -> Callable[..., Any]:
        def linked(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            if (covered := self._path(target)) is None:
                real(source, target, *args, **kwargs)
                return
            with self._shown_errors():
                origin = os.fsdecode(source) if is_symbolic else os.path.abspath(source)
                self._overlay.link(origin, covered)

        return linked

    def _scandir(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(place: str, path: Any) -> Any:
            if not self._overlay.is_mixed(place):
                return real(path)
            names = self._overlay.names(place)
            paths = (os.path.join(os.fspath(path), name) for name in names)
            return _Entries([_ScannedEntry(*pair) for pair in zip(names, paths, strict=True)])

        return self._redirected(real, act, default=".")

    def _getcwd(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def getcwd() -> str:
            if self._overlay.busy:
                return str(real())
            with self._overlay.directly():
                return self._overlay.current_folder()

        return getcwd


class _ScannedEntry:
    """`os.DirEntry` for a file or folder of the overlay."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        """Whether it is a junction, which only Windows has."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its status."""
        return os.stat(self.path) if follow_symlinks else os.lstat(self.path)

    def inode(self) -> int:
        """Its inode."""
        return self.stat(follow_symlinks=False).st_ino


class _Entries:
    """The iterator that `os.scandir` returns."""

    def __init__(self, entries: list[_ScannedEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _ScannedEntry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Close the iterator, which holds nothing open."""


_remove_really = shutil.rmtree


# Modules that a script imports later, and what is to happen then.


@contextmanager
def after_import(name: str, then: Callable[[Any], None]) -> Iterator[None]:
    """Call a function with a module: at once if it is imported, or when the block imports it."""
    if (module := sys.modules.get(name)) is not None:  # None for one that cannot be imported
        then(module)
    finder = _AfterImport(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module, and calls a function with it once it has run."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The spec of the module. None for others."""
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
