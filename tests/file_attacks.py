"""Ways in which a script may change files: each is a few lines of Python.

The lines find a folder of their own as `folder`, a Path. In it are `file.txt`, `other.txt` and
`inner/deep.txt`, and an empty folder `empty`; `file` is the path of the first.
"""

from __future__ import annotations

_PYTHON = {
    "open to write": "open(file, 'w').write('x')",
    "open to append": "open(file, 'a').write('x')",
    "open to update": "open(file, 'r+').write('x')",
    "open to create": "open(folder / 'new', 'x').close()",
    "write_text": "file.write_text('x')",
    "os.open": "os.write(os.open(file, os.O_WRONLY), b'x')",
    "os.open by a folder": "os.open('file.txt', os.O_TRUNC | 1, dir_fd=os.open(folder, 0))",
    "truncated by a reader": "os.open(file, os.O_RDONLY | os.O_TRUNC)",
    "os.remove": "os.remove(file)",
    "unlink": "file.unlink()",
    "os.rename": "os.rename(file, folder / 'moved')",
    "os.replace": "os.replace(folder / 'other.txt', file)",
    "os.truncate": "os.truncate(file, 1)",
    "os.mkdir": "os.mkdir(folder / 'made')",
    "os.makedirs": "os.makedirs(folder / 'made' / 'deep')",
    "os.rmdir": "os.rmdir(folder / 'empty')",
    "os.symlink": "os.symlink(file, folder / 'link')",
    "os.link": "os.link(file, folder / 'link')",
    "os.chmod": "os.chmod(file, 0o777)",
    "os.utime": "os.utime(file, (1, 1))",
    "os.mkfifo": "os.mkfifo(folder / 'pipe')",
    "os.setxattr": "os.setxattr(file, 'user.mine', b'x')",
    "shutil.rmtree": "shutil.rmtree(folder / 'inner')",
    "shutil.move": "shutil.move(file, folder / 'inner')",
    "shutil.copyfile": "shutil.copyfile(folder / 'other.txt', file)",
    "tempfile": "tempfile.NamedTemporaryFile(dir=folder, delete=False)",
    "logging": "import logging; logging.FileHandler(file).emit(logging.makeLogRecord({}))",
    "gzip": "import gzip; gzip.open(folder / 'a.gz', 'w').close()",
    "zipfile": "import zipfile; zipfile.ZipFile(folder / 'a.zip', 'w').close()",
    "tarfile": "import tarfile; tarfile.open(folder / 'a.tar', 'w').close()",
    "sqlite3": "import sqlite3; sqlite3.connect(folder / 'db').execute('create table a (b)')",
    "dbm": "import dbm.dumb; dbm.dumb.open(str(folder / 'db'), 'n').close()",
    "fileinput": "import fileinput; [print('x') for _ in fileinput.input(file, inplace=True)]",
    "numpy": "import numpy; numpy.ones(3).tofile(file)",
    "torch.save": "torch.save({}, file)",
    "renamed through a folder": "os.rename(folder / 'inner', folder / 'outer')",
    "the current folder": "os.chdir(folder); open('file.txt', 'w').close()",
}

_BELOW_PYTHON = {
    "_io.open": "import _io; _io.open(file, 'w').close()",
    "_io.FileIO": "import _io; _io.FileIO(str(file), 'w').close()",
    "posix.open": "import posix; posix.open(file, os.O_TRUNC | os.O_WRONLY)",
    "posix.unlink": "import posix; posix.unlink(file)",
    "posix.rename": "import posix; posix.rename(file, folder / 'moved')",
    "posix.chmod": "import posix; posix.chmod(file, 0o777)",
    "posix.utime": "import posix; posix.utime(file, (1, 1))",
    "os reloaded": "importlib.reload(os).remove(file)",
    "io reloaded": "import io; importlib.reload(io).open(file, 'w').close()",
    "os imported anew": "sys.modules.pop('os'); import os as again; again.remove(file)",
    "open put back": "import _io, builtins; builtins.open = _io.open; open(file, 'w').close()",
    "sqlite3 by address": (
        "import sqlite3; sqlite3.connect(f'file:{folder}/db', uri=True)"
        ".execute('create table a (b)')"
    ),
    "numpy.memmap": (
        "import numpy, _io; numpy.memmap(_io.open(file, 'r+b'), mode='r+', dtype='u1')[:] = 65"
    ),
    "mmap": (
        "import mmap, posix\n"
        "mapped = mmap.mmap(posix.open(file, os.O_RDWR), 4)\nmapped[:] = b'xxxx'\nmapped.flush()"
    ),
    "torch's C++": "torch._C.PyTorchFileWriter(str(file)).write_end_of_file()",
    "torch.from_file": (
        "torch.from_file(str(file), shared=True, size=4, dtype=torch.uint8).fill_(65)"
    ),
    "by a path of /proc": "open(f'/proc/self/root{file}', 'w').close()",
    "by the folder of /proc": "os.chdir(folder); open('/proc/self/cwd/file.txt', 'w').close()",
    "by a link elsewhere": (
        "import posix; link = tempfile.mkdtemp() + '/link'; posix.symlink(file, link)\n"
        "posix.open(link, os.O_TRUNC | os.O_WRONLY)"
    ),
    "by a hard link elsewhere": "import posix; posix.link(file, tempfile.mkdtemp() + '/link')",
    "by the folder's descriptor": (
        "import posix; posix.unlink('file.txt', dir_fd=posix.open(folder, os.O_RDONLY))"
    ),
    "by fchdir": "import posix; os.fchdir(posix.open(folder, 0)); posix.unlink('file.txt')",
}

_C = {
    "open": "libc.open(path, os.O_TRUNC | os.O_WRONLY)",
    "creat": "libc.creat(folder_path + b'/new', 0o644)",
    "fopen": "libc.fopen(path, b'w')",
    "unlink": "libc.unlink(path)",
    "rename": "libc.rename(path, folder_path + b'/moved')",
    "renameat2, exchanging": "libc.renameat2(-100, path, -100, folder_path + b'/other.txt', 2)",
    "truncate": "libc.truncate(path, ctypes.c_long(1))",
    "mkdir": "libc.mkdir(folder_path + b'/made', 0o755)",
    "rmdir": "libc.rmdir(folder_path + b'/empty')",
    "symlink": "libc.symlink(path, folder_path + b'/link')",
    "link": "libc.link(path, folder_path + b'/link')",
    "mkfifo": "libc.mkfifo(folder_path + b'/pipe', 0o644)",
    "chmod": "libc.chmod(path, 0o777)",
    "fchmod": "libc.fchmod(libc.open(path, os.O_RDONLY), 0o777)",
    "utimes": "libc.utimes(path, (ctypes.c_long * 4)(1, 1, 1, 1))",
    "setxattr": "libc.setxattr(path, b'user.mine', b'x', ctypes.c_size_t(1), 0)",
    "a system call": "libc.syscall(257 if is_intel else 56, -100, path, os.O_TRUNC | os.O_WRONLY)",
    "a system call to chmod": "libc.syscall(268 if is_intel else 53, -100, path, 0o777)",
    "system": "libc.system(b'rm ' + path)",
}

_PROGRAMS = {
    "rm": "subprocess.run(['rm', file])",
    "mv": "subprocess.run(['mv', file, folder / 'moved'])",
    "touch": "subprocess.run(['touch', '-t', '200001010000', file])",
    "chmod": "subprocess.run(['chmod', '777', file])",
    "mkdir": "subprocess.run(['mkdir', folder / 'made'])",
    "dd": "subprocess.run(['dd', 'if=/dev/zero', f'of={file}', 'count=1'])",
    "ln": "subprocess.run(['ln', '-s', file, folder / 'link'])",
    "a shell": "os.system(f'echo x > {file}')",
    "popen": "os.popen(f'rm {file}').read()",
    "another Python": "subprocess.run([sys.executable, '-c', f'open({str(file)!r}, \"w\")'])",
    "posix_spawn": "os.waitpid(os.posix_spawn('/bin/rm', ['rm', str(file)], os.environ), 0)",
    "fork and exec": "os.fork() or os.execv('/bin/rm', ['rm', str(file)])",
    "fork": "os.fork() or (libc.unlink(path), os._exit(0))",
    "multiprocessing": (
        "import multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=libc.unlink, args=(path,))\n"
        "child.start(); child.join()"
    ),
    "a program that outlives the script": (
        "subprocess.Popen(['sh', '-c', f'sleep 0.5; rm {file}'], start_new_session=True)"
    ),
    "a daemon": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(0.5); libc.unlink(path)\n"
        "    os._exit(0)"
    ),
}

_LATER = {
    "atexit": "import atexit; atexit.register(lambda: file.unlink())",
    "atexit, of C": "import atexit; atexit.register(libc.unlink, path)",
    "weakref.finalize": "kept.append(Late()); weakref.finalize(kept[-1], os.remove, file)",
    "weakref.finalize, of C": "kept.append(Late()); weakref.finalize(kept[-1], libc.unlink, path)",
    "__del__": "late = Late(); late.end = partial(os.remove, str(file)); kept.append(late)",
    "__del__, of C": "late = Late(); late.end = lambda: libc.unlink(path); kept.append(late)",
    "finally of a generator": (
        "def late():\n"
        "    try:\n"
        "        yield\n"
        "    finally:\n"
        "        libc.unlink(path)\n"
        "kept.append(late()); next(kept[-1])"
    ),
    "a thread that goes on": "late = Late(); late.end = file.unlink; begin(late.wait)",
    "a thread that goes on in C": (
        "late = Late(); late.end = lambda: libc.unlink(path); begin(late.wait)"
    ),
    "a timer": "threading.Timer(0.3, lambda: libc.unlink(path)).start()",
    "a pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "late = Late(); late.end = file.unlink; kept.append(ThreadPoolExecutor())\n"
        "kept[-1].submit(late.wait)"
    ),
    "the end of threading": "threading._register_atexit(lambda: libc.unlink(path))",
    "multiprocessing's Finalize": (
        "from multiprocessing.util import Finalize\n"
        "Finalize(None, libc.unlink, (path,), exitpriority=1)"
    ),
    "a signal": ("signal.signal(signal.SIGALRM, lambda *_: libc.unlink(path)); signal.alarm(1)"),
}

ATTACKS: dict[str, str] = {
    f"{kind}: {name}": code
    for kind, attacks in {
        "Python": _PYTHON,
        "below Python": _BELOW_PYTHON,
        "C": _C,
        "a program": _PROGRAMS,
        "later": _LATER,
    }.items()
    for name, code in attacks.items()
}

SCRIPT = """
import ctypes, importlib, os, platform, shutil, signal, subprocess, sys, tempfile, threading
import time, weakref
from functools import partial
from pathlib import Path
import torch
from file_attacks import ATTACKS

libc, kept = ctypes.CDLL(None), []
is_intel = platform.machine() == "x86_64"

class Late:
    end = staticmethod(lambda: None)
    def __del__(self):
        self.end()
    def wait(self):
        time.sleep(0.5)
        self.end()

def begin(function):
    threading.Thread(target=function).start()

here = os.getcwd()
for name, folder in zip(ATTACKS, sorted(Path(sys.argv[1]).iterdir()), strict=True):
    file = folder / "file.txt"
    names = globals() | {
        "file": file, "folder": folder, "path": bytes(file), "folder_path": bytes(folder),
    }
    try:
        exec(ATTACKS[name], names)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    os.chdir(here)
if torch.cuda.is_available():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(2, 8).cuda()).sum().backward()
        optimizer.step()
time.sleep(1.2)
"""
