"""The training steps whose compiled code is to be captured without a GPU, by where they come from.

Layers that repeat are cut to two, because a third is compiled as the second was.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lab.steps.compiled_awkward import AWKWARD, RANKED, RANKS, TRAININGS, WAYS
from lab.steps.libraries import import_timm, import_torchvision
from lab.steps.torchvision_models import torchvision_step
from lab.steps.transformers_models import TASKS, transformers_step

LAYERS = 2
_DEPTHS = """
    num_hidden_layers n_layer n_layers num_layers num_decoder_layers encoder_layers decoder_layers
    num_encoder_layers
""".split()
"""What configurations of transformers call the number of their layers."""

TRANSFORMERS: dict[str, str] = {
    "causal": """
        gpt2 gpt_neox gptj opt bloom mpt falcon llama qwen2 qwen3 gemma2 gemma3_text phi3 olmo2
        cohere2 mixtral olmoe gpt_oss deepseek_v3 mamba2
    """,
    "masked": """
        bert albert electra deberta-v2 modernbert longformer mpnet
    """,
    "seq2seq": "t5 bart switch_transformers",
    "image": """
        vit swin beit resnet dinov2 segformer mobilevit
    """,
    "masked image": "vit_mae",
    "video": "videomae",
    "speech to characters": "wav2vec2",
    "speech to text": "whisper",
    "contrastive": "clip",
    "image and text": "llava",
    "document": "layoutlmv3",
    "series": "patchtst",
}
TORCHVISION: dict[str, str] = {
    "classification": """
        alexnet vgg11_bn resnet18 resnext50_32x4d squeezenet1_1 mobilenet_v3_small mnasnet0_5
        shufflenet_v2_x0_5 regnet_y_400mf googlenet convnext_tiny swin_t vit_b_16 efficientnet_b0
        densenet121
    """,
    "segmentation": "lraspp_mobilenet_v3_large",
    "detection": "ssdlite320_mobilenet_v3_large",
    "video": "r3d_18",
}
TIMM = """
    resnest14d vit_tiny_patch16_224 convnext_atto mobilenetv3_small_050 mixer_s16_224 levit_128s
    repvgg_a0 efficientvit_m0 pvt_v2_b0 eva02_tiny_patch14_224 halonet26t poolformer_s12
    xcit_nano_12_p16_224 swin_tiny_patch4_window7_224
""".split()


@dataclass(frozen=True)
class CapturedStep:
    """A step to capture."""

    kind: str
    name: str
    make_step: Callable[[], Any] = field(compare=False, repr=False)
    options: dict[str, Any] = field(default_factory=dict)
    """What `wavecast.trace` needs to know of it."""


def by_hand() -> Iterator[CapturedStep]:
    """Steps by hand, which compile in many ways and have awkward code; some of several ranks."""
    for kind, steps in (("way", WAYS), ("training", TRAININGS), ("awkward", AWKWARD)):
        for name, make in steps.items():
            yield CapturedStep(kind, name, make)
    for name, make in RANKED.items():
        yield CapturedStep("ranks", name, make, {"ranks": RANKS})


def suite() -> Iterator[CapturedStep]:
    """All models of the suite, with small batches, as if compiled."""
    from wavecast.suite import benchmarks

    for model in benchmarks():
        small = model.default_batch if model.unit == "nodes" else max(2, model.smallest_batch)
        yield CapturedStep(
            model.domain,
            model.name,
            partial(model.make_step, small, "bf16"),
            {"compiled": True},
        )


def presets() -> Iterator[CapturedStep]:
    """The models of Hugging Face that come with the package, with two layers, as if compiled."""
    from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
    from wavecast.frameworks.pytorch.huggingface.presets import presets as known
    from wavecast.frameworks.targets import resolve

    folder = Path(tempfile.mkdtemp())
    for preset in known():
        path = folder / preset.name
        path.mkdir()
        config = {**preset.config, **dict.fromkeys(_depths(preset.config), LAYERS)}
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:LAYERS]
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")

        def make(path: Path = path) -> Any:
            made = resolve(f"hf:{path}", 1, "bf16", ModelOptions()).make_step
            assert made is not None
            return made()

        yield CapturedStep("preset", f"hf:{preset.name}", make, {"compiled": True})


def _depths(config: Any) -> list[str]:
    values = config if isinstance(config, dict) else vars(config)
    return [n for n in _DEPTHS if isinstance(values.get(n), int) and values[n] > LAYERS]


def transformers() -> Iterator[CapturedStep]:
    """Models of transformers by their default configurations, with two layers, as if compiled."""
    from transformers import AutoConfig

    def shallow(model_type: str) -> Any:
        config = AutoConfig.for_model(model_type)
        config = AutoConfig.for_model(model_type, **dict.fromkeys(_depths(config), LAYERS))
        for part in ("text_config", "vision_config"):
            inner = getattr(config, part, None)
            for name in _depths(inner) if inner is not None else ():
                setattr(inner, name, LAYERS)
        return config

    for task, names in TRANSFORMERS.items():
        assert task in TASKS
        for name in names.split():
            make = transformers_step(task, name, shallow)
            yield CapturedStep(task, name, make, {"compiled": True})


def torchvision() -> Iterator[CapturedStep]:
    """Models of torchvision, as if compiled."""
    import_torchvision()  # before a trace begins, because it declares its ops
    for kind, names in TORCHVISION.items():
        for name in names.split():
            yield CapturedStep(kind, name, torchvision_step(kind, name), {"compiled": True})


def timm() -> Iterator[CapturedStep]:
    """Models of timm, as if compiled, under autocast."""
    from lab.steps.zoo import CONVOLUTIONAL, make_step

    library = import_timm()
    for name in TIMM:
        last = name in CONVOLUTIONAL
        yield CapturedStep(
            "convolutions" if last else "attention",
            name,
            partial(make_step, library, name, last),
            {"compiled": True},
        )


SOURCES: dict[str, Callable[[], Iterator[CapturedStep]]] = {
    "by-hand": by_hand,
    "suite": suite,
    "presets": presets,
    "transformers": transformers,
    "torchvision": torchvision,
    "timm": timm,
}
