"""Training steps whose predicted memory is compared with measured memory.

The same code is traced without a GPU and run on one. The steps cover models of the suite, of
torchvision and of transformers; float32, TF32, bfloat16 and float16; SGD, Adam and AdamW, looped,
foreach and fused; checkpointing, accumulation, recurrent layers, GANs and detection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.steps import reality as earlier
from lab.steps.libraries import import_torchvision
from wavecast import suite
from wavecast.suite.training import autocast

MakeStep = Callable[[], Callable[[], Any]]


@dataclass(frozen=True)
class MemoryStep:
    """A named step. `gib` is the most memory it may take, so that several can share a GPU."""

    name: str
    make: MakeStep
    gib: float = 8.0


def train(
    model: nn.Module,
    loss: Callable[[nn.Module], Any],
    optimizer: str = "adamw",
    precision: str = "fp32",
    accumulate: int = 1,
    **options: Any,
) -> Callable[[], None]:
    """An ordinary training step around a loss, with torch's defaults."""
    chosen = OPTIMIZERS[optimizer](model.parameters(), **options)
    scaler = torch.amp.GradScaler("cuda") if precision == "fp16" else None

    def step() -> None:
        chosen.zero_grad()
        for _ in range(accumulate):
            with autocast(precision, "cuda"):
                value = loss(model)
            (value if scaler is None else scaler.scale(value)).backward()
        if scaler is None:
            chosen.step()
        else:
            scaler.step(chosen)
            scaler.update()

    return step


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "fused": partial(torch.optim.AdamW, fused=True),
    "looped": partial(torch.optim.AdamW, foreach=False),
    "amsgrad": partial(torch.optim.AdamW, amsgrad=True),
    "rmsprop": torch.optim.RMSprop,
}


def vision(
    name: str,
    batch: int,
    precision: str = "fp32",
    optimizer: str = "momentum",
    channels_last: bool = False,
    size: int = 224,
    **options: Any,
) -> Callable[[], None]:
    """A classifier of torchvision."""
    extra = {"aux_logits": False} if name == "googlenet" else {}
    model = getattr(import_torchvision().models, name)(weights=None, **extra).cuda()
    images = torch.randn(batch, 3, size, size, device="cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    return train(
        model, lambda m: F.cross_entropy(m(images), labels), optimizer, precision, **options
    )


def segmentation(batch: int, precision: str = "fp32") -> Callable[[], None]:
    """A segmentation network of torchvision: FCN with a ResNet-50."""
    networks = import_torchvision().models.segmentation
    model = networks.fcn_resnet50(weights=None, weights_backbone=None).cuda()
    images = torch.randn(batch, 3, 256, 256, device="cuda")
    labels = torch.zeros(batch, 256, 256, dtype=torch.long, device="cuda")
    return train(model, lambda m: F.cross_entropy(m(images)["out"], labels), "momentum", precision)


def language(
    architecture: str,
    config: Callable[[Any], Any],
    batch: int,
    length: int,
    precision: str = "fp32",
    optimizer: str = "adamw",
    checkpointing: bool = False,
    dtype: Any = None,
    **options: Any,
) -> Callable[[], None]:
    """A model of transformers, which computes its loss from labels."""
    import transformers

    model = getattr(transformers, architecture)(config(transformers))
    model = model.to(dtype).cuda().train() if dtype is not None else model.cuda().train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if "vocab_size" in model.config.to_dict():
        tokens = torch.randint(5, 1000, (batch, length), device="cuda")
        inputs = {"input_ids": tokens, "labels": tokens}
    else:
        images = torch.randn(batch, 3, 224, 224, device="cuda")
        inputs = {"pixel_values": images, "labels": torch.zeros(batch, device="cuda").long()}
    return train(model, lambda m: m(**inputs).loss, optimizer, precision, **options)


def bert(t: Any) -> Any:
    """BERT-base."""
    return t.BertConfig()


def gpt2(t: Any) -> Any:
    """GPT-2 small."""
    return t.GPT2Config(use_cache=False)


def llama(t: Any) -> Any:
    """A Llama of 0.4 billion parameters with grouped-query attention."""
    return t.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        use_cache=False,
    )


def t5(t: Any) -> Any:
    """T5-small."""
    return t.T5Config(decoder_start_token_id=0, pad_token_id=0, use_cache=False)


def vit(t: Any) -> Any:
    """ViT-base."""
    return t.ViTConfig(num_labels=1000)


def opt(t: Any) -> Any:
    """OPT of 125 million parameters."""
    return t.OPTConfig(use_cache=False)


def perceptron(batch: int, optimizer: str, precision: str = "fp32", **options: Any) -> Any:
    """Eight wide linear layers, with far more memory for weights than for activations."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    rows = torch.randn(batch, 4096, device="cuda")
    return train(model, lambda m: m(rows).square().mean(), optimizer, precision, **options)


def blocks(batch: int, precision: str, checkpointed: bool) -> Any:
    """Twelve encoder layers of torch, each checkpointed or not."""
    layer = partial(nn.TransformerEncoderLayer, 768, 12, 3072, batch_first=True, norm_first=True)
    model = nn.ModuleList(layer() for _ in range(12)).cuda()
    tokens = torch.randn(batch, 512, 768, device="cuda")

    def loss(layers: Any) -> Any:
        x = tokens
        for block in layers:
            x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
        return x.square().mean()

    return train(model, loss, "adamw", precision)


def lstm(batch: int, precision: str, hidden: int = 1024) -> Any:
    """A three-layer LSTM language model over 128 tokens."""
    embedding, rnn = nn.Embedding(20000, hidden), nn.LSTM(hidden, hidden, 3, dropout=0.2)
    model = nn.ModuleDict({"in": embedding, "rnn": rnn, "out": nn.Linear(hidden, 20000)}).cuda()
    tokens = torch.randint(0, 20000, (128, batch), device="cuda")

    def loss(m: Any) -> Any:
        scores = m["out"](m["rnn"](m["in"](tokens))[0])
        return F.cross_entropy(scores.flatten(0, 1), tokens.flatten())

    return train(model, loss, "adam", precision)


def of_suite(name: str, batch: int, precision: str) -> Any:
    """A step of the suite."""
    return suite.benchmark(name).make_step(batch, precision)


def _earlier(name: str, batch: int, precision: str) -> Any:
    return earlier.STEPS[name][0](batch, precision)


_SUITE = (
    *(("resnet50", 32, "tf32"), ("resnet50", 64, "fp16"), ("inception-v3", 32, "tf32")),
    *(("bert-base", 16, "fp32"), ("bert-large", 8, "bf16"), ("gpt2", 4, "fp16")),
    *(("gpt2-medium", 2, "bf16"), ("gnmt", 64, "fp32"), ("gnmt", 32, "bf16")),
    *(("transformer", 32, "fp32"), ("dcgan", 64, "tf32"), ("llama-1b", 1, "bf16")),
    *(("latent-diffusion", 1, "bf16"), ("dlrm", 1024, "fp32"), ("graphsage", 84672, "fp32")),
    *(("deep-speech-2", 8, "bf16"), ("wgan-gp", 32, "bf16"), ("a3c", 16, "fp32")),
    *(("nmt", 64, "bf16"), ("alexnet", 128, "bf16"), ("googlenet", 32, "tf32")),
    *(("vgg16", 32, "bf16"), ("vgg19", 32, "tf32"), ("vit", 32, "bf16")),
    *(("faster-rcnn", 1, "bf16"), ("faster-rcnn", 1, "tf32"), ("resnet50", 16, "fp32")),
)


def _steps() -> Iterator[MemoryStep]:
    make: MakeStep
    for name, batch, precision in _SUITE:
        yield MemoryStep(
            f"suite {name} b{batch} {precision}", partial(of_suite, name, batch, precision), 20
        )
    for name, batch, precision in (
        *(("mobilenet_v3", 32, "fp32"), ("mobilenet_v3", 64, "bf16")),
        *(("lstm", 64, "fp32"), ("gru", 64, "bf16")),
    ):
        yield MemoryStep(
            f"own {name} b{batch} {precision}", partial(_earlier, name, batch, precision), 4
        )
    for name, batch, precision, more in (
        ("resnet18", 64, "fp32", {}),
        ("resnet18", 64, "bf16", {"channels_last": True, "optimizer": "sgd"}),
        ("resnet50", 32, "bf16", {"channels_last": True}),
        ("resnet50", 32, "fp16", {"accumulate": 2}),
        ("resnet101", 16, "fp32", {"optimizer": "adam"}),
        ("mobilenet_v3_large", 64, "fp32", {"optimizer": "rmsprop"}),
        ("efficientnet_b0", 32, "bf16", {}),
        ("convnext_tiny", 32, "bf16", {"optimizer": "adamw"}),
        ("convnext_tiny", 16, "fp32", {"optimizer": "fused"}),
        ("swin_t", 32, "fp32", {"optimizer": "adamw"}),
        ("densenet121", 16, "fp32", {}),
        ("regnet_y_1_6gf", 32, "bf16", {}),
        ("vgg11_bn", 32, "fp32", {"optimizer": "sgd"}),
        ("squeezenet1_1", 64, "bf16", {}),
        ("shufflenet_v2_x1_0", 128, "fp32", {}),
        ("vit_b_16", 32, "fp16", {"optimizer": "adamw"}),
    ):
        make = partial(vision, name, batch, precision, **more)
        label = " ".join(["torchvision", name, f"b{batch}", precision, *map(str, more.values())])
        yield MemoryStep(label, make, 5)
    yield MemoryStep("torchvision fcn_resnet50 b8 bf16", partial(segmentation, 8, "bf16"), 4)
    for label, make in _language():
        yield MemoryStep(f"transformers {label}", make, 11 if "llama" in label else 7)
    for optimizer in ("sgd", "momentum", "adam", "fused", "looped", "amsgrad"):
        yield MemoryStep(f"perceptron {optimizer} fp32", partial(perceptron, 256, optimizer), 4)
    yield MemoryStep(
        "perceptron adamw bf16 accumulated",
        partial(perceptron, 256, "adamw", "bf16", accumulate=4),
        6,
    )
    for checkpointed in (False, True):
        name = f"blocks b8 bf16{' checkpointed' if checkpointed else ''}"
        yield MemoryStep(name, partial(blocks, 8, "bf16", checkpointed), 4)
    yield MemoryStep("lstm language b64 fp32", partial(lstm, 64, "fp32"), 5)
    yield MemoryStep("lstm language b64 bf16", partial(lstm, 64, "bf16"), 5)


def _language() -> Iterator[tuple[str, MakeStep]]:
    masked, causal = "BertForMaskedLM", "GPT2LMHeadModel"
    yield "bert b16x256 fp32", partial(language, masked, bert, 16, 256)
    yield "bert b16x256 bf16 fused", partial(language, masked, bert, 16, 256, "bf16", "fused")
    yield "bert b16x256 fp16", partial(language, masked, bert, 16, 256, "fp16")
    yield (
        "bert b16x256 bf16 checkpointed",
        partial(language, masked, bert, 16, 256, "bf16", checkpointing=True),
    )
    yield "gpt2 b4x512 fp32 sgd", partial(language, causal, gpt2, 4, 512, "fp32", "sgd")
    yield "gpt2 b4x512 bf16", partial(language, causal, gpt2, 4, 512, "bf16")
    yield (
        "gpt2 b4x512 bf16 weights",
        partial(language, causal, gpt2, 4, 512, dtype=torch.bfloat16),
    )
    yield (
        "llama b2x1024 bf16 fused",
        partial(language, "LlamaForCausalLM", llama, 2, 1024, "bf16", "fused"),
    )
    yield (
        "llama b2x1024 checkpointed",
        partial(language, "LlamaForCausalLM", llama, 2, 1024, "bf16", checkpointing=True),
    )
    yield (
        "llama b2x1024 bf16 weights",
        partial(language, "LlamaForCausalLM", llama, 2, 1024, dtype=torch.bfloat16),
    )
    yield "t5 b8x256 fp32", partial(language, "T5ForConditionalGeneration", t5, 8, 256)
    yield "t5 b8x256 bf16", partial(language, "T5ForConditionalGeneration", t5, 8, 256, "bf16")
    yield "vit b32 bf16", partial(language, "ViTForImageClassification", vit, 32, 0, "bf16")
    yield (
        "vit b16 fp32 adam",
        partial(language, "ViTForImageClassification", vit, 16, 0, "fp32", "adam"),
    )
    yield "opt b4x512 fp16", partial(language, "OPTForCausalLM", opt, 4, 512, "fp16")


STEPS = {step.name: step for step in _steps()}

GROWING: dict[str, Callable[[int], Callable[[], Any]]] = {
    "resnet50 tf32": lambda batch: vision("resnet50", batch),
    "resnet50 bf16 channels last": lambda batch: vision(
        "resnet50", batch, "bf16", channels_last=True
    ),
    "convnext_tiny bf16": lambda batch: vision("convnext_tiny", batch, "bf16", "adamw"),
    "vgg11_bn bf16": lambda batch: vision("vgg11_bn", batch, "bf16"),
    "bert 256 fp32": lambda batch: language("BertForMaskedLM", bert, batch, 256),
    "bert 256 bf16": lambda batch: language("BertForMaskedLM", bert, batch, 256, "bf16"),
    "gpt2 512 bf16": lambda batch: language("GPT2LMHeadModel", gpt2, batch, 512, "bf16", "fused"),
    "llama 512 bf16 checkpointed": lambda batch: language(
        "LlamaForCausalLM", llama, batch, 512, "bf16", checkpointing=True
    ),
    "vit bf16": lambda batch: language("ViTForImageClassification", vit, batch, 0, "bf16"),
    "lstm fp32": lambda batch: lstm(batch, "fp32"),
}
"""Steps of any batch size, to search for the largest batch that fits."""
