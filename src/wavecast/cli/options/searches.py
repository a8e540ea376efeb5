"""The options of a search for the best strategy."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.cli.options.groups import option_group
from wavecast.errors import InvalidInput
from wavecast.frameworks.recomputing import recompute_ways
from wavecast.frameworks.strategies import plan_of_target
from wavecast.frameworks.targets import Target
from wavecast.planning.durations import seconds_of
from wavecast.planning.strategies import MEMORY_MARGIN, Search
from wavecast.traces.step import Trace


@dataclass(frozen=True)
class SearchOptions:
    """The options as the user gave them."""

    micro_batch: list[int] | None = None
    show: int = 5
    memory_margin: float = MEMORY_MARGIN
    within: str | None = None

    def search(self, gpus: int, global_batch: int | None, target: Target) -> Search:
        """What is looked for.

        Raises:
            InvalidInput: an option is missing, or its value cannot be.
        """
        if global_batch is None:
            raise InvalidInput(
                "say how many samples one optimizer step of all GPUs has: --global-batch"
            )
        counts = ("--gpus", gpus), ("--global-batch", global_batch), ("--show", self.show)
        for name, value in counts:
            if value < 1:
                raise InvalidInput(f"{name} is a whole number of at least 1, not {value}")
        return Search(
            gpus,
            global_batch,
            _micro_batches(target.trace, self.micro_batch),
            tensor_plan=plan_of_target(target.text, target.options),
            recompute=recompute_ways(target),
            best=self.show,
            memory_margin=self.memory_margin,
            within_s=None if self.within is None else seconds_of(self.within, "--within"),
        )


def _micro_batches(trace: Trace | None, given: list[int] | None) -> tuple[int, ...]:
    """The micro-batches to try: those given, that of a saved trace, or powers of two."""
    if trace is None:
        return tuple(sorted(set(given))) if given else (1, 2, 4, 8)
    if given:
        raise InvalidInput("a trace has one micro-batch only; leave out --micro-batch")
    if trace.samples is None:
        raise InvalidInput(
            "the trace does not say how many samples it has; trace the step again with samples="
        )
    return (trace.samples,)


NO_SEARCH = SearchOptions()

search_options = option_group(
    "searching",
    SearchOptions,
    {
        "micro_batch": "Samples of a micro-batch to try; repeat for more.",
        "show": "How many to show; more of them have to be played.",
        "memory_margin": "The share of a GPU's memory that must stay free.",
        "within": "End the search with the best so far after so many seconds, or a time as 5min. "
        "If nothing fits, what would fit is looked for after that.",
    },
    "The search",
)
"""A decorator that gives a command the options of a search, as its parameter `searching`."""
