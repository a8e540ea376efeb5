"""Deep Speech 2 gets utterances as long as LibriSpeech's, and learns to spell them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from small_models import count, small  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.speech import DeepSpeech2, utterance_seconds  # noqa: E402
from wavecast.targets.targets import resolve  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_most_utterances_take_10_to_16_seconds_and_none_more_than_17() -> None:
    seconds = utterance_seconds(1000)
    assert sum(seconds) / 1000 == pytest.approx(12.5, abs=0.01)
    assert sum(10 <= each <= 16 for each in seconds) / 1000 == pytest.approx(0.75, abs=0.01)
    assert 5 < min(seconds) < 5.5
    assert 16.9 < max(seconds) < 17
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("batch", [1, 2, 4, 16, 64])
def test_every_batch_has_about_the_mean_and_larger_ones_longer_utterances(batch: int) -> None:
    seconds = utterance_seconds(batch)
    assert sum(seconds) / batch == pytest.approx(12.5, rel=0.04 / batch)
    assert max(seconds) < max(utterance_seconds(2 * batch))


def test_a_batch_is_padded_to_its_longest_utterance_in_frames_of_10_ms() -> None:
    with torch.device("meta"):
        spectrograms, text = benchmark("deep-speech-2").make_step(device="meta").inputs
    assert utterance_seconds(16)[0] == pytest.approx(16.25)
    assert spectrograms.shape == (16, 1, 161, 1625)
    assert text.shape == (16, 227)  # 14 letters a second


def test_what_is_behind_the_end_of_an_utterance_is_empty() -> None:
    spectrograms, text = small("deep-speech-2", batch=3).inputs
    frames = [int(seconds * 100) + 1 for seconds in utterance_seconds(3, 0.6)]
    assert [int(each.any(dim=0).sum()) for each in spectrograms[:, 0]] == frames
    assert (text > 0).sum(dim=1).tolist() == [frame * 14 // 100 for frame in frames]
    assert int(text.max()) <= 3


def test_throughput_is_seconds_of_audio() -> None:
    target = resolve("deep-speech-2")
    assert (target.samples, target.unit) == (200, "seconds of audio")
    assert resolve("DeepSpeech2", 3).samples == 38


def test_it_is_as_large_as_published_but_for_what_both_ways_share() -> None:
    with torch.device("meta"):
        model = DeepSpeech2()
    shared = [layer.ways.weight_ih_l0_reverse.numel() for layer in model.recurrent]
    assert (count(model) - sum(shared)) / 1e6 == pytest.approx(36.5, abs=0.1)  # between 35 and 38


def test_it_hears_no_more_than_its_utterance_and_that_both_ways() -> None:
    model = small("deep-speech-2").model.eval()
    sound = torch.randn(1, 1, 17, 60)
    alone, steps = model(sound, [60])
    assert (tuple(alone.shape), steps) == ((30, 1, 4), [30])
    longer = torch.cat([torch.randn(1, 1, 17, 100), torch.nn.functional.pad(sound, (0, 40))])
    beside, steps = model(longer, [100, 60])
    assert steps == [50, 30]
    torch.testing.assert_close(beside[:20, 1], alone[:20, 0], atol=1e-2, rtol=0)
    changed = sound.clone()
    changed[..., 50:] += 1  # what the convolutions see of it reaches back to step 18
    assert not torch.equal(model(changed, [60])[0][10], alone[10])
