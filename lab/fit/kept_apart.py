"""Predictors that know neither the GPU of a step nor the source that measured it.

`KeptApart` fits the op models and the constants of generations again for each pair of a source and
a GPU. What both fits leave out depends on how well the GPU is to be known (`Familiarity`):

* partly: everything from the source. Others measured ops on the GPU's chip.
* unseen: also every GPU of its architecture. (Leaving out the chip alone gives ranges of the same
  width, on the same steps.)
* foreign: the same. No fit has ops of the vendor.

Two things stay as they ship, made from all GPUs: the ranges of single ops, and the share of the
roofline that ops without a model attain.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from lab.fit.generations import Aged, Constants, PublishedStep, constants, published, steps_of
from lab.fit.learned import chip_of, kept_fit, rows_of
from lab.measured.op_makers import OpRow, digest
from lab.measured.public_steps.case import Case
from wavecast import Trace
from wavecast.hardware.devices import device
from wavecast.predictors.base import Familiarity
from wavecast.predictors.learned.predictor import Learned, with_steps

Chip = tuple[str, int | None]
"""The architecture of a GPU and its number of SMs."""


def owner_of(source: str) -> str:
    """Who measured a set: the same for the training and the inference of one table."""
    return source.split()[0]


@dataclass(frozen=True)
class Hidden:
    """What a fit must not see."""

    owner: str
    """All that this source measured."""
    architecture: str = ""
    """All of this architecture."""

    def hides(self, owner: str, chip: Chip) -> bool:
        """Whether a measurement by this owner on this chip is hidden."""
        return owner == self.owner or chip[0] == self.architecture


def hidden_for(case: Case, familiarity: Familiarity) -> Hidden:
    """What the fits of a case's predictor must not see."""
    architecture, _ = chip_of(case.gpu)
    return Hidden(owner_of(case.set), "" if familiarity is Familiarity.PARTLY else architecture)


class KeptApart:
    """Makes the predictors that each step is judged with.

    apart = KeptApart(data, cache)
    for familiarity in apart.familiarities(case):
        predictor = apart.predictor(case, familiarity)
    """

    def __init__(self, data: Path, cache: Path) -> None:
        self._data, self._cache = data, cache
        self._fits: dict[tuple[frozenset[tuple[str, str]], bool], Learned] = {}
        self._steps: dict[int, list[PublishedStep]] = {}
        self._terms: dict[tuple[Hidden, int], Constants] = {}

    def familiarities(self, case: Case) -> tuple[Familiarity, ...]:
        """How well predictors without the case's source can know its GPU, the best first."""
        if device(case.gpu).vendor not in {device(gpu).vendor for gpu, _ in self._measured}:
            return (Familiarity.FOREIGN,)
        chip, owner = chip_of(case.gpu), owner_of(case.set)
        others = {chip_of(gpu) for gpu, source in self._measured if owner_of(source) != owner}
        unseen = Familiarity.UNSEEN
        return (Familiarity.PARTLY, unseen) if chip in others else (unseen,)

    def predictor(self, case: Case, familiarity: Familiarity) -> Learned | Aged:
        """The predictor of a case that knows its GPU this well, and nothing from its source."""
        hidden = hidden_for(case, familiarity)
        base = self.ops(hidden, chips=familiarity is Familiarity.PARTLY)
        terms = self._constants(hidden, base)
        learned = with_steps(base, terms)
        return Aged.of(learned, terms, case.era) if case.era else learned

    @functools.cached_property
    def _traced(self) -> list[tuple[Case, Trace]]:
        return published(self._data, self._cache)

    @functools.cached_property
    def _measured(self) -> set[tuple[str, str]]:
        """The GPUs and sources of the ops that are fitted."""
        return {(row.gpu, row.source) for row in rows_of(self._data)}

    def ops(self, hidden: Hidden, *, chips: bool) -> Learned:
        """The op models without constants of generations; those of equal data are fitted once.

        Args:
            hidden: what they must not see.
            chips: whether they know single chips.
        """
        kept = frozenset(
            (gpu, source)
            for gpu, source in self._measured
            if not hidden.hides(owner_of(source), chip_of(gpu))
        )
        if (kept, chips) not in self._fits:
            rows = [row for row in rows_of(self._data) if (row.gpu, row.source) in kept]
            self._fits[kept, chips] = self._fit(rows, chips=chips)
        return self._fits[kept, chips]

    def _fit(self, rows: list[OpRow], *, chips: bool) -> Learned:
        name = f"learned-apart-{'chips' if chips else 'plain'}-{digest(rows)[:12]}.npz"
        return kept_fit(self._cache / name, rows, chips=chips)

    def _constants(self, hidden: Hidden, base: Learned) -> Constants:
        if id(base) not in self._steps:
            self._steps[id(base)] = list(steps_of(base, self._traced))
        key = (hidden, id(base))
        if key not in self._terms:
            steps = self._steps[id(base)]
            self._terms[key] = constants(
                [step for step in steps if not hidden.hides(owner_of(step.source), step.chip)]
            )
        return self._terms[key]
