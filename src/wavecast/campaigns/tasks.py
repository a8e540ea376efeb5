"""Tasks: the pieces of a campaign, each of which has one result.

A task is known by what it asks for, so that a campaign which is started again, elsewhere or with a
longer file, knows what is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ANYWHERE = ""
"""What a task has in place of a GPU if any machine will do: predictions."""
CPU = "cpu"
"""What a task has in place of a GPU if it tries a measurement out on a CPU."""
_MOST_TOGETHER = 64


@dataclass(frozen=True)
class CampaignTask:
    """Something to measure or to predict."""

    kind: str
    """predict, layer, suite or run: what `work` knows."""
    question: str
    """What it asks for, as JSON with sorted keys."""
    gpu: str = ANYWHERE
    """The id of the GPU that it must run on, `CPU`, or `ANYWHERE`."""
    shared: str = ""
    """Tasks with the same text here share work, such as a trace. Empty if it shares none."""

    @cached_property
    def id(self) -> str:
        """A hash of what it asks for."""
        text = "\n".join((self.kind, self.gpu, self.question))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]

    @property
    def asked(self) -> dict[str, Any]:
        """What it asks for."""
        return dict(json.loads(self.question))

    @property
    def name(self) -> str:
        """What it asks for, in a line."""
        words = [str(value) for value in self.asked.values() if value not in ("", None, [], {})]
        return f"{self.kind} {', '.join(words)}"


def task(
    kind: str, asked: Mapping[str, Any], gpu: str = ANYWHERE, shared: str = ""
) -> CampaignTask:
    """A task that asks for something."""
    return CampaignTask(kind, json.dumps(asked, sort_keys=True), gpu, shared)


def together(tasks: Iterable[CampaignTask]) -> list[tuple[CampaignTask, ...]]:
    """Tasks in bundles, each of which runs as a whole: those that share work, up to 64 of them."""
    groups: dict[tuple[str, str], list[CampaignTask]] = {}
    for one in tasks:
        groups.setdefault((one.gpu, one.shared or one.id), []).append(one)
    return [part for group in groups.values() for part in _parts(group)]


def _parts(group: Sequence[CampaignTask]) -> list[tuple[CampaignTask, ...]]:
    starts = range(0, len(group), _MOST_TOGETHER)
    return [tuple(group[start : start + _MOST_TOGETHER]) for start in starts]
