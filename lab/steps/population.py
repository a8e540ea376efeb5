"""Random steps of many models of timm, torchvision and transformers, with a fixed seed.

The batch, precision, layout, optimizer and width of a step are random. Every fifth model is kept
for the blind test (`BLIND`), and no fit sees it. `lab.collect.population` measures the others
(`SEEN`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.steps.libraries import import_timm, import_torchvision
from lab.steps.memory import train
from lab.steps.zoo import ATTENTION, CONVOLUTIONAL
from wavecast.suite.training import autocast, float32_products

SEED = 5
TEXT = {
    "DistilBertForMaskedLM": "DistilBertConfig",
    "RobertaForMaskedLM": "RobertaConfig",
    "AlbertForMaskedLM": "AlbertConfig",
    "DebertaV2ForMaskedLM": "DebertaV2Config",
    "XLNetLMHeadModel": "XLNetConfig",
    "BigBirdForMaskedLM": "BigBirdConfig",
    "MPNetForMaskedLM": "MPNetConfig",
    "BartForConditionalGeneration": "BartConfig",
    "MarianMTModel": "MarianConfig",
    "GPTNeoXForCausalLM": "GPTNeoXConfig",
    "GPTJForCausalLM": "GPTJConfig",
    "BloomForCausalLM": "BloomConfig",
    "FalconForCausalLM": "FalconConfig",
    "Qwen2ForCausalLM": "Qwen2Config",
    "Qwen3ForCausalLM": "Qwen3Config",
    "GemmaForCausalLM": "GemmaConfig",
    "MistralForCausalLM": "MistralConfig",
    "PhiForCausalLM": "PhiConfig",
    "StableLmForCausalLM": "StableLmConfig",
    "MixtralForCausalLM": "MixtralConfig",
}
IMAGES = {
    "BeitForImageClassification": "BeitConfig",
    "Dinov2ForImageClassification": "Dinov2Config",
    "SegformerForImageClassification": "SegformerConfig",
    "ConvNextV2ForImageClassification": "ConvNextV2Config",
    "SwinForImageClassification": "SwinConfig",
    "PvtV2ForImageClassification": "PvtV2Config",
}
SOUND = {
    "Wav2Vec2ForCTC": "Wav2Vec2Config",
    "HubertForCTC": "HubertConfig",
    "WhisperForConditionalGeneration": "WhisperConfig",
    "ASTForAudioClassification": "ASTConfig",
}
CONFIGS = TEXT | IMAGES | SOUND
OF_TORCHVISION = {
    **{"deeplabv3_resnet50": "segmentation", "lraspp_mobilenet_v3_large": "segmentation"},
    **{"r3d_18": "video", "mc3_18": "video", "r2plus1d_18": "video", "s3d": "video"},
    **{"mvit_v2_s": "video", "swin3d_t": "video"},
    **dict.fromkeys(("mnasnet0_5", "regnet_x_1_6gf", "efficientnet_v2_s", "maxvit_t"), "image"),
}
_ALL = [*sorted({*CONVOLUTIONAL, *ATTENTION}), *CONFIGS, *OF_TORCHVISION]
_ORDER = random.Random(SEED).sample(_ALL, len(_ALL))
BLIND = tuple(_ORDER[::5])
SEEN = tuple(name for name in _ORDER if name not in BLIND)


@dataclass(frozen=True)
class Drawn:
    """A step of a model with its random settings."""

    name: str
    batch: int
    length: int
    width: int | None
    precision: str
    last: bool
    """Whether tensors are in channels_last."""
    search: bool
    """Whether cuDNN searches for the fastest algorithm (`cudnn.benchmark`)."""
    optimizer: str
    infers: bool

    @property
    def title(self) -> str:
        """The name of the step's file."""
        words = [self.name, f"b{self.batch}"]
        if self.name in TEXT:
            words += [f"x{self.length}", f"w{self.width}"] if self.width else [f"x{self.length}"]
        words += [self.precision, *(["nhwc"] if self.last else [])]
        words += [*(["search"] if self.search else []), "infer" if self.infers else self.optimizer]
        return "-".join(words)


def draw(name: str, seed: int, *, whole: bool = False) -> Drawn:
    """A random step of a model, fixed by its name and the seed.

    `whole` keeps the width of the model's configuration.
    """
    chance = random.Random(f"{name} {seed}")
    precision = chance.choices(("fp32", "tf32", "bf16", "fp16"), (25, 20, 35, 20))[0]
    images = name not in TEXT and name not in SOUND
    length = chance.choice((64, 128, 128, 256, 512, 1024))
    most = max(16384 // length, 1) if name in TEXT else 16 if name in SOUND else 128
    most = min(most, 8) if OF_TORCHVISION.get(name) in ("video", "segmentation") else most
    return Drawn(
        name,
        min(chance.choice((2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)), most),
        length,
        None if whole else chance.choice((256, 384, 512, 640, 768, 1024, 1536, 2048)),
        precision,
        images and chance.random() < (0.45 if precision in ("bf16", "fp16") else 0.15),
        images and chance.random() < 0.3,
        chance.choice(("sgd", "momentum", "adam", "adamw", "fused", "looped")),
        chance.random() < 0.15,
    )


def make_step(drawn: Drawn) -> Callable[[], Any]:
    """The training step, or the forward pass alone if `drawn.infers`."""
    model, loss = _made(drawn)
    model = model.cuda()
    if drawn.last and not any(isinstance(m, torch.nn.Conv3d) for m in model.modules()):
        model = model.to(memory_format=torch.channels_last)
    if drawn.infers:
        model.eval()

        def infer() -> None:
            with torch.no_grad(), autocast(drawn.precision, "cuda"):
                loss(model)

        step: Callable[[], Any] = infer
    else:
        step = train(model.train(), loss, drawn.optimizer, drawn.precision)

    def run() -> None:
        torch.backends.cudnn.benchmark = drawn.search
        with float32_products(drawn.precision):
            step()

    return run


def _made(drawn: Drawn) -> tuple[torch.nn.Module, Callable[[Any], Any]]:
    """The model and its loss."""
    if drawn.name in CONFIGS:
        return _of_transformers(drawn)
    if drawn.name in OF_TORCHVISION:
        return _of_torchvision(drawn)
    made = import_timm().create_model(drawn.name)
    images = _images(drawn, *made.default_cfg["input_size"])
    return made, _classified(images)


def _images(drawn: Drawn, *shape: int) -> Tensor:
    images = torch.randn(drawn.batch, *shape, device="cuda")
    if drawn.last and images.dim() == 4:
        return images.contiguous(memory_format=torch.channels_last)
    return images


def _classified(images: Tensor) -> Callable[[Any], Any]:
    labels = torch.zeros(len(images), dtype=torch.long, device="cuda")

    def loss(model: Any) -> Any:
        out = model(images)
        out = out["out"] if isinstance(out, dict) else out
        out = out[0] if isinstance(out, tuple) else out
        if out.dim() == 4:  # a class for every pixel
            wanted = torch.zeros(len(images), *out.shape[2:], dtype=torch.long, device="cuda")
            return F.cross_entropy(out, wanted)
        return F.cross_entropy(out, labels)

    return loss


def _of_torchvision(drawn: Drawn) -> tuple[torch.nn.Module, Callable[[Any], Any]]:
    task = OF_TORCHVISION[drawn.name]
    plain = {"weights_backbone": None} if task == "segmentation" else {}
    made = import_torchvision().models.get_model(drawn.name, weights=None, **plain)
    if task == "video":
        side = 224 if "mvit" in drawn.name else 112
        return made, _classified(_images(drawn, 3, 16, side, side))
    return made, _classified(_images(drawn, 3, 224, 224))


def _of_transformers(drawn: Drawn) -> tuple[torch.nn.Module, Callable[[Any], Any]]:
    import transformers

    config = getattr(transformers, CONFIGS[drawn.name])()
    if drawn.name in TEXT:
        _narrow(config, drawn.width)
        if "max_position_embeddings" in config.to_dict():
            config.max_position_embeddings = max(config.max_position_embeddings, drawn.length + 8)
    made = getattr(transformers, drawn.name)(config)
    batch = drawn.batch
    if drawn.name in IMAGES:
        inputs = {"pixel_values": _images(drawn, 3, 224, 224), "labels": _zeros(batch)}
    elif drawn.name == "WhisperForConditionalGeneration":
        features = torch.randn(batch, config.num_mel_bins, 3000, device="cuda")
        inputs = {"input_features": features, "labels": _zeros(batch, 64)}
    elif drawn.name == "ASTForAudioClassification":
        features = torch.randn(batch, config.max_length, config.num_mel_bins, device="cuda")
        inputs = {"input_values": features, "labels": _zeros(batch)}
    elif drawn.name in SOUND:
        sound = torch.randn(batch, 16000 * 5, device="cuda")
        inputs = {"input_values": sound, "labels": _zeros(batch, 20) + 1}
    else:
        tokens = torch.randint(5, 1000, (batch, drawn.length), device="cuda")
        inputs = {"input_ids": tokens, "labels": tokens}
    return made, lambda model: model(**inputs).loss


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long, device="cuda")


def _narrow(config: Any, width: int | None) -> None:
    """Change a configuration to four layers of this width, without a key-value cache.

    Without a width, only the cache is switched off and the padding token set.
    """
    settings = config.to_dict()
    if "use_cache" in settings:
        config.use_cache = False
    config.pad_token_id = config.decoder_start_token_id = 0
    if width is None:
        return
    layers = ("num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
    for name in (name for name in layers if name in settings):
        setattr(config, name, 4)
    wide = next(name for name in ("hidden_size", "d_model", "n_embd", "dim") if name in settings)
    heads = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
    inner = ("intermediate_size", "d_inner", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim")
    ratio = width / settings[wide]
    for name in (name for name in inner if settings.get(name)):
        setattr(config, name, int(settings[name] * ratio / 64 + 1) * 64)
    setattr(config, wide, width)
    for name in (*heads, "decoder_attention_heads", "num_key_value_heads"):
        if settings.get(name) and settings[name] > 1:
            setattr(config, name, max(width // 64, 1))
    if settings.get("head_dim"):
        config.head_dim = 64
