"""What torch keeps of the results of ops, found and made again without detours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wavecast.frameworks.pytorch.compiled import shortcuts
from wavecast.frameworks.pytorch.compiled.shortcuts import StandIn, taken

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning"),
    pytest.mark.skipif(
        not torch.__version__.startswith("2.13."), reason="shortcuts were written for torch 2.13"
    ),
]


def stand_in(name: str) -> StandIn:
    made: StandIn | None = getattr(shortcuts, name).stand_in()
    assert made is not None
    return made


def test_keys_are_those_of_torch() -> None:
    describe = stand_in("describe")
    with FakeTensorMode() as mode:
        image = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
        weight = torch.empty(6, 7, dtype=torch.bfloat16, requires_grad=True)
        tensors = [image, weight, weight.t(), weight[1:, 2:], image.sum()]
        tensors.append(torch.empty(3, dtype=torch.complex64).conj())
    others = [1, 1.0, True, None, "sum", torch.float32, torch.device("cuda"), torch.strided]
    arguments: tuple[Any, ...] = (
        tensors,
        [1, [2, (3,)]],
        torch.Size([4]),
        {"a": tensors[0], "b": others},
        range(2),
    )
    several: list[Any] = [arguments, {"x": others, "y": tensors}, (), []]
    for given in several:
        results: tuple[list[Any], list[Any]] = ([], [])
        for result, function in zip(results, (describe.original, describe.function), strict=True):
            function(mode, result, given, SimpleNamespace(), [])
        assert results[0] == results[1]
        assert [type(part) for part in results[0]] == [type(part) for part in results[1]]


def test_what_torch_refuses_is_refused() -> None:
    from torch._subclasses.fake_tensor import _BypassDispatchCache

    describe = stand_in("describe")
    with FakeTensorMode():
        foreign = torch.empty(2)
    for argument in (foreign, torch.empty(2), lambda: None):
        with pytest.raises(_BypassDispatchCache):
            describe.function(FakeTensorMode(), [], (argument,), SimpleNamespace(), [])


def test_results_are_made_again_as_torch_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[tuple[Any, ...]]:
        with FakeTensorMode() as mode:
            x = torch.empty(4, 6)
            found = []
            for _ in range(2):  # the second time from what was kept
                view = x.t()[1:]
                results = [view, x @ x.t(), x.add_(1), *x.split(2), x.to(torch.float16)]
                shared = [r.untyped_storage()._cdata == x.untyped_storage()._cdata for r in results]
                shapes = [(r.shape, r.stride(), r.storage_offset(), r.dtype) for r in results]
                found.append((shapes, shared, [r.device for r in results]))
            assert mode is not None
        return found

    FakeTensorMode.cache_clear()
    expected = run()
    FakeTensorMode.cache_clear()
    with taken((shortcuts.describe, shortcuts.make_again)):
        assert run() == expected
    assert FakeTensorMode.cache_info().hits > 0
