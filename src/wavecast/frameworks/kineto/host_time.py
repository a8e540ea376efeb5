"""What the host spent its time on: issuing each call, and waiting, which is not counted."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from wavecast.frameworks.kineto.event_tree import Node
from wavecast.frameworks.kineto.op_names import synchronization_name
from wavecast.traces.overlap import Interval, union

# A function that returns only when its copy is done.
_BLOCKING_COPY = re.compile(r"(?:cuda|hip|cu)Memcpy(?!\w*Async)\w*")

# A launch that takes so many times its usual duration was held up.
_HELD_UP = 3.0


def synchronizes(runtime: str) -> bool:
    """Whether the host waits for the GPU in this function of the runtime."""
    return synchronization_name(runtime) is not None or bool(_BLOCKING_COPY.fullmatch(runtime))


def waits(calls: Iterable[Node], ran: Mapping[Node, Interval]) -> list[Interval]:
    """The times in which the host waited for the GPU, disjoint and in order.

    Beside synchronisations these are copies to memory that is not pinned, which return when
    they are done, and launches into a queue that is full, which return when there is room.

    Args:
        calls: those of the runtime.
        ran: when the GPU ran what each of them launched.
    """
    calls = list(calls)
    usual = _usual_us(node for node in calls if node in ran)
    found = []
    for node in calls:
        begin, end = node.span.begin_us, node.span.end_us
        if synchronizes(node.name):
            found.append((begin, end))
        elif node in ran and _held_up(node, ran[node], usual[node.name]):
            found.append((begin + usual[node.name], end))
    return union(found)


def _usual_us(launches: Iterable[Node]) -> dict[str, float]:
    durations: dict[str, list[float]] = {}
    for node in launches:
        durations.setdefault(node.name, []).append(node.span.end_us - node.span.begin_us)
    # The lower decile: on a busy GPU most launches are held up.
    return {name: sorted(each)[len(each) // 10] for name, each in durations.items()}


def _held_up(launch: Node, ran: Interval, usual_us: float) -> bool:
    """Whether a launch took long because of the GPU, not because of the host's own work.

    It did if the copy was done when it returned, or if what it launched still had to wait its
    turn for longer than the call had taken.
    """
    end = launch.span.end_us
    duration = end - launch.span.begin_us
    if duration <= _HELD_UP * usual_us:
        return False
    done = "emcpy" in launch.name and ran[1] <= end
    return done or ran[0] - end > duration


def shares_s(begins_us: Sequence[float], window: Interval, waits: list[Interval]) -> list[float]:
    """The host's time for each call: from its beginning to that of the next, without waiting.

    The threads of a step take turns (backward runs on its own while the main one stands still),
    so there is one timeline. The first share begins with the window, the last ends with it, and
    together they are the window without the waiting.

    Args:
        begins_us: when the calls began, in order.
        window: the step on the host.
        waits: disjoint and in order.
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
