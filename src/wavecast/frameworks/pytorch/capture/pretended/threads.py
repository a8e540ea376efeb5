"""The threads of a traced step, which share its fake tensors and its recorder.

Torch's dispatch modes belong to one thread. A step may have more: a thread that prefetches the next
batch, or a pool that runs forward or backward passes. While tracing, threads and pool tasks that
the step starts run under the modes of the trace. Other threads of the program do not.
"""

from __future__ import annotations

import concurrent.futures.thread
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import failing_line
from wavecast.frameworks.replacements import replacing

_PATIENCE_S = 5.0
"""How long to wait, after a step, for work that it left to its threads."""
_AGAIN_S = 1.0
"""How long a failing thread waits before it interrupts the tracing thread again."""

_ASKED = "_wavecast_asked"
"""The mark of a future whose result or error the step has asked for."""

_one_trace = threading.Lock()
_running: list[TracedThreads] = []
"""The trace that runs now, if any, after those that are paused for it."""


@contextmanager
def one_trace_at_a_time(threads: TracedThreads) -> Iterator[None]:
    """Run the block when no other thread traces; tracing changes torch for the whole process.

    A step that traces another one pauses its own trace meanwhile.
    """
    with ExitStack() as stack:
        if in_traced_thread():
            stack.enter_context(_running[-1].paused())
        else:
            stack.enter_context(_one_trace)
        _running.append(threads)
        stack.callback(_running.pop)
        yield


def _notice_questions(future: futures.Future[Any]) -> None:
    def noticed(answer: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            setattr(future, _ASKED, True)
            return answer(*args, **kwargs)

        return ask

    for name in ("result", "exception"):
        setattr(future, name, noticed(getattr(future, name)))


def in_traced_thread() -> bool:
    """Whether the present thread belongs to the trace that runs now, if any."""
    return any(trace.traced() for trace in _running)


@cache
def _own_kernel(name: str) -> Any:
    """Torch's own kernel of an aten op. It is looked up once, before the first replacement."""
    return torch.library.get_kernel(f"aten::{name}", "CPU")


def only_when_traced(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel for the traced step that leaves torch's own to other threads of the program."""
    if not hasattr(torch.library, "get_kernel"):  # before torch 2.9
        return kernel
    own = _own_kernel(name)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def choose(*args: Any, **kwargs: Any) -> Any:
        if in_traced_thread() or any(isinstance(argument, FakeTensor) for argument in args):
            return kernel(*args, **kwargs)
        return own.call_boxed(keys, *args, **kwargs)

    return choose


class _Membership(threading.local):
    """What is known of the present thread."""

    traced = False
    ran_op = False
    """Whether it has run an op of the trace."""


class TracedThreads:
    """The threads that belong to one trace."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while an op is dispatched: torch's fake tensors are made for one thread."""
        self.closed = False
        self.is_paused = False
        self.started = 0
        """How many threads and pool tasks the step has started."""
        self._modes: tuple[FakeTensorMode, TorchDispatchMode] | None = None
        self._here = _Membership()
        self._tracer = threading.current_thread()
        self._work: list[threading.Thread | futures.Future[Any]] = []
        self._failure: BaseException | None = None
        self._noticed = threading.Event()
        """Set when the tracing thread was interrupted, which a failing thread waits for."""
        self._ended_mode = 0

    def traced(self) -> bool:
        """Whether the present thread belongs to the trace."""
        return self._here.traced

    def note_op(self) -> None:
        """Note that the present thread runs an op of the trace."""
        self._here.ran_op = True

    @contextmanager
    def follow(self, fake: FakeTensorMode, placement: TorchDispatchMode) -> Iterator[None]:
        """Trace the present thread, whose modes are set, and those that it starts."""
        self._modes = (fake, placement)
        self._here.traced = True
        with ExitStack() as stack:
            stack.callback(self._close)
            replace = stack.enter_context(replacing())
            replace(threading.Thread, start=self._starting(threading.Thread.start))
            replace(futures.ThreadPoolExecutor, submit=self._submitting())
            replace(FakeTensor, __torch_dispatch__=self._dispatching())
            try:
                yield
            except KeyboardInterrupt:
                self._noticed.set()
                self.raise_failure()  # a thread that fails interrupts the step
                raise

    def settle(self) -> None:
        """Wait for the work that a step left to its threads, and raise the error of a thread.

        The ops of a batch that a thread prefetches belong to the step that asked for it. A thread
        that waits for the next step, or forever, is not waited for.
        """
        work, self._work = self._work, []
        for item in work:
            if isinstance(item, futures.Future):
                futures.wait([item], timeout=_PATIENCE_S)
                self._notice_refusal(item)
            elif not item.daemon and item is not threading.current_thread():
                item.join(_PATIENCE_S)
        self.raise_failure()

    def _notice_refusal(self, future: futures.Future[Any]) -> None:
        """Keep the error of a task that could not be traced, which the step may never ask for."""
        if future.done() and not future.cancelled() and not vars(future).get(_ASKED):
            error = future.exception()
            if isinstance(error, CaptureError):
                self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise the error that ended a thread of the step, if any."""
        error = self._failure
        if isinstance(error, CaptureError):
            raise error
        if error is not None:
            line = failing_line(error)
            message = str(error).strip().split("\n")[0] or type(error).__name__
            raise CaptureError(
                f"a thread of the step raised {type(error).__name__} at {line}: {message}"
            ) from error

    def _close(self) -> None:
        try:
            with self.lock:  # no thread is dispatching an op
                self.closed = True
        except KeyboardInterrupt:  # a failing thread sent it, below
            self.closed = True
            if self._failure is None:
                raise
        self._here.traced = False
        self._ended_mode = 0 if self._modes is None else id(self._modes[0])
        self._modes = None
        self._work.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run the block as if this trace did not exist. Its other threads wait at their next op."""
        with self.lock, _disable_current_modes():
            self.is_paused, self._here.traced = True, False
            try:
                yield
            finally:
                self.is_paused, self._here.traced = False, True

    @contextmanager
    def left(self) -> Iterator[None]:
        """Run the block without this trace's mode, in a thread that has outlived the trace."""
        key = torch._C._TorchDispatchModeKey.FAKE
        mode = torch._C._unset_dispatch_mode(key)
        is_own = mode is not None and id(mode) == self._ended_mode
        if mode is not None and not is_own:  # the mode of a later trace
            torch._C._set_dispatch_mode(mode)
        try:
            yield
        finally:
            if is_own:
                torch._C._set_dispatch_mode(mode)

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Run the block in the present thread as part of the trace."""
        modes = self._modes
        if self._here.traced or modes is None:
            yield
            return
        fake, placement = modes
        # Torch's own way to enter a mode also sets flags of the whole process.
        previous = torch._C._unset_dispatch_mode(fake._mode_key)
        torch._C._push_on_torch_dispatch_stack(fake)
        torch._C._push_on_torch_dispatch_stack(placement)
        self._here.traced = True
        try:
            yield
        finally:
            self._here.traced = False
            torch._C._pop_torch_dispatch_stack(None)
            torch._C._unset_dispatch_mode(fake._mode_key)
            if previous is not None:
                torch._C._push_on_torch_dispatch_stack(previous)

    def _starting(self, start: Callable[[Any], None]) -> Callable[[Any], None]:
        """`Thread.start`, for threads of the step."""

        def start_traced(thread: Any) -> None:
            # The workers of a pool outlive their tasks, which are followed instead.
            if (
                self.traced()
                and getattr(thread, "_target", None) is not concurrent.futures.thread._worker
            ):
                self.started += 1
                self._work.append(thread)
                thread.run = self._running(thread, thread.run)
            start(thread)

        return start_traced

    def _running(self, thread: Any, run: Callable[[], None]) -> Callable[[], None]:
        def run_traced() -> None:
            del thread.run
            try:
                with self._joined():
                    run()
            except SystemExit:
                raise
            except BaseException as error:
                if not self._here.ran_op and not isinstance(error, CaptureError):
                    raise  # no part of the step: Python prints the error, and the program goes on
                self._fail(error)

        return run_traced

    def _fail(self, error: BaseException) -> None:
        """Keep the error of a thread, and wake the tracing thread, which may wait for it."""
        with self.lock:
            if self.closed:
                raise error
            first = self._failure is None
            self._failure = self._failure or error
        # Only then SIGINT raises a KeyboardInterrupt in the main thread, even while that waits.
        is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        can_interrupt = hasattr(signal, "pthread_kill") and is_default
        if first and self._tracer is threading.main_thread() and can_interrupt:
            self._wake_tracer()

    def _wake_tracer(self) -> None:
        """Interrupt the tracing thread until it notices.

        A signal that comes just before that thread begins to wait for a lock does not end the wait.
        """
        noticed = False
        while not noticed:
            with self.lock:
                if self.closed:
                    return
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            noticed = self._noticed.wait(_AGAIN_S)

    def _submitting(self) -> Callable[..., Any]:
        """`ThreadPoolExecutor.submit`, for tasks of the step."""
        submit = futures.ThreadPoolExecutor.submit

        def submit_traced(pool: Any, task: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not self.traced():
                return submit(pool, task, *args, **kwargs)

            def run_traced() -> Any:
                with self._joined():
                    return task(*args, **kwargs)

            self.started += 1
            future = submit(pool, run_traced)
            _notice_questions(future)
            self._work.append(future)
            return future

        return submit_traced

    def _dispatching(self) -> Any:
        """`FakeTensor.__torch_dispatch__`, which torch calls in threads without our modes."""
        dispatch = FakeTensor.__torch_dispatch__

        def dispatch_traced(
            cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if self.traced() or self.is_paused:
                return dispatch(func, types, args, kwargs or {})
            with self._joined():
                return func(*args, **(kwargs or {}))

        return classmethod(dispatch_traced)
