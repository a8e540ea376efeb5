"""The same step elsewhere: on another GPU, or on several of the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import devices
from wavecast.parallel.strategy import Parallel
from wavecast.planning.listing_order import comparable
from wavecast.planning.prices import Price, PriceBook
from wavecast.planning.verification import is_verified
from wavecast.steps.prediction import Prediction
from wavecast.steps.request import on_cluster, predict


@dataclass(frozen=True)
class OtherGpus:
    """Other GPUs for a step, unchanged."""

    kind: str
    """Why it is named: "fastest", "cheapest" or "several"."""
    step: Prediction
    offer: Price | None = None
    """The cheapest offer. None when unknown."""

    @property
    def sample_s(self) -> float | None:
        """The time for a sample; None if the number of samples is not known."""
        return self.step.seconds / self.step.samples if self.step.samples else None

    @property
    def usd_per_million(self) -> float | None:
        """What a million samples cost; None without samples or an offer."""
        if self.offer is None or self.sample_s is None:
            return None
        gpus = self.step.gpus
        return self.sample_s * 1e6 * self.offer.usd_per_hour_of(gpus) / 3600


def other_gpus(before: Prediction, book: PriceBook, host: str | None = None) -> list[OtherGpus]:
    """The fastest and the cheapest GPU that is for rent, and a machine full of the present one.

    Those are left out that are no better than the present GPU, on which the step does not fit, or
    whose generation was never measured.
    """
    now = OtherGpus("", before, book.cheapest(before.device.id))
    found = [
        OtherGpus("", step, book.cheapest(step.device.id))
        for step in _on_others(before, book, host)
    ]
    best = []
    faster = min(found, key=lambda one: one.step.seconds, default=now)
    if faster.step.seconds < before.seconds:
        best.append(OtherGpus("fastest", faster.step, faster.offer))
    priced = [one for one in (now, *found) if one.usd_per_million is not None]
    cheaper = min(priced, key=lambda one: one.usd_per_million or 0.0, default=now)
    if cheaper is not now:
        best.append(OtherGpus("cheapest", cheaper.step, cheaper.offer))
    return [*best, *_several(before, book, host)]


def _on_others(before: Prediction, book: PriceBook, host: str | None) -> Iterator[Prediction]:
    """The step on each GPU that has a price, where it fits."""
    offered = {offer.device_id for offer in book.seen()} - {before.device.id}
    for gpu in devices():
        if gpu.id not in offered or not is_verified(gpu):
            continue
        try:
            step = predict(before.trace, gpu, host=host)
        except InvalidInput:  # compiled for its own GPU
            continue
        if step.fits is not False and comparable(step):
            yield step


def _several(before: Prediction, book: PriceBook, host: str | None) -> Iterator[OtherGpus]:
    """The step on all GPUs of the usual machine, replicated, or sharded where it does not fit."""
    if before.trace.measurement is not None:
        return
    try:
        count = on_cluster(before.device, Parallel()).cluster.gpus_per_node
        for shard in (0, 3):
            strategy = Parallel(data=count, shard=shard)
            step = predict(before.trace, before.device, parallel=strategy, host=host)
            if step.fits is not False:
                offer = book.cheapest(before.device.id, count, together=count)
                yield OtherGpus("several", step, offer)
                return
    except InvalidInput:  # nothing is known of its machines, or the step cannot be spread
        return
