"""Fake tensors as the compiler sees them."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from wavecast.frameworks.pytorch.compiled.dynamo import share_memory


def test_views_stay_views_of_each_other_and_memory_keeps_its_size() -> None:
    with FakeTensorMode():
        base, other = torch.empty(4, 6), torch.empty(4, 6)
        other.untyped_storage().resize_(0)  # as of a weight that is not gathered yet
    copies = []
    for value in (base, base.t()[1:], other):
        with no_dispatch():
            copy = torch.empty_strided(value.shape, value.stride(), device="meta")
            share_memory(copy, value)
        assert (copy.shape, copy.stride()) == (value.shape, value.stride())
        copies.append(copy)
    whole, view, gathered = (copy.untyped_storage() for copy in copies)
    assert whole._cdata == view._cdata == base.untyped_storage()._cdata
    assert copies[1].storage_offset() == 1
    assert gathered.nbytes() == 96
    assert other.untyped_storage().nbytes() == 0
