"""A3C's actors see four pictures, play, and learn which action is rewarded."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import small  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.reinforcement import Moment, advantage_loss, follow_the_light  # noqa: E402
from wavecast.targets.targets import resolve  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_sixteen_actors_see_four_pictures_of_84_by_84_and_count_their_frames() -> None:
    with torch.device("meta"):
        (seen,) = benchmark("a3c").make_step(device="meta").inputs
    assert (seen.shape, seen.dtype) == ((16, 4, 84, 84), torch.uint8)
    assert (resolve("a3c").samples, resolve("a3c").unit) == (80, "frames")


def lit(frames: Any, actions: int) -> Any:
    return frames[:, -1].float().mean(dim=2).argmax(dim=1) * actions // frames.shape[-1]


def test_the_action_of_the_lit_band_is_paid_and_pictures_move_on() -> None:
    frames, _, _ = follow_the_light(torch.zeros(50, 4, 84, 84).byte(), torch.zeros(50), 6)
    assert set(lit(frames, 6).tolist()) == set(range(6))
    assert (frames[:, -1] == 255).float().mean().item() == pytest.approx(1 / 6)
    after, right, alive = follow_the_light(frames, lit(frames, 6), 6)
    assert right.tolist() == [1.0] * 50
    assert torch.equal(after[:, :3], frames[:, 1:])
    assert set(alive.tolist()) <= {0.0, 1.0}
    _, wrong, _ = follow_the_light(frames, lit(frames, 6) + 1, 6)
    assert wrong.tolist() == [0.0] * 50


def test_returns_reach_back_to_the_end_of_an_episode() -> None:
    half = torch.tensor([[0.5, 0.5]]).log()
    action = torch.tensor([[0]])

    def moment(reward: float, alive: float) -> Moment:
        rewards, lives = torch.tensor([reward]), torch.tensor([alive])
        return Moment(half, torch.zeros(1), action, rewards, lives)

    moments = [moment(1.0, 1.0), moment(2.0, 0.0), moment(4.0, 1.0)]
    # The value after the last step is 8, so the last return is 4 + 0.5 · 8 = 8. The episode ends
    # before that step, so the returns before it are 2 and 1 + 1 = 2.
    gains = [2.0, 2.0, 8.0]
    log2 = float(torch.tensor(2.0).log())
    expected = sum(gain * log2 + gain**2 - 0.01 * log2 for gain in gains)
    loss = advantage_loss(moments, torch.tensor([8.0]), discount=0.5, bonus=0.01)
    assert float(loss) == pytest.approx(expected)


def test_the_actors_play_on_where_they_stopped() -> None:
    step = small("a3c", steps=3)
    before = step.inputs[0].clone()
    step()
    after = step.inputs[0]
    assert torch.equal(after[:, 0], before[:, 3])
    assert set(after[:, 1:].unique().tolist()) == {0, 255}
