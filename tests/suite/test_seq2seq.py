"""TBD's Seq2Seq reads sentences of 20 to 30 words, and learns to say them backwards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from small_models import small  # noqa: E402

from wavecast.suite import benchmark  # noqa: E402
from wavecast.suite.models.translation import sentence_lengths  # noqa: E402
from wavecast.targets.targets import resolve  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")


def test_seq2seq_is_tbds_and_counts_samples() -> None:
    assert benchmark("seq2seq").name == "nmt"
    assert (resolve("nmt").samples, resolve("nmt").unit) == (128, "samples")


def test_sentences_have_20_to_30_words_and_are_the_same_each_time() -> None:
    sources, targets = sentence_lengths(2200, 20, 30)
    assert (sources, targets) == sentence_lengths(2200, 20, 30)
    assert sources == sorted(sources, reverse=True)
    for lengths in (sources, targets):
        often = [lengths.count(words) for words in range(20, 31)]
        assert sum(often) == 2200
        assert often == pytest.approx([200] * 11, rel=0.2)


def test_a_batch_is_padded_to_its_longest_sentence() -> None:
    step = small("nmt", shortest=3, longest=9)
    for held, lengths in zip(step.inputs, [*sentence_lengths(16, 3, 9), None], strict=True):
        if lengths is None:
            assert torch.equal(held > 0, step.inputs[1] > 0)
        else:
            assert held.shape == (16, max(lengths))
            assert (held > 0).sum(dim=1).tolist() == lengths


def test_it_sees_all_of_the_source_and_the_past_of_the_target() -> None:
    model = small("nmt").model.eval()
    source, target = torch.randint(1, 7, (1, 5)), torch.randint(1, 7, (1, 5))
    other_source, other_target = source.clone(), target.clone()
    other_source[0, 4] = source[0, 4] % 6 + 1
    other_target[0, 3] = target[0, 3] % 6 + 1
    logits = model(source, [5], target)
    assert not torch.equal(model(other_source, [5], target)[0, 0], logits[0, 0])
    same = torch.isclose(model(source, [5], other_target), logits, atol=1e-6).all(dim=-1)[0]
    assert same.tolist() == [True] * 3 + [False] * 2


def test_longer_sentences_beside_it_change_nothing() -> None:
    model = small("nmt").model.eval()
    source, target = torch.randint(1, 7, (2, 5)), torch.randint(1, 7, (2, 4))
    source[1, 3:] = 0
    together = model(source, [5, 3], target)
    alone = model(source[1:, :3], [3], target[1:])
    torch.testing.assert_close(together[1:], alone)
