"""A builder of small torch.profiler files for tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 200
V100 = {"id": 0, "name": "Tesla V100", "computeMajor": 7, "computeMinor": 0, "warpSize": 32}


class File:
    """Builds a profiler file. The host's clock advances with each event.

    All times are microseconds.
    """

    def __init__(self, **fields: Any) -> None:
        self.fields: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [V100], **fields}
        self.events: list[dict[str, Any]] = []
        self.now = 1000.0
        self.gpu_free = 0.0
        self.thread: Any = MAIN
        self.launched = 0

    def add(self, category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": self.thread}
        event |= {"ts": ts, "dur": dur, "args": args}
        self.events.append(event)
        return event

    @contextmanager
    def inside(self, name: str, category: str = "cpu_op", /, **args: Any) -> Iterator[None]:
        """An op, or another range, around the events of the block."""
        begin = self.now
        event = self.add(category, name, begin, 0.0, **args)
        self.now += 1.0
        yield
        self.now += 1.0
        event["dur"] = self.now - begin

    def annotation(self, name: str) -> Any:
        return self.inside(name, "user_annotation")

    def op(self, name: str, *kernels: str, us: float = 10.0, **args: Any) -> None:
        """An op that launches these kernels, each of which takes `us`."""
        with self.inside(name, **args):
            for kernel in kernels:
                self.launch(kernel, us=us)

    @contextmanager
    def on(self, thread: Any) -> Iterator[None]:
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    def launch(
        self,
        *kernels: str,
        us: float = 10.0,
        call: str = "cudaLaunchKernel",
        takes: float = 4.0,
        stream: Any = 7,
        shown: bool = True,
        **args: Any,
    ) -> None:
        """A runtime call and its kernels. The file has the call only if it is `shown`."""
        self.launched += 1
        if shown:
            self.add("cuda_runtime", call, self.now, takes, correlation=self.launched)
        for kernel in kernels:
            begin = max(self.now + takes, self.gpu_free)
            category = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
            self.add(
                *(category, kernel, begin, us),
                **{"device": 0, "stream": stream, "correlation": self.launched, **args},
            )
            self.gpu_free = begin + us
        self.now += takes

    def wait(self, call: str = "cudaDeviceSynchronize") -> None:
        """A synchronisation: the host waits until the GPU is done."""
        end = max(self.gpu_free, self.now) + 2.0
        self.add("cuda_runtime", call, self.now, end - self.now, correlation=10**6 + self.launched)
        self.now = end

    @property
    def gpu_s(self) -> float:
        """The seconds of everything that ran on the GPU."""
        categories = ("kernel", "gpu_memcpy", "gpu_memset")
        return float(sum(e["dur"] for e in self.events if e["cat"] in categories)) / 1e6

    def text(self) -> str:
        return json.dumps({**self.fields, "traceEvents": self.events, "traceName": "x.json"})

    def write(self, folder: Path, name: str = "trace.json.gz") -> Path:
        path = folder / name
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path
