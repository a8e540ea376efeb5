"""A copy-on-write view of the file system: what a script writes goes to a scratch folder.

Reading looks into the scratch folder first, then at the real file. Removing a real file hides it.
Nothing outside of the scratch folder changes.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import user_line

LARGEST_COPY = 4 << 30
"""Files of up to this many bytes are copied when a script opens them for writing."""
_NOT_ON_DISK = ("/dev", "/proc", "/sys")


class Overlay:
    """The view. Its methods take the paths that the script uses, and return real ones."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = os.path.realpath(scratch)
        self.temporary = os.path.join(self.scratch, "temporary")
        self._files = os.path.join(self.scratch, "files")
        self._hidden: set[str] = set()
        self._links: dict[str, str] = {}
        """Links to folders that the script made. Real ones would lead out of the scratch folder."""
        self._folder: str | None = None
        """The current folder, if it exists in the scratch folder only."""
        self._thread = threading.local()
        for folder in (self._files, self.temporary):
            os.makedirs(folder, exist_ok=True)

    @property
    def busy(self) -> bool:
        """Whether the overlay itself is using the file system."""
        return getattr(self._thread, "busy", False)

    @contextmanager
    def directly(self) -> Iterator[None]:
        """Use the real file system inside the block."""
        before, self._thread.busy = self.busy, True
        try:
            yield
        finally:
            self._thread.busy = before

    def absolute(self, path: str) -> str:
        """The absolute path, with the links of its folder followed."""
        joined = os.path.join(self.current_folder(), path)
        folder, name = os.path.split(os.path.normpath(joined))
        folder = os.path.realpath(folder)
        for link, target in self._links.items():
            if folder == link or folder.startswith(f"{link}/"):
                folder = target + folder.removeprefix(link)
        return os.path.join(folder, name)

    def covers(self, path: str) -> bool:
        """Whether an absolute path is redirected. Scratch files and devices are not."""
        return not any(
            path == root or path.startswith(f"{root}/") for root in (self.scratch, *_NOT_ON_DISK)
        )

    def current_folder(self) -> str:
        """The current folder, as the script sees it."""
        return self._folder or os.getcwd()

    def enter_folder(self, path: str) -> None:
        """Change the current folder."""
        path = self._links.get(path, path)
        if os.path.isdir(path) and not self._is_hidden(path):
            os.chdir(path)
            self._folder = None
        elif os.path.isdir(self.to_read(path)):
            self._folder = path
        else:
            raise _error(errno.ENOENT, path)

    def to_read(self, path: str) -> str:
        """Where the contents of a path are. A path that does not exist stays one."""
        path = self._links.get(path, path)
        upper = self._upper(path)
        return upper if os.path.lexists(upper) or self._is_hidden(path) else path

    def to_write(self, path: str, *, keep: bool, exclusive: bool = False) -> str:
        """The scratch file to write to instead of a path.

        Args:
            keep: whether the file keeps its present contents.
            exclusive: whether it must not exist yet.
        """
        real, upper = self.to_read(path), self._upper(path)
        if exclusive and os.path.lexists(real):
            raise _error(errno.EEXIST, path)
        if os.path.isdir(real):
            raise _error(errno.EISDIR, path)
        self._make_folder_of(path)
        if keep and real != upper and os.path.exists(real):
            _copy(real, upper)
        return upper

    def link(self, source: str, path: str) -> None:
        """Make a link. A file is copied instead; a folder keeps one content under both names."""
        if path in self._links or os.path.lexists(self.to_read(path)):
            raise _error(errno.EEXIST, path)
        origin = self.absolute(os.path.join(os.path.dirname(path), source))
        if os.path.isdir(self.to_read(origin)):
            self._links[path] = origin
        elif os.path.exists(self.to_read(origin)):
            _copy(self.to_read(origin), self.to_write(path, keep=False))
        else:
            os.symlink(source, self.to_write(path, keep=False))

    def make_folder(self, path: str) -> None:
        """Make a folder."""
        if os.path.lexists(self.to_read(path)):
            raise _error(errno.EEXIST, path)
        self._make_folder_of(path)
        os.mkdir(self._upper(path))

    def remove(self, path: str) -> None:
        """Remove a file, or a link."""
        if self._links.pop(path, None) is not None:
            return
        real = self.to_read(path)
        if not os.path.lexists(real):
            raise _error(errno.ENOENT, path)
        if os.path.isdir(real) and not os.path.islink(real):
            raise _error(errno.EISDIR, path)
        self._drop(path)

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        if not os.path.isdir(self.to_read(path)):
            raise _error(errno.ENOENT, path)
        if self.names(path):
            raise _error(errno.ENOTEMPTY, path)
        self._drop(path)

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all that is in it."""
        if not os.path.isdir(self.to_read(path)):
            raise _error(errno.ENOENT, path)
        self._drop(path)

    def rename(self, source: str, target: str) -> None:
        """Give a file or a folder another name."""
        real = self.to_read(source) if self.covers(source) else source
        if not os.path.lexists(real):
            raise _error(errno.ENOENT, source)
        if not self.covers(target):
            self._copy_tree(source, target)
        elif os.path.isdir(real):
            if not os.path.isdir(self.to_read(target)):
                self.make_folder(target)
            self._copy_tree(source, self._upper(target))
        else:
            _copy(real, self.to_write(target, keep=False))
        if self.covers(source):
            self._drop(source)
        else:
            _remove(source)

    def names(self, path: str) -> list[str]:
        """The names of the files and folders in a folder."""
        path = self._links.get(path, path)
        upper = self._upper(path)
        if not os.path.isdir(self.to_read(path)):
            return os.listdir(self.to_read(path))  # raises the error that the script expects
        names = os.listdir(upper) if os.path.isdir(upper) else []
        if not self._is_hidden(path) and os.path.isdir(path):
            hidden = {os.path.basename(p) for p in self._hidden if os.path.dirname(p) == path}
            names += [name for name in os.listdir(path) if name not in hidden]
        names += [os.path.basename(link) for link in self._links if os.path.dirname(link) == path]
        return list(dict.fromkeys(names))

    def is_mixed(self, path: str) -> bool:
        """Whether a folder differs from the real one of this path."""
        return os.path.lexists(self._upper(path)) or any(
            p == path or os.path.dirname(p) == path or path.startswith(f"{p}/")
            for p in (*self._hidden, *self._links)
        )

    def shown(self, real: str) -> str:
        """The path that the script knows for a real one."""
        return real.removeprefix(self._files) if real.startswith(f"{self._files}/") else real

    def _upper(self, path: str) -> str:
        return self._files + path

    def _is_hidden(self, path: str) -> bool:
        return bool(self._hidden) and any(
            path == hidden or path.startswith(f"{hidden}/") for hidden in self._hidden
        )

    def _make_folder_of(self, path: str) -> None:
        folder = os.path.dirname(path)
        if not os.path.isdir(self.to_read(folder)):
            raise _error(errno.ENOENT, path)
        os.makedirs(self._upper(folder), exist_ok=True)

    def _drop(self, path: str) -> None:
        _remove(self._upper(path))
        if os.path.lexists(path):
            self._hidden.add(path)

    def _copy_tree(self, source: str, target: str) -> None:
        """Copy a file or folder, as the script sees it, to a real path."""
        real = self.to_read(source) if self.covers(source) else source
        if not os.path.isdir(real):
            _copy(real, target)
            return
        os.makedirs(target, exist_ok=True)
        for name in self.names(source) if self.covers(source) else os.listdir(source):
            self._copy_tree(os.path.join(source, name), os.path.join(target, name))


def _copy(source: str, target: str) -> None:
    size = os.stat(source).st_size
    if size > LARGEST_COPY:
        raise CaptureError(
            f"{source}, of {size >> 30} GiB, is opened for writing at {user_line()}; it would have "
            "to be copied, since nothing of yours is changed; open it for reading (mode='r')"
        )
    shutil.copyfile(source, target)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
