"""Cross entropy whose gradient takes the place of the softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parallel_steps import small_gpt2_step

import wavecast
from wavecast.errors import InvalidInput
from wavecast.footprint.memory import peak_bytes
from wavecast.parallel.fused_kernels import with_fused_loss
from wavecast.traces.step import Trace


def test_one_pass_writes_over_the_softmax() -> None:
    before = small_gpt2_step()
    after = with_fused_loss(before)
    assert len(before) - len(after) == 1
    [softmax] = [call for call in after if call.op.base == "aten._log_softmax"]
    [gradient] = [call for call in after if call.op.base == "aten.mul_"]
    assert gradient.writes == gradient.reads == softmax.writes
    nbytes = softmax.op.outputs[0].nbytes
    held = after.allocations[after.values[softmax.writes[0]].allocation or 0]
    readers = [at for at, call in enumerate(after) if softmax.writes[0] in call.reads]
    assert held.freed is not None
    assert held.freed > readers[-1]
    assert sum(a.nbytes for a in before.allocations) - sum(
        a.nbytes for a in after.allocations
    ) == pytest.approx(2 * nbytes)
    assert peak_bytes(after.allocations) <= peak_bytes(before.allocations)


def test_a_step_without_cross_entropy_is_refused() -> None:
    def make_step() -> Any:
        net, x = torch.nn.Linear(8, 8, device="cuda"), torch.randn(4, 8, device="cuda")
        return lambda: net(x).sum().backward()

    trace = wavecast.trace(make_step)
    assert isinstance(trace, Trace)
    with pytest.raises(InvalidInput, match="fused_loss"):
        with_fused_loss(trace)
