"""Loops of kernels that were tried before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning"),
    pytest.mark.skipif(
        not torch.__version__.startswith("2.13."), reason="shortcuts were written for torch 2.13"
    ),
]


def test_loops_are_found_again_unless_torch_has_changed_a_body() -> None:
    from wavecast.frameworks.pytorch.compiled.shortcuts import remember_loops

    def body(**changes: Any) -> Any:
        state = {"sizes": ((8,), ()), "indexing_exprs": {"index0": 1}, "root_block": None}
        return SimpleNamespace(**state, **changes)

    made: list[Any] = []

    def original(_self: Any, sizes: Any) -> Any:
        made.append(body(of=sizes))
        return made[-1]

    reindexed, own = remember_loops.make(original), body()
    first = reindexed(own, [4, 2])
    assert reindexed(own, [4, 2]) is first
    assert reindexed(own, [2, 4]) is not first
    first.indexing_exprs["index0"] = 2
    second = reindexed(own, [4, 2])
    assert second is not first
    own.indexing_exprs["index0"] = 3
    assert reindexed(own, [4, 2]) is not second
    assert len(made) == 4
