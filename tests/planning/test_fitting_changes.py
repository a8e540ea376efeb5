"""What to change where no strategy fits."""

from __future__ import annotations

import wavecast
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.parallel.strategy import Parallel
from wavecast.planning.layout_search import fitting_changes
from wavecast.planning.layouts import Layout, Search

A100 = wavecast.device("a100-sxm-40gb")


def test_the_least_change_of_each_kind_is_named() -> None:
    asked: list[tuple[int, str, bool]] = []

    def fitting(search: Search, gpu: Device, has_adapters: bool) -> Layout | None:
        asked.append((search.gpus, gpu.id, has_adapters))
        assert search.first_fitting
        is_enough = has_adapters or search.gpus >= 32 or gpu.memory_bytes > 70e9
        return Layout(Parallel(data=search.gpus, shard=3), 1, "full") if is_enough else None

    told = fitting_changes(Search(8, 64), A100, fitting, adaptable=True)
    assert told[0] == (
        "it fits on 8 x a100-sxm-40gb with LoRA (--lora r=16): data=8,shard=3, micro-batch 1, "
        "recomputed: full"
    )
    assert told[1].startswith("it fits on 8 x a100-")
    assert "80gb" in told[1]
    assert told[2].startswith("it fits on 32 GPUs of this kind: data=32,shard=3")
    assert len(told) == 3
    larger = [gpu for gpus, gpu, adapted in asked if gpu != A100.id]
    sizes = [wavecast.device(gpu).memory_bytes for gpu in larger]
    assert sizes == sorted(sizes)
    assert all(size > A100.memory_bytes for size in sizes)


def test_what_fits_nowhere_is_told_so() -> None:
    def refusing(search: Search, gpu: Device, has_adapters: bool) -> Layout | None:
        assert not has_adapters
        if search.gpus > 8:
            raise InvalidInput("no network is known")
        return None

    [told] = fitting_changes(Search(8, 64), A100, refusing, adaptable=False)
    assert told.startswith("nor does it fit")
