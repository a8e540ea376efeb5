"""Strategies, and what is said of those that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from wavecast.errors import InvalidInput
from wavecast.parallel.strategy import Parallel, RankAxis


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": 0}, "data is 0; it must be a whole number of at least 1"),
        ({"tensor": True}, "tensor is True"),
        ({"shard": 4}, "shard is 4; it is a ZeRO stage"),
        ({"data": 8, "shard": 3, "shard_group": 3}, "possible sizes are 1, 2, 4, 8"),
        ({"data": 8, "shard_group": 2}, "needs shard=1, 2 or 3"),
        ({"data": 8, "shard": 1, "shard_group": 1}, "shards nothing among data=8 ranks"),
        ({"sequence": True}, "needs tensor above 1"),
        ({"virtual": 2}, "needs pipeline above 1"),
        ({"pipeline": 4, "virtual": 2, "microbatches": 6}, "a multiple of pipeline=4, not 6"),
        ({"data": 6, "nodes": 4}, "possible numbers are 1, 2, 3, 6"),
        ({"data": 6, "expert": 4}, "possible sizes are 1, 2, 3, 6"),
        ({"schedule": "other"}, "the schedules are 1f1b, gpipe, zero-bubble"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_fit(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Parallel(**wrong)


def test_ranks_are_numbered_as_in_megatron() -> None:
    strategy = Parallel(data=4, tensor=2, pipeline=3, context=2, shard=3, shard_group=2)
    assert strategy.gpus == 48
    assert strategy.axes == {
        "tensor": RankAxis(2, 1),
        "context": RankAxis(2, 2),
        "data": RankAxis(8, 2),
        "shard": RankAxis(4, 2),
        "replica": RankAxis(2, 8),
        "expert": RankAxis(1, 1),
        "expert_replica": RankAxis(8, 1),
        "pipeline": RankAxis(3, 16),
    }
