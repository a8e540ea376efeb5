"""The host's time for each call of a step, without the time that it waits for the GPU."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from wavecast.frameworks.kineto.event_tree import Node
from wavecast.frameworks.kineto.op_names import synchronization_name
from wavecast.traces.overlap import Interval, union

# A runtime call that returns only when its copy is done.
_BLOCKING_COPY = re.compile(r"(?:cuda|hip|cu)Memcpy(?!\w*Async)\w*")

# A launch that takes this many times its usual duration was held up by the GPU.
_HELD_UP = 3.0


def synchronizes(runtime: str) -> bool:
    """Whether the host waits for the GPU in this runtime call."""
    return synchronization_name(runtime) is not None or bool(_BLOCKING_COPY.fullmatch(runtime))


def waits(calls: Iterable[Node], ran: Mapping[Node, Interval]) -> list[Interval]:
    """When the host waited for the GPU: intervals in order that do not overlap.

    The host waits in synchronisations, in copies with memory that is not pinned (they return when
    the copy is done), and in launches while the queue is full (they return when there is room).

    Args:
        calls: the runtime calls.
        ran: when the GPU ran the kernels of each call that launched some.
    """
    calls = list(calls)
    usual = _usual_us(node for node in calls if node in ran)
    intervals = []
    for node in calls:
        begin, end = node.span.begin_us, node.span.end_us
        if synchronizes(node.name):
            intervals.append((begin, end))
        elif node in ran and _held_up(node, ran[node], usual[node.name]):
            intervals.append((begin + usual[node.name], end))
    return union(intervals)


def _usual_us(launches: Iterable[Node]) -> dict[str, float]:
    durations: dict[str, list[float]] = {}
    for node in launches:
        durations.setdefault(node.name, []).append(node.span.end_us - node.span.begin_us)
    # The lower decile, because on a busy GPU most launches are held up.
    return {name: sorted(times)[len(times) // 10] for name, times in durations.items()}


def _held_up(launch: Node, ran: Interval, usual_us: float) -> bool:
    """Whether a launch took long because it waited for the GPU.

    It did if it is a copy that was done when the call returned, or if its kernel still had to wait
    in the queue for longer than the call had taken.
    """
    end = launch.span.end_us
    duration = end - launch.span.begin_us
    if duration <= _HELD_UP * usual_us:
        return False
    done = "emcpy" in launch.name and ran[1] <= end
    return done or ran[0] - end > duration


def shares_s(begins_us: Sequence[float], window: Interval, waits: list[Interval]) -> list[float]:
    """The host's time for each call: from its start to that of the next one, without waiting.

    The threads of a step take turns (backward has its own thread, and the main thread waits
    meanwhile), so there is one timeline. The first share begins with the window and the last one
    ends with it, so the shares add up to the window without the waiting.

    Args:
        begins_us: when the calls began, in order.
        window: when the host worked on the step.
        waits: when the host waited: intervals in order that do not overlap.
    """
    bounds = [window[0], *(min(max(t, window[0]), window[1]) for t in begins_us[1:]), window[1]]
    starts = [begin for begin, _ in waits]
    before = [0.0, *accumulate(end - begin for begin, end in waits)]

    def waited_us(until: float) -> float:
        count = bisect_right(starts, until)
        if not count:
            return 0.0
        return before[count] - max(waits[count - 1][1] - until, 0.0)

    worked = [bound - waited_us(bound) for bound in bounds]
    return [max(later - earlier, 0.0) / 1e6 for earlier, later in pairwise(worked)]
