"""What to change where no strategy fits: adapters, GPUs with more memory, or more GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from wavecast.errors import InvalidInput
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.device import Device
from wavecast.hardware.devices import devices
from wavecast.hardware.processors import update_rate
from wavecast.parallel.strategy import option_of
from wavecast.planning.layouts import Layout
from wavecast.planning.strategies import Search

ADAPTERS = "r=16"
"""The adapters that are tried."""
_MOST_DOUBLINGS = 3
_MOST_SIZES = 4
Fitting = Callable[[Search, Device, bool], Layout | None]
"""Any strategy that fits on so many of some GPU, with or without adapters; None if none does."""


def fitting_changes(
    search: Search, device: Device, fitting: Fitting, *, adaptable: bool
) -> list[str]:
    """What fits instead, in words: the least change of each kind.

    Args:
        search: what was looked for in vain.
        device: the GPU.
        fitting: looks for a strategy that fits.
        adaptable: whether adapters can be trained instead of all weights.
    """
    first = replace(search, first_fitting=True, best=1, within_s=None)
    told = []
    if search.offload and update_rate(usual_cluster(device)) is None:
        told.append(
            "CPU offload (offload=optimizer) was not tried, since the bandwidth of the host's "
            "memory is not known: add node.memory_bytes_per_s to a file of your cluster "
            "(docs/howto/add-a-cluster.md)"
        )
    for changes in (_adapters(first, device, adaptable), _larger(first, device), _more(first)):
        told += _least_change(changes, device, fitting)
    return told or ["nor does it fit with adapters, on larger GPUs, or on more of these"]


_Change = tuple[str, Search, Device | None, bool]
"""A change in words, and what is then looked for: the search, another GPU, adapters."""


def _least_change(changes: Iterator[_Change], device: Device, fitting: Fitting) -> list[str]:
    """The first of some changes with which something fits; none if there is none."""
    for words, search, gpu, has_adapters in changes:
        try:
            layout = fitting(search, gpu or device, has_adapters)
        except InvalidInput:  # a batch or a network that does not go with so many GPUs
            continue
        if layout is not None:
            how = "" if layout.recompute == "none" else f", recomputed: {layout.recompute}"
            option = option_of(layout.strategy) or "one GPU"
            return [f"it fits {words}: {option}, micro-batch {layout.micro_batch}{how}"]
    return []


def _adapters(search: Search, device: Device, adaptable: bool) -> Iterator[_Change]:
    if adaptable:
        yield f"on {search.gpus} x {device.id} with LoRA (--lora {ADAPTERS})", search, None, True


def _larger(search: Search, device: Device) -> Iterator[_Change]:
    """GPUs of the same maker with more memory: of each size the one that is most alike."""
    larger = [gpu for gpu in devices() if gpu.memory_bytes > 1.02 * device.memory_bytes]
    alike = sorted(
        (gpu for gpu in larger if gpu.vendor == device.vendor),
        key=lambda gpu: (gpu.memory_bytes, gpu.architecture != device.architecture, gpu.id),
    )
    sizes: dict[int, Device] = {}
    for gpu in alike:
        sizes.setdefault(round(gpu.memory_bytes / 2**30), gpu)
    for gpu in list(sizes.values())[:_MOST_SIZES]:
        yield f"on {search.gpus} x {gpu.id}", search, gpu, False


def _more(search: Search) -> Iterator[_Change]:
    for doubling in range(1, _MOST_DOUBLINGS + 1):
        gpus = search.gpus * 2**doubling
        yield f"on {gpus} GPUs of this kind", replace(search, gpus=gpus), None, False
