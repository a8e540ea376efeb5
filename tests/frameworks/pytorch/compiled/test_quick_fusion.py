"""Pairs of nodes that cannot be one kernel, and loops that were tried before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.frameworks.pytorch.compiled.test_shortcuts import traced, transformer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning"),
    pytest.mark.skipif(
        not torch.__version__.startswith("2.13."), reason="shortcuts were written for torch 2.13"
    ),
]


def test_torch_refuses_each_pair_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wavecast.frameworks.pytorch.compiled import quick_fusion

    stand_in, are_apart = quick_fusion.screen_pairs.made(), quick_fusion._are_apart
    assert stand_in is not None
    answers = []

    def checked(scheduler: Any, node1: Any, node2: Any) -> bool:
        if not are_apart(scheduler, node1, node2):
            return False
        for reorders in (False, True):
            answers.append(stand_in.original(scheduler, node1, node2, reorders))
        return True

    monkeypatch.setattr(quick_fusion, "_are_apart", checked)
    traced(transformer, tmp_path, monkeypatch)
    assert len(answers) > 20
    assert not any(answers)


def test_loops_are_found_again_unless_torch_has_changed_a_body() -> None:
    from wavecast.frameworks.pytorch.compiled.quick_fusion import remember_loops

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
