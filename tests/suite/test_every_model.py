"""The suite's models are the published ones, train in every precision, and learn."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from typing import Any

import pytest
from over_all import more
from small_models import SMALL, assert_learned, count, losses_of, small

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import wavecast  # noqa: E402
from wavecast.errors import InvalidInput, MissingExtra, UnknownName  # noqa: E402
from wavecast.ops import cost_of  # noqa: E402
from wavecast.suite import PRECISIONS, Benchmark, benchmark, benchmarks  # noqa: E402
from wavecast.suite.models.translation import sinusoids  # noqa: E402
from wavecast.suite.tags import TAGS  # noqa: E402
from wavecast.suite.training import Minimizer, float32_products  # noqa: E402

pytestmark = pytest.mark.usefixtures("the_same_numbers_on_one_thread")

every_benchmark = pytest.mark.parametrize("model", benchmarks(), ids=lambda model: model.name)


# The registry


def test_listing_the_suite_does_not_import_torch() -> None:
    code = (
        "import sys, wavecast.suite as suite; suite.benchmarks(); suite.benchmark('bert');"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tbds_eight_models_have_its_names_data_sets_and_layers() -> None:
    tbds = {model.tags.tbd: model.tags for model in benchmarks() if model.tags.tbd}
    assert len(tbds) == 8
    assert all(tags.dataset and tags.layers for tags in tbds.values())
    assert (tbds["WGAN"].dataset, tbds["WGAN"].layers) == ("Downsampled ImageNet", "14 + 14")
    assert set(TAGS) == {model.name for model in benchmarks()}


def test_names_are_unique_and_found() -> None:
    names = [model.name for model in benchmarks()]
    assert len(set(names)) == len(names)
    assert [benchmark(name).name for name in names] == names


def test_names_are_found_as_people_type_them() -> None:
    assert benchmark("bert") is benchmark("bert-base")
    assert benchmark("ResNet-50") is benchmark("resnet50")
    assert benchmark("gpt2_medium") is benchmark("gpt2-medium")
    assert benchmark("InceptionV3") is benchmark("inception-v3")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="resnet50"):
        benchmark("resnet5")
    with pytest.raises(UnknownName, match="known: resnet50, inception-v3, bert-base"):
        benchmark("zzz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "at least 1, not 0"),
        ({"precision": "int3"}, "'int3'; known: fp32, tf32, bf16, fp16"),
        ({"pixels": 3}, "unknown option pixels; known: device, image"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        benchmark("resnet50").make_step(**arguments)


@every_benchmark
def test_the_sizes_of_a_model_are_options_that_it_takes(model: Benchmark) -> None:
    sizes = model.sizes()
    assert sizes
    assert all(type(size) is int and size > 0 for size in sizes.values())
    options = list(inspect.signature(model._function()).parameters)
    assert set(sizes) <= set(options[2:]) - {"device"}


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("gpt2", {"sequence": 1025}, "1 to 1024 tokens, not 1025"),
        ("dcgan", {"image": 48}, "not 48"),
        ("wgan-gp", {"image": 48}, "not 48"),
        ("gnmt", {"layers": 1}, "at least 2 layers, not 1"),
        ("transformer", {"heads": 8, "width": 100}, "a multiple of the 8 heads, not 100"),
        ("inception-v3", {"image": 224}, "not 16 of 224"),
        ("inception-v3", {"batch": 1, "image": 299}, "not 1 of 299"),
        ("alexnet", {"image": 66}, "at least 67 pixels, not 66"),
        ("googlenet", {"image": 79}, "at least 80 pixels, not 79"),
        ("vgg19", {"image": 31}, "at least 32 pixels, not 31"),
        ("vit", {"patch": 16, "image": 230}, "a multiple of 16 pixels wide, not 230"),
        ("vit", {"heads": 12, "width": 100}, r"a multiple of 12 \(heads\), not 100"),
        ("llama-1b", {"heads": 5}, "the width, 32, must divide into"),
        ("llama-1b", {"key_value_heads": 3}, "the width, 32, must divide into"),
        ("llama-1b", {"heads": 32}, "the width, 32, must divide into"),
        ("latent-diffusion", {"latent": 9}, "its side must be a multiple of 2, not 9"),
        ("latent-diffusion", {"width": 48}, r"32 \(groups\) and 2 \(heads\), not 48"),
        ("latent-diffusion", {"heads": 3}, r"32 \(groups\) and 3 \(heads\), not 32"),
        ("graphsage", {"batch": 1}, "at least 2 nodes, because of the batch norm, not 1"),
        ("dlrm", {"tables": ()}, "at least one value"),
        ("dlrm", {"tables": (5, 0)}, "at least one value"),
        ("a3c", {"image": 19}, "at least 20 pixels wide, not 19"),
        ("deep-speech-2", {"seconds": 0}, "more than 0 seconds, not 0"),
        ("nmt", {"shortest": 0, "longest": 3}, "sentences cannot have 0 to 3 words"),
        ("nmt", {"shortest": 4, "longest": 3}, "sentences cannot have 4 to 3 words"),
    ],
)
def test_sizes_that_do_not_fit_a_model_are_refused(
    name: str, sizes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        small(name, **sizes)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wavecast.suite.models.vision", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"wavecast\[torch\]"):
        benchmark("resnet50").make_step()


# Every model


@every_benchmark
def test_it_has_the_published_parameters(model: Benchmark) -> None:
    with torch.device("meta"):
        step = model.make_step(batch=2, device="meta")
    assert count(step.model) == model.published_parameters


@every_benchmark
def test_its_tokens_are_those_of_its_default_sequence(model: Benchmark) -> None:
    if model.unit == "tokens":
        with torch.device("meta"):
            step = model.make_step(batch=1, device="meta")
        assert step.inputs[0].numel() == model.units_per_sample
    elif model.unit == "samples":
        assert model.units_per_sample == 1
    if model.tags.tokens_per_sample and model.name != "nmt":  # its sentences have 20 to 30 words
        with torch.device("meta"):
            step = model.make_step(batch=1, device="meta")
        assert step.inputs[0].shape[1] == model.tags.tokens_per_sample


@every_benchmark
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])  # not every CPU has fp16
def test_a_step_trains_every_parameter_in_each_precision(model: Benchmark, precision: str) -> None:
    step = small(model.name, batch=4, precision=precision)
    before = {name: value.clone() for name, value in step.model.named_parameters()}
    losses = [step(), step()]
    assert all(loss.shape == () and loss.isfinite() for loss in losses)
    assert not losses[0].requires_grad
    after = dict(step.model.named_parameters())
    assert [name for name in before if torch.equal(before[name], after[name])] == []


@every_benchmark
@pytest.mark.parametrize("precision", ["fp32", *more("bf16", "fp16")])
def test_it_traces_without_a_gpu_and_every_op_has_a_cost(model: Benchmark, precision: str) -> None:
    traced = wavecast.trace(lambda: model.make_step(2, precision, **SMALL[model.name]))
    assert [call.op.name for call in traced.calls if cost_of(call.op) is None] == []


@pytest.mark.gpu
@every_benchmark
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_full_step_runs_on_a_gpu(model: Benchmark, precision: str) -> None:
    step = model.make_step(precision=precision)
    assert all(loss.is_cuda and loss.isfinite() for loss in (step(), step()))


# Comparison with models of other authors


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bert-base", {}),
        (
            "bert-large",
            {
                "num_hidden_layers": 24,
                "hidden_size": 1024,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
        ),
    ],
)
def test_bert_is_as_large_as_in_transformers(
    transformers: Any, name: str, size: dict[str, int]
) -> None:
    with torch.device("meta"):
        theirs = transformers.BertForPreTraining(transformers.BertConfig(**size))
    assert count(theirs) == benchmark(name).published_parameters


@pytest.mark.parametrize(
    ("name", "size"), [("gpt2", {}), ("gpt2-medium", {"n_layer": 24, "n_embd": 1024, "n_head": 16})]
)
def test_gpt2_is_as_large_as_in_transformers(
    transformers: Any, name: str, size: dict[str, int]
) -> None:
    with torch.device("meta"):
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size))
    assert count(theirs) == benchmark(name).published_parameters


def test_gpt2_computes_what_transformers_computes(transformers: Any) -> None:
    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 20, "n_positions": 512}
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    ).eval()
    ours = small("gpt2", context=512).model.eval()
    body = theirs.transformer
    pairs = [(ours.words, body.wte), (ours.positions, body.wpe), (ours.norm, body.ln_f)]
    for mine, their in zip(ours.blocks, body.h, strict=True):
        pairs += [
            (mine.attention_norm, their.ln_1),
            (mine.attention.query_key_value, their.attn.c_attn),
            (mine.attention.project, their.attn.c_proj),
            (mine.feed_forward_norm, their.ln_2),
            (mine.feed_forward[0], their.mlp.c_fc),
            (mine.feed_forward[2], their.mlp.c_proj),
        ]
    for mine, their in pairs:
        transposed = isinstance(mine, torch.nn.Linear)  # theirs is a "Conv1D"
        mine.weight = torch.nn.Parameter(their.weight.T if transposed else their.weight)
        if hasattr(their, "bias"):
            mine.bias = their.bias
    tokens = torch.randint(20, (3, 12))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)


def test_bert_computes_what_transformers_computes(transformers: Any) -> None:
    size = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 20}
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(**size, intermediate_size=128)
    ).eval()
    ours = small("bert").model.eval()
    body, heads = theirs.bert, theirs.cls
    ours.word_bias = heads.predictions.bias
    pairs = [
        (ours.words, body.embeddings.word_embeddings),
        (ours.positions, body.embeddings.position_embeddings),
        (ours.segments, body.embeddings.token_type_embeddings),
        (ours.norm, body.embeddings.LayerNorm),
        (ours.pooler[0], body.pooler.dense),
        (ours.next_sentence, heads.seq_relationship),
        (ours.transform[0], heads.predictions.transform.dense),
        (ours.transform[2], heads.predictions.transform.LayerNorm),
    ]
    for mine, their in zip(ours.blocks, body.encoder.layer, strict=True):
        pairs += [
            (mine.attention.project, their.attention.output.dense),
            (mine.attention_norm, their.attention.output.LayerNorm),
            (mine.feed_forward[0], their.intermediate.dense),
            (mine.feed_forward[2], their.output.dense),
            (mine.feed_forward_norm, their.output.LayerNorm),
        ]
        parts = [getattr(their.attention.self, part) for part in ("query", "key", "value")]
        joined = mine.attention.query_key_value
        joined.weight = torch.nn.Parameter(torch.cat([part.weight for part in parts]))
        joined.bias = torch.nn.Parameter(torch.cat([part.bias for part in parts]))
    for mine, their in pairs:
        mine.weight = their.weight
        if hasattr(their, "bias"):
            mine.bias = their.bias
    tokens, segments = torch.randint(20, (3, 12)), torch.randint(2, (3, 12))
    words, follows = ours(tokens, segments, torch.arange(36))
    expected = theirs(tokens, token_type_ids=segments)
    torch.testing.assert_close(words, expected.prediction_logits.flatten(0, 1))
    torch.testing.assert_close(follows, expected.seq_relationship_logits)


def test_inception_has_the_published_size_without_its_auxiliary_head() -> None:
    with torch.device("meta"):
        model = benchmark("inception-v3").make_step(device="meta").model
    assert count(model) - count(model.auxiliary) == 23_834_568


def test_inception_has_the_published_grids() -> None:
    with torch.device("meta"):
        model = benchmark("inception-v3").make_step(device="meta").model.eval()
        x, shapes = torch.empty(2, 3, 299, 299), []
        for layer in [*model.lower, *model.upper]:
            x = layer(x)
            shapes.append(tuple(x.shape[1:]))
    mixed = shapes[-11:]
    assert mixed[:3] == [(256, 35, 35), (288, 35, 35), (288, 35, 35)]
    assert mixed[3:8] == [(768, 17, 17)] * 5
    assert mixed[8:] == [(1280, 8, 8), (2048, 8, 8), (2048, 8, 8)]


def test_inception_multiplies_as_often_as_in_torchvision() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = benchmark("inception-v3").make_step(device="meta").model.eval()
        model(torch.empty(1, 3, 299, 299))
    assert counter.get_total_flops() / 2 == pytest.approx(5.713e9, rel=1e-4)  # its model card


def test_the_transformer_computes_what_torch_computes() -> None:
    ours = small("transformer").model.eval()
    sizes: dict[str, Any] = {"dim_feedforward": 128, "dropout": 0.0, "batch_first": True}
    nn = torch.nn
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, **sizes), 2)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 2, **sizes), 2)
    my_layers, their_layers = [*ours.encoder, *ours.decoder], [*encoder.layers, *decoder.layers]
    for mine, their in zip(my_layers, their_layers, strict=True):
        pairs = [(mine.attention, their.self_attn)]
        norms = [mine.attention_norm, mine.feed_forward_norm]
        if hasattr(their, "multihead_attn"):
            pairs.append((mine.source_attention, their.multihead_attn))
            norms.insert(1, mine.source_attention_norm)
        for my_attention, their_attention in pairs:
            joined = torch.cat([my_attention.query.weight, my_attention.key_value.weight])
            their_attention.in_proj_weight = nn.Parameter(joined)
            their_attention.out_proj.weight = my_attention.project.weight
        their.linear1, their.linear2 = mine.feed_forward[0], mine.feed_forward[2]
        for place, norm in enumerate(norms, start=1):
            setattr(their, f"norm{place}", norm)
    source, target = torch.randint(10, (3, 5)), torch.randint(10, (3, 5))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad():
        memory = encoder.eval()(ours._embed(source))
        decoded = decoder.eval()(ours._embed(target), memory, tgt_mask=causal, tgt_is_causal=True)
        expected = decoded @ ours.words.weight.T
        torch.testing.assert_close(ours(source, target), expected)


def test_the_transformer_counts_places_in_sines_and_cosines() -> None:
    places = sinusoids(50, 512)
    assert places.shape == (50, 512)
    assert places[0].tolist() == [0.0, 1.0] * 256
    angle = 7 / 10_000 ** (20 / 512)
    expected = torch.tensor([math.sin(angle), math.cos(angle)])
    torch.testing.assert_close(places[7, 20:22], expected)


def test_dcgan_has_the_published_halves() -> None:
    with torch.device("meta"):
        both = benchmark("dcgan").make_step(device="meta").model
    assert (count(both["generator"]), count(both["discriminator"])) == (3_576_704, 2_765_568)


def test_dcgan_makes_images_of_the_size_it_judges() -> None:
    step = small("dcgan", batch=2)
    images = step.model["generator"](torch.randn(2, 10, 1, 1))
    assert images.shape == step.inputs[0].shape
    assert step.model["discriminator"](images).shape == (2, 1, 1, 1)


# Which inputs an output depends on


def test_gpt2_sees_the_past_only() -> None:
    model = small("gpt2").model.eval()
    tokens = torch.randint(20, (1, 12))
    changed = tokens.clone()
    changed[0, 6] = (tokens[0, 6] + 1) % 20
    same = torch.isclose(model(tokens), model(changed), atol=1e-6).all(dim=-1)[0]
    assert same.tolist() == [True] * 6 + [False] * 6


def test_bert_sees_both_sides() -> None:
    model = small("bert-base").model.eval()
    tokens, segments = torch.randint(20, (1, 12)), torch.zeros(1, 12, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 6] = (tokens[0, 6] + 1) % 20
    everywhere = torch.arange(12)
    before, after = model(tokens, segments, everywhere)[0], model(changed, segments, everywhere)[0]
    assert not torch.isclose(before, after, atol=1e-6).all(dim=-1).any()


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
def test_a_translator_sees_all_of_the_source_and_the_past_of_the_target(name: str) -> None:
    model = small(name).model.eval()
    source, target = torch.randint(10, (1, 5)), torch.randint(10, (1, 5))
    other_source, other_target = source.clone(), target.clone()
    other_source[0, 4] = (source[0, 4] + 1) % 10
    other_target[0, 3] = (target[0, 3] + 1) % 10
    logits = model(source, target)
    assert not torch.equal(model(other_source, target)[0, 0], logits[0, 0])
    same = torch.isclose(model(source, other_target), logits, atol=1e-6).all(dim=-1)[0]
    assert same.tolist() == [True] * 3 + [False] * 2


# Learning: each model trains on fresh data that follow a rule. Guessing has a loss of log(choices).
# The loss must fall below half of that, which it also does with other seeds than ours.


@pytest.mark.slow
def test_inception_learns_which_colour_is_brightest_with_both_heads() -> None:
    step = small("inception-v3", batch=9, dropout=0.0)
    # Every batch has as many images of each colour, because the norms see only the batch.
    colours = torch.arange(9) % 3

    def refill() -> tuple[Any, ...]:
        images = torch.randn(9, 3, 299, 299)
        images[torch.arange(9), colours] += 1
        return images, colours

    losses = losses_of(step, 22, refill)
    assert_learned(losses, guessing=1.4 * math.log(3))


@pytest.mark.slow
def test_bert_learns_hidden_words_and_whether_the_sentences_are_the_same() -> None:
    step = small("bert", width=64, vocabulary=8, dropout=0.0, learning_rate=3e-3)
    _, segments, masked, _, _ = (held.clone() for held in step.inputs)

    def refill() -> tuple[Any, ...]:
        same, word = torch.randint(2, (16,)), torch.randint(1, 8, (16,))
        words = torch.stack([word, torch.where(same == 1, word, word % 7 + 1)], dim=1)
        tokens = words.repeat_interleave(6, dim=1).flatten()
        hidden = tokens.index_fill(0, masked, 0).view(16, 12)
        return hidden, segments, masked, tokens[masked], same

    losses = losses_of(step, 200, refill)
    assert_learned(losses, guessing=math.log(7) + math.log(2))


@pytest.mark.slow
def test_gpt2_learns_to_count() -> None:
    step = small("gpt2", learning_rate=3e-3)

    def refill() -> tuple[Any, ...]:
        text = (torch.randint(20, (16, 1)) + torch.arange(13)) % 20
        return text[:, :-1], text[:, 1:]

    losses = losses_of(step, 100, refill)
    assert_learned(losses, guessing=math.log(20))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "learning_rate"), [("gnmt", 1e-2), ("transformer", 1e-3)])
def test_a_translator_learns_to_read_backwards(name: str, learning_rate: float) -> None:
    sizes: dict[str, Any] = {"layers": 2, "width": 64, "vocabulary": 6, "sequence": 3}
    step = small(name, batch=32, dropout=0.0, learning_rate=learning_rate, **sizes)

    def refill() -> tuple[Any, ...]:
        source = torch.randint(6, (32, 3))
        translation = source.flip(1)
        return source, torch.cat([torch.zeros(32, 1), translation[:, :-1]], dim=1), translation

    losses = losses_of(step, 200, refill)
    assert_learned(losses, guessing=math.log(6))


@pytest.mark.slow
def test_dcgan_learns_the_brightness_of_the_real_images() -> None:
    step = small("dcgan", image=8, width=32)
    noise = torch.randn(64, 10, 1, 1)

    def refill() -> tuple[Any, ...]:
        return ((0.6 + 0.1 * torch.randn(16, 3, 8, 8)).clamp(-1, 1),)

    def brightness() -> float:
        with torch.no_grad():
            return float(step.model["generator"](noise).mean())

    assert brightness() == pytest.approx(0.0, abs=0.1)
    losses_of(step, 150, refill)
    assert brightness() == pytest.approx(0.6, abs=0.15)


# How they train


def switches() -> tuple[Any, ...]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    new = (matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision)
    return (matmul.allow_tf32, cudnn.allow_tf32, *new)


def test_tf32_is_on_or_off_in_the_step_only() -> None:
    before = switches()
    with float32_products("tf32"):
        assert switches() == (True, True, "tf32", "tf32", "tf32")
        with float32_products("fp32"):
            assert switches() == (False, False, "ieee", "ieee", "ieee")
    with float32_products("bf16"):
        assert switches() == before
    assert switches() == before


def test_gradients_are_clipped_after_they_are_unscaled() -> None:
    for precision in ("fp32", "fp16"):
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        Minimizer(lambda w=weight: 100 * w.sum(), optimizer, precision, "cpu", clip_norm=0.5)()
        assert weight.item() == pytest.approx(0.5, rel=1e-3)


def test_every_function_takes_the_batch_and_the_precision_first() -> None:
    for model in benchmarks():
        parameters = inspect.signature(model._function()).parameters
        assert list(parameters)[:3] == ["batch", "precision", "device"]
