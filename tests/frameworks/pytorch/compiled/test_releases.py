"""A release of torch that lacks something is named, and the step is traced as eager."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.fx_passes import reinplace

from wavecast import doctor
from wavecast.frameworks.pytorch.compiled import tracing
from wavecast.frameworks.pytorch.compiled.tracing import capture
from wavecast.traces.step import Trace

IGNORED = "torch.compile was ignored; the step was traced as eager PyTorch"
TRIED = "torch 2.9 to 2.13 and 2.15"


def make_step() -> Callable[[], Any]:
    layer = nn.Linear(64, 64).cuda()
    call = torch.compile(lambda x: layer(x).relu())
    x = torch.randn(8, 64, device="cuda")
    return lambda: call(x).sum().backward()


def is_compiled(trace: Trace) -> bool:
    return any(call.op.name.startswith("inductor.") for call in trace)


def test_an_interface_that_is_gone_is_named_with_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(reinplace, "inplaceable_ops")
    trace = capture(make_step)
    assert not is_compiled(trace)
    assert IGNORED in trace.notes
    lacks = f"torch {torch.__version__} lacks torch._inductor.fx_passes.reinplace.inplaceable_ops"
    assert f"the step was not compiled: {lacks}; {TRIED} were tried" in trace.notes


def test_a_module_that_is_gone_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing.missing() == []  # others are loaded, which need the module
    monkeypatch.setitem(sys.modules, "torch._inductor.debug", None)
    assert tracing.missing() == ["torch._inductor.debug.DebugContext"]


def test_a_release_that_is_too_old_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_version", lambda: (2, 8))
    trace = capture(make_step)
    assert not is_compiled(trace)
    why = f"torch {torch.__version__} is too old for it; {TRIED} were tried"
    assert f"the step was not compiled: {why}" in trace.notes


def test_a_newer_release_is_followed_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_version", lambda: (2, 99))
    trace = capture(make_step)
    assert is_compiled(trace)
    assert any("newer than the releases with which" in n and TRIED in n for n in trace.notes)


def test_the_installed_release_lacks_nothing_and_was_tried() -> None:
    assert tracing.missing() == []
    assert tracing.untried_note() == ()
    tried = (doctor.OLDEST_TORCH, doctor.NEWEST_TORCH)
    assert tried == (tracing.OLDEST_TORCH, tracing.NEWEST_TORCH)


def imported() -> Iterator[tuple[str, str]]:
    """Modules of torch's compiler and the names that are imported from them."""
    for path in sorted(Path(tracing.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.startswith("torch._"):
                yield from ((module, alias.name) for alias in node.names)


def test_every_private_import_is_listed() -> None:
    listed = [name.replace(":", ".") + "." for name in tracing.REQUIRED]
    imports = list(imported())
    assert len(imports) > 20
    unlisted = [
        f"{m}.{n}" for m, n in imports if not any(x.startswith(f"{m}.{n}.") for x in listed)
    ]
    assert unlisted == []
