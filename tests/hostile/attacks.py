"""Ways in which a script may reach beyond itself, each a few lines of Python.

`ON_FILES` change files: their lines find a folder of their own as `folder`, a Path. In it are
`file.txt`, `other.txt` and `inner/deep.txt`, and an empty folder `empty`; `file` is the path of the
first. `BEYOND_FILES` reach other processes, memory that programs share, and what they leave
running: each changes something in `Victims.look`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import signal
import subprocess
import termios
import uuid
from contextlib import suppress
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
_GET_FLAGS, _GET_VERSION, _GET_ATTRIBUTES = 0x80086601, 0x80087601, 0x801C581F
_GET_INPUT_PRIORITY = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
_KEYS = {"x86_64": 250, "aarch64": 219}[os.uname().machine]

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

_DESCRIPTORS = {
    "openat2": (
        "how = (ctypes.c_uint64 * 3)(os.O_TRUNC | os.O_WRONLY, 0, 0)\n"
        "libc.syscall(437, -100, path, how, ctypes.c_size_t(24))"
    ),
    "reopened by a path descriptor": (
        "import posix; held = posix.open(file, os.O_PATH)\n"
        "posix.open(f'/proc/self/fd/{held}', os.O_TRUNC | os.O_WRONLY)"
    ),
    "reopened by a thread's folder of /proc": (
        "held = os.open(file, 0)\n"
        "libc.open(f'/proc/thread-self/fd/{held}'.encode(), os.O_TRUNC | os.O_WRONLY)"
    ),
    "linkat": "libc.linkat(-100, path, -100, folder_path + b'/link', 0)",
    "linkat, by a descriptor": (
        "held = libc.open(path, os.O_RDONLY)\n"
        "libc.linkat(-100, f'/proc/self/fd/{held}'.encode(), -100, folder_path + b'/link', 0x400)"
    ),
    "symlinkat": "libc.symlinkat(b'file.txt', libc.open(folder_path, 0), b'link')",
    "renameat": (
        "held = libc.open(folder_path, 0); libc.renameat(held, b'file.txt', held, b'moved')"
    ),
    "renamed into the scratch folder": (
        "libc.rename(path, os.fsencode(tempfile.mkdtemp()) + b'/file.txt')"
    ),
    "replaced from the scratch folder": (
        "other = tempfile.mkdtemp() + '/file.txt'; open(other, 'w').close()\n"
        "libc.rename(os.fsencode(other), path)"
    ),
    "unlinkat": "libc.unlinkat(libc.open(folder_path, 0), b'file.txt', 0)",
    "unlinkat of a folder": "libc.unlinkat(-100, folder_path + b'/empty', 0x200)",
    "mkdirat": "libc.mkdirat(libc.open(folder_path, 0), b'made', 0o755)",
    "mknodat": "libc.mknod(folder_path + b'/node', 0o100644, 0)",
    "O_TMPFILE and linkat": (
        "held = libc.open(folder_path, 0o20200000 | os.O_WRONLY, 0o644)\n"
        "libc.linkat(-100, f'/proc/self/fd/{held}'.encode(), -100, folder_path + b'/new', 0x400)"
    ),
    "a link in the path, changed later": (
        "import posix; link = tempfile.mkdtemp() + '/way'; posix.symlink('/', link)\n"
        "posix.unlink(link); posix.symlink(folder, link); open(link + '/file.txt', 'w').close()"
    ),
    "copied by the kernel": (
        "into = libc.open(path, os.O_WRONLY); begun = libc.open(folder_path + b'/other.txt', 0)\n"
        "libc.sendfile(into, begun, None, ctypes.c_size_t(4))"
    ),
    "fallocate": "libc.fallocate(libc.open(path, os.O_RDWR), 0, 0, ctypes.c_long(1 << 16))",
    "ftruncate": "libc.ftruncate(libc.open(path, os.O_RDWR), ctypes.c_long(1))",
    "pwritev": "os.pwritev(libc.open(path, os.O_RDWR), [b'x'], 0)",
    "mmap in C": (
        "libc.mmap.restype = ctypes.c_void_p; held = libc.open(path, os.O_RDWR)\n"
        "place = libc.mmap(None, ctypes.c_size_t(4), 3, 1, held, ctypes.c_long(0))\n"
        "ctypes.memset(place, 65, 4) if held >= 0 else None"
    ),
    "futimens": "libc.futimens(libc.open(path, 0), (ctypes.c_long * 4)(1, 1, 1, 1))",
    "fchmodat2": "libc.syscall(452, -100, path, 0o777, 0) and libc.chmod(path, 0o777)",
    "lsetxattr": "libc.lsetxattr(path, b'user.mine', b'x', ctypes.c_size_t(1), 0)",
    "io_uring": """
import mmap
asked = (ctypes.c_uint32 * 30)()
ring = libc.syscall(425, 2, asked)
if ring < 0:  # this kernel, or the container, has none
    libc.unlink(path)
else:
    queue = mmap.mmap(ring, asked[16] + 4 * asked[0], offset=0)
    entries = mmap.mmap(ring, 64 * asked[0], offset=0x10000000)
    text = ctypes.create_string_buffer(path)
    unlinkat = struct.pack('BBHiQQII', 36, 0, 0, -100, 0, ctypes.addressof(text), 0, 0)
    entries[:64] = unlinkat.ljust(64, bytes(1))
    queue[asked[16]:asked[16] + 4] = struct.pack('I', 0)
    queue[asked[11]:asked[11] + 4] = struct.pack('I', 1)
    libc.syscall(426, ring, 1, 1, 1, None, ctypes.c_size_t(0))
""",
}

_BESIDES = {
    "a thread that forks": (
        "def fork():\n    if os.fork() == 0:\n        libc.unlink(path); os._exit(0)\nbegin(fork)"
    ),
    "a thread that starts a program": "begin(lambda: subprocess.run(['rm', file]))",
    "a program at the end": ("import atexit; atexit.register(subprocess.run, ['rm', str(file)])"),
    "another Python, without our modules": (
        "subprocess.run([sys.executable, '-I', '-c', f'import os; os.remove({str(file)!r})'])"
    ),
    "another Python, in the background": (
        "subprocess.Popen([sys.executable, '-I', '-c',\n"
        "    f'import os, time; time.sleep(0.3); os.remove({str(file)!r})'])"
    ),
    "after a fork": (
        "import atexit; os.register_at_fork(after_in_child=partial(libc.unlink, path))\n"
        "if os.fork() == 0:\n    os._exit(0)"
    ),
    "garbage collection": (
        "import gc; gc.callbacks.append(lambda *_: libc.unlink(path)); gc.collect()\n"
        "gc.callbacks.pop()"
    ),
    "a weak reference's end": (
        "late = Late(); kept.append(weakref.ref(late, lambda _: libc.unlink(path))); del late"
    ),
    "a trace function": (
        "sys.setprofile(lambda *_: libc.unlink(path)); len('x'); sys.setprofile(None)"
    ),
    "an event loop": ("import asyncio\nasync def late():\n    file.unlink()\nasyncio.run(late())"),
    "multiprocessing, spawned": (
        "subprocess.run([sys.executable, '-c', 'import multiprocessing as m, os\\n'\n"
        "    f'p = m.get_context(\"fork\").Process(target=os.remove, args=({str(file)!r},))\\n'\n"
        "    'p.start(); p.join()'])"
    ),
    "a shell that waits in the background": "os.system(f'(sleep 0.3; rm {file}) &')",
    "io and os both reloaded": (
        "import io; sys.modules['os'] = os; importlib.reload(io); importlib.reload(os)\n"
        "io.open(os.open(file, os.O_WRONLY | os.O_TRUNC), 'w').close()"
    ),
    "a C library loaded anew": "ctypes.CDLL('libc.so.6').unlink(path)",
    "ctypes of another handle": "ctypes.PyDLL(None).unlink(path)",
}

_LIBRARIES = {
    "shelve": "import shelve; shelve.open(str(folder / 'shelf')).close()",
    "py_compile": "import py_compile; py_compile.compile(__file__, cfile=folder / 'new')",
    "compileall": (
        "(folder / 'm.py').write_text('x = 1')\n"
        "import compileall; compileall.compile_dir(folder, quiet=2)"
    ),
    "shutil.copytree": "shutil.copytree(folder / 'inner', folder / 'outer')",
    "shutil.make_archive": "shutil.make_archive(str(folder / 'all'), 'tar', folder / 'inner')",
    "os.renames": "os.renames(folder / 'inner' / 'deep.txt', folder / 'a' / 'b.txt')",
    "os.removedirs": "os.remove(folder / 'inner' / 'deep.txt'); os.removedirs(folder / 'inner')",
    "touch": "time.sleep(0.01); file.touch()",
    "cProfile": "import cProfile; cProfile.run('1', str(folder / 'profile'))",
    "faulthandler": (
        "import faulthandler; faulthandler.dump_traceback(open(file, 'a'), all_threads=False)"
    ),
    "mailbox": "import mailbox; box = mailbox.mbox(folder / 'box'); box.add('x'); box.flush()",
    "a socket of its own": (
        "import socket; socket.socket(socket.AF_UNIX).bind(str(folder / 'socket'))"
    ),
    "sqlite3, attached": (
        "import sqlite3; memory = sqlite3.connect(':memory:')\n"
        "memory.execute('attach ? as other', (f'{folder}/db',))\n"
        "memory.execute('create table other.a (b)')"
    ),
    "sqlite3, vacuumed into": (
        "import sqlite3; sqlite3.connect(':memory:').execute('vacuum into ?', (f'{folder}/db',))"
    ),
    "numpy.save": "import numpy; numpy.save(folder / 'a.npy', numpy.ones(2))",
    "numpy.savez": "import numpy; numpy.savez(folder / 'a.npz', numpy.ones(2))",
    "zlib's own functions": (
        "import ctypes.util; z = ctypes.CDLL(ctypes.util.find_library('z') or 'libz.so.1')\n"
        "z.gzopen.restype = ctypes.c_void_p; held = z.gzopen(path, b'w')\n"
        "z.gzclose(ctypes.c_void_p(held)) if held else None"
    ),
    "safetensors": (
        "from safetensors.torch import save_file\n"
        "save_file({'a': torch.ones(1, device='cpu')}, str(folder / 'a.safetensors'))"
    ),
    "pyarrow": "import pyarrow; pyarrow.OSFile(str(folder / 'a'), 'wb').close()",
}

_MORE_PROGRAMS = {
    "sed": "subprocess.run(['sed', '-i', 's/p/x/', file])",
    "cp": "subprocess.run(['cp', folder / 'other.txt', file])",
    "truncate": "subprocess.run(['truncate', '-s', '1', file])",
    "tee": "subprocess.run(['tee', file], input=b'x', stdout=subprocess.DEVNULL)",
    "install": "subprocess.run(['install', '-m', '600', folder / 'other.txt', file])",
    "find": "subprocess.run(['find', folder, '-name', 'file.txt', '-delete'])",
    "tar": (
        "packed = tempfile.mkdtemp() + '/a.tar'\n"
        "subprocess.run(['tar', '-cf', packed, '-C', folder, 'other.txt'])\n"
        "subprocess.run(['tar', '-xf', packed, '-C', folder / 'empty'])"
    ),
    "perl": "subprocess.run(['perl', '-e', 'unlink $ARGV[0]', file])",
    "a shell's list of files": "os.system(f'cd {folder} && rm *.txt')",
    "a shell without clobbering": "os.system(f'echo x >| {file}')",
    "a pseudo-terminal": "import pty; pty.spawn(['rm', str(file)])",
    "wordexp": (
        "found = ctypes.create_string_buffer(64); libc.wordexp(b'$(rm ' + path + b')', found, 0)"
    ),
    "vfork": "subprocess.run(['rm', file], close_fds=False)",
    "a program in memory": (
        "held = os.memfd_create('rm', 0); os.write(held, open('/bin/rm', 'rb').read())\n"
        "os.fork() or os.execve(held, ['rm', str(file)], os.environ)"
    ),
    "a limit on its arguments": "subprocess.run(['xargs', 'rm'], input=bytes(file))",
}

_KERNEL = {
    "copy_file_range": (
        "into = libc.open(path, os.O_WRONLY); begun = libc.open(folder_path + b'/other.txt', 0)\n"
        "libc.copy_file_range(begun, None, into, None, ctypes.c_size_t(3), 0)"
    ),
    "splice": (
        "read, write = os.pipe(); os.write(write, b'xxxx'); into = libc.open(path, os.O_WRONLY)\n"
        "libc.splice(read, None, into, None, ctypes.c_size_t(4), 0)"
    ),
    "a hole in the file": (
        "held = libc.open(path, os.O_RDWR)\n"
        "libc.fallocate(held, 3, ctypes.c_long(0), ctypes.c_long(4))"
    ),
    "pwrite": (
        "held = libc.open(path, os.O_RDWR)\n"
        "libc.pwrite(held, b'xx', ctypes.c_size_t(2), ctypes.c_long(0))"
    ),
    "freopen": (
        "libc.fopen.restype = ctypes.c_void_p; opened = libc.fopen(b'/dev/null', b'r')\n"
        "libc.freopen(path, b'w', ctypes.c_void_p(opened))"
    ),
    "remove": "libc.remove(path)",
    "mkdtemp": "libc.mkdtemp(ctypes.create_string_buffer(folder_path + b'/XXXXXX'))",
    "mkstemp": "libc.mkstemp(ctypes.create_string_buffer(folder_path + b'/XXXXXX'))",
    "lutimes": "libc.lutimes(path, (ctypes.c_long * 4)(1, 1, 1, 1))",
    "utimensat": "libc.utimensat(-100, path, (ctypes.c_long * 4)(1, 1, 1, 1), 0)",
    "fsetxattr": ("libc.fsetxattr(libc.open(path, 0), b'user.mine', b'x', ctypes.c_size_t(1), 0)"),
    "clone": (
        "if libc.syscall(56 if is_intel else 220, 17, None, None, None, None) == 0:\n"
        "    libc.unlink(path); os._exit(0)"
    ),
}

ON_FILES: dict[str, str] = {
    f"{kind}: {name}": code
    for kind, attacks in {
        "Python": _PYTHON,
        "below Python": _BELOW_PYTHON,
        "C": _C,
        "a program": _PROGRAMS,
        "later": _LATER,
        "a descriptor": _DESCRIPTORS,
        "besides": _BESIDES,
        "a library": _LIBRARIES,
        "another program": _MORE_PROGRAMS,
        "the kernel": _KERNEL,
    }.items()
    for name, code in attacks.items()
}

BEYOND_FILES = {
    "flags": "ioctl(file, 0x40086602, struct.pack('q', 0x80040))",  # not to be dumped
    "attributes": "ioctl(file, 0x401C5820, struct.pack('5I8x', 0x80, 0, 0, 0, 0))",
    "version": "ioctl(file, 0x40087602, struct.pack('q', 77))",
    "limits": "resource.prlimit(process, resource.RLIMIT_NOFILE, (50, 50))",
    "affinity": "os.sched_setaffinity(process, {1})",
    "policy": "os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, process, 7)",
    "input priority": "libc.syscall(251 if is_intel else 30, 1, process, 2 << 13 | 7)",
    "signal": "os.kill(process, signal.SIGSTOP)",
    "trace": (
        "if libc.ptrace(16, process, None, None) == 0:\n"
        "    os.waitpid(process, 0x40000000); libc.ptrace(8, process, None, None)"
    ),
    "memory": (
        "libc.shmat.restype = ctypes.c_void_p; place = libc.shmat(memory, None, 0)\n"
        "ctypes.memset(place, 65, 1) if place != ctypes.c_void_p(-1).value else None"
    ),
    "semaphore": "libc.semctl(semaphore, 0, 0)",
    "queue": "libc.msgctl(queue, 0, None)",
    "shared file": "posix.open(shared, os.O_WRONLY | os.O_TRUNC)",
    "shared name": "posix.unlink(shared)",
    "left in shared memory": (
        "os.write(posix.open('/dev/shm/' + marker, os.O_WRONLY | os.O_CREAT), b'x')"
    ),
    "terminal": "os.write(posix.open(terminal, os.O_WRONLY | os.O_NOCTTY), b'typed')",
    "settings of a terminal": """
file = posix.open(terminal, os.O_RDONLY | os.O_NOCTTY)
settings = termios.tcgetattr(file)
settings[3] &= ~termios.ECHO
termios.tcsetattr(file, termios.TCSANOW, settings)
""",
    "own terminal": """
os.setsid(); posix.open(terminal, os.O_RDONLY)
os.write(posix.open('/dev/tty', os.O_WRONLY), b'typed')
""",
    "keys": "libc.syscall(248 if is_intel else 217, b'user', marker.encode(), b'x', 1, -4)",
    "overlay": """
libc.unshare(0x10020000)  # of users and mounts
configure = lambda *values: libc.syscall(431, built, *values)
built = libc.syscall(430, b'overlay', 0)
configure(1, b'lowerdir', b'/etc', 0)
configure(1, b'upperdir', (overlay + '/upper').encode(), 0)
configure(1, b'workdir', (overlay + '/work').encode(), 0)
configure(6, None, None, 0)
""",
    "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('sleep', [marker, '1000'])
    os._exit(0)
""",
    "background": "subprocess.Popen(['sleep', '1000'], start_new_session=True, env={'A': marker})",
    "deaf daemon": """
if os.fork() == 0:
    os.setsid(); libc.prctl(15, marker.encode(), 0, 0, 0)
    for number in range(1, 32):
        if number not in (9, 19):
            signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(100)
""",
    "runners": """
if os.fork() == 0:  # each is another process before one can name it
    libc.prctl(15, marker.encode(), 0, 0, 0)
    [os.fork() for _ in range(3)]
    until = time.time() + 30
    while time.time() < until:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(os.getpid() % 10 / 1000)
""",
}

_BEGIN = """
import ctypes, fcntl, importlib, json, os, platform, posix, resource, shutil, signal, struct
import subprocess, sys, tempfile, termios, threading, time, weakref
from functools import partial
from pathlib import Path
import torch
from hostile.attacks import BEYOND_FILES, ON_FILES

libc, kept = ctypes.CDLL(None, use_errno=True), []
is_intel = platform.machine() == "x86_64"
"""
_TRAIN = """
if torch.cuda.is_available():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(2, 8).cuda()).sum().backward()
        optimizer.step()
"""
ON_FILES_SCRIPT = (
    _BEGIN
    + """
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
for name, folder in zip(ON_FILES, sorted(Path(sys.argv[1]).iterdir()), strict=True):
    file = folder / "file.txt"
    names = globals() | {
        "file": file, "folder": folder, "path": bytes(file), "folder_path": bytes(folder),
    }
    try:
        exec(ON_FILES[name], names)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    os.chdir(here)
"""
    + _TRAIN
    + "time.sleep(1.2)\n"
)
BEYOND_FILES_SCRIPT = (
    _BEGIN
    + """
attacker = os.getpid()

def ioctl(path, request, value):
    fcntl.ioctl(posix.open(path, os.O_RDONLY), request, value)

for name, victims in json.load(open(sys.argv[1])).items():
    try:
        # In a process of its own: some change themselves.
        child = os.fork()
        if child == 0:
            exec(BEYOND_FILES[name], globals() | victims)
            os._exit(0)
        os.waitpid(child, 0)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        if os.getpid() != attacker:
            os._exit(1)
"""
    + _TRAIN
)


class Victims:
    """What one attack could change."""

    def __init__(self, root: Path, user: int) -> None:
        self.marker = f"d{uuid.uuid4().hex[:12]}"
        self.user = user
        self.file = root / self.marker
        self.file.write_text("precious")
        self.overlay = root / f"{self.marker}-overlay"
        for name in ("upper", "work"):
            (self.overlay / name).mkdir(parents=True)
        self.shared = Path("/dev/shm") / f"{self.marker}-shared"
        self.shared.write_text("precious")
        self.master, slave = pty.openpty()
        os.set_blocking(self.master, False)
        self.terminal = os.ttyname(slave)
        self.slave = slave
        given = (self.file, self.overlay, *self.overlay.iterdir(), self.shared, Path(self.terminal))
        for path in given:
            os.chown(path, user, -1)
        before = os.geteuid()
        os.seteuid(user)
        try:
            self.memory = LIBC.shmget(0, 16, 0o600)
            self.semaphore = LIBC.semget(0, 1, 0o600)
            self.queue = LIBC.msgget(0, 0o600)
        finally:
            os.seteuid(before)
        changed = {} if user == before else {"user": user, "group": user, "extra_groups": ()}
        self.process = subprocess.Popen(["sleep", "1000"], **changed)  # type: ignore[call-overload]

    def named(self) -> dict[str, object]:
        """The names by which an attack knows them."""
        paths = {name: str(getattr(self, name)) for name in ("file", "overlay", "shared")}
        others = ("marker", "terminal", "memory", "semaphore", "queue")
        return (
            paths | {name: getattr(self, name) for name in others} | {"process": self.process.pid}
        )

    def look(self) -> dict[str, object]:
        """What can be seen of them."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        seen: dict[str, object] = {
            "flags": _asked(self.file, _GET_FLAGS, 8),
            "version": _asked(self.file, _GET_VERSION, 8),
            "attributes": _asked(self.file, _GET_ATTRIBUTES, 28),
            "limits": Path(f"/proc/{self.process.pid}/limits").read_text(),
            "affinity": os.sched_getaffinity(self.process.pid),
            "policy": os.sched_getscheduler(self.process.pid),
            "priority": os.getpriority(os.PRIO_PROCESS, self.process.pid),
            "input priority": LIBC.syscall(_GET_INPUT_PRIORITY, 1, self.process.pid),
            "state": [line for line in status.splitlines() if line.startswith("State")],
            "memory": self._shared_byte(),
            "semaphore": LIBC.semctl(self.semaphore, 0, 12),
            "queue": LIBC.msgctl(self.queue, 2, ctypes.create_string_buffer(256)),
            "shared": self.shared.exists() and self.shared.read_text(),
            "left in shared memory": Path("/dev/shm", self.marker).exists(),
            "keys": self._has_key(),
            "overlay": sorted(map(str, self.overlay.rglob("*"))),
        }
        try:
            seen["settings"] = termios.tcgetattr(self.master)
            seen["terminal"] = os.read(self.master, 100)
        except BlockingIOError:
            pass
        except OSError:
            seen["terminal"] = "its process ended it"
        seen["running"] = any(processes(self.marker) for _ in range(5))
        return seen

    def end(self) -> None:
        """Remove them."""
        quiet = 0
        while quiet < 5:  # one that runs may be missed
            running = processes(self.marker)
            quiet = 0 if running else quiet + 1
            for number in running:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self._has_key(removed=True)
        LIBC.shmctl(self.memory, 0, None)
        LIBC.semctl(self.semaphore, 0, 0)
        LIBC.msgctl(self.queue, 0, None)
        for path in (self.shared, Path("/dev/shm", self.marker)):
            path.unlink(missing_ok=True)
        os.close(self.master)
        os.close(self.slave)

    def _has_key(self, *, removed: bool = False) -> bool:
        """Whether the user has a key of the marker's name; it is removed if that is asked for."""
        child = os.fork()
        if not child:
            os.setuid(self.user)
            key = LIBC.syscall(_KEYS, 10, -4, b"user", self.marker.encode(), 0)  # search
            if key >= 0 and removed:
                LIBC.syscall(_KEYS, 9, key, -4)  # unlink
            os._exit(key >= 0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

    def _shared_byte(self) -> bytes:
        LIBC.shmat.restype = ctypes.c_void_p
        place = LIBC.shmat(self.memory, None, 0o10000)
        try:
            return ctypes.string_at(place, 1)
        finally:
            LIBC.shmdt(ctypes.c_void_p(place))


def processes(marker: str) -> list[int]:
    """The processes that have a marker as their name, as an argument or in their environment."""
    found = []
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: -int(path.name)):
        with suppress(OSError):
            name = (folder / "comm").read_bytes()
            is_marked = marker.encode() in name or any(
                marker.encode() in (folder / file).read_bytes() for file in ("cmdline", "environ")
            )
            if is_marked and b"State:\tZ" not in (folder / "status").read_bytes():
                found.append(int(folder.name))
    return found


def _asked(path: Path, request: int, size: int) -> bytes:
    with path.open("rb") as file:
        answer = bytearray(size)
        fcntl.ioctl(file, request, answer)
        return bytes(answer)
