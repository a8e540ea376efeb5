"""Which node each kernel comes from, while torch.compile works on this machine.

Inductor gives kernels of different graphs the same names. Here their numbers run through the whole
process, so that a kernel's name says which node it was made of.
"""

from __future__ import annotations

import itertools
from typing import Any

from wavecast.frameworks.pytorch.compiled.fused_ops import kernels_of
from wavecast.ops.fused import FUSED
from wavecast.traces.step import Op


class KernelOrigins:
    """The op of each kernel that Inductor has generated since `install`, by the kernel's name."""

    def __init__(self) -> None:
        self.ops: dict[str, Op | str] = {}
        """Ops by kernel name; the text of the error where a node could not be described."""
        self.graphs: list[dict[str, int]] = []
        """How many nodes of each class every compiled graph had."""
        self._pending: list[Op | str] = []

    def clear(self) -> None:
        """Forget all kernels."""
        self.ops.clear()
        self.graphs.clear()

    def install(self, sm_count: int) -> None:
        """Listen to Inductor from now on."""
        from torch._inductor.codegen.triton import TritonScheduling
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
        from torch._inductor.scheduler import Scheduler
        from torch._inductor.virtualized import V

        numbers = itertools.count()
        plain_enter, plain_define = Scheduler.enter_context, TritonScheduling.define_kernel
        plain_codegen = Scheduler.codegen

        def enter_context(scheduler: Any, node: Any) -> Any:
            self._pending = self._described(node, V.graph, sm_count)
            return plain_enter(scheduler, node)

        def define_kernel(scheduling: Any, *arguments: Any, **named: Any) -> Any:
            name = plain_define(scheduling, *arguments, **named)
            if name not in self.ops:
                self.ops[name] = self._pending.pop(0) if self._pending else "no node"
            return name

        def codegen(scheduler: Any) -> Any:
            names = [type(node).__name__ for node in scheduler.nodes]
            self.graphs.append({name: names.count(name) for name in names})
            return plain_codegen(scheduler)

        Scheduler.enter_context = enter_context
        Scheduler.codegen = codegen
        TritonScheduling.define_kernel = define_kernel
        PythonWrapperCodegen.next_kernel_suffix = lambda _: str(next(numbers))

    @staticmethod
    def _described(node: Any, graph: Any, sm_count: int) -> list[Op | str]:
        names = {type(node).__name__} & {"ExternKernelSchedulerNode", "NopKernelSchedulerNode"}
        if names or node.get_device() is None or node.get_device().type == "cpu":
            return []
        try:
            made = kernels_of(node, graph, sm_count).ops
        except Exception as error:  # the other kernels still count
            return [f"{type(error).__name__}: {error}"[:300]]
        return [op for op in made if op.name in FUSED or op.name.startswith("inductor.")]


class LateChoice:
    """Lets Inductor choose between versions of a kernel when the machine is quiet.

    Inductor times two or more versions of most kernels when they first run. While other processes
    use the GPU, that says nothing. So the first version runs until `quiet` is called.
    """

    def __init__(self) -> None:
        self.is_quiet = False
        self._waiting: list[tuple[Any, list[Any]]] = []

    def install(self) -> None:
        """Put off all choices from now on, and make them with fewer runs."""
        from torch._inductor.runtime.benchmarking import InductorBenchmarker
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        plain_choose = CachingAutotuner.autotune_to_one_config
        plain_time = InductorBenchmarker.benchmark_gpu
        fewer = {"memory_warmup_iters": 20, "benchmark_iters": 20, "max_benchmark_duration": 5}

        def choose(tuner: Any, *arguments: Any, **named: Any) -> Any:
            if self.is_quiet:
                return plain_choose(tuner, *arguments, **named)
            self._waiting.append((tuner, list(tuner.launchers)))
            tuner.launchers = tuner.launchers[:1]
            return None

        def benchmark_gpu(timer: Any, run: Any, *arguments: Any, **named: Any) -> Any:
            return plain_time(timer, run, *arguments, **(named | fewer))

        CachingAutotuner.autotune_to_one_config = choose
        InductorBenchmarker.benchmark_gpu = benchmark_gpu

    def quiet(self) -> None:
        """From the next run on, choose: of kernels that have already run, and of new ones."""
        self.is_quiet = True
        for tuner, launchers in self._waiting:
            tuner.launchers = launchers
        self._waiting.clear()

    def noisy(self) -> None:
        """Put off choices again."""
        self.is_quiet = False
        self._waiting.clear()
