"""The benchmark suite: published models with their published training, to predict and measure.

Each file has the models of one application domain, or one long model. To add a model, write a
function `name_of_the_model(batch, precision, *, device="cuda", ...)` that returns a `TrainingStep`
in the file of its domain, and add it to `_BENCHMARKS` and `_REFERENCES`.

    step = benchmark("resnet50").make_step(batch=32, precision="bf16")
    loss = step()

Listing the suite does not import torch; making a step does.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wavecast.errors import InvalidInput, MissingExtra, UnknownName
from wavecast.results import Shown
from wavecast.suite.tags import TAGS, Tags

if TYPE_CHECKING:
    from wavecast.suite.training import TrainingStep

__all__ = ["PRECISIONS", "Benchmark", "benchmark", "benchmarks"]

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Float32, float32 with TF32 matmuls, autocast to bfloat16, and to float16 with loss scaling."""


@dataclass(frozen=True)
class Benchmark(Shown):
    """A model of the suite: its name, its source, and how to make its training step."""

    name: str
    title: str
    domain: str
    module: str
    """The file of this folder that defines the model, in a function of the same name."""
    reference: str
    published_parameters: int
    """The published number of parameters; if the papers give none, that of the formula in the
    model's docstring."""
    default_batch: int
    unit: str
    """The unit of its throughput: "samples", "tokens", "seconds of audio" ...

    For TBD's models it is the paper's: seconds of audio for speech, samples for the others."""
    units_per_sample: float = 1
    """How many units one sample has on average, with the default options."""
    smallest_batch: int = 1
    """The smallest batch with which it can train."""

    @property
    def tags(self) -> Tags:
        """Its data set, layers, tokens and name in TBD."""
        return TAGS.get(self.name, Tags())

    def make_step(
        self, batch: int | None = None, precision: str = "fp32", **options: object
    ) -> TrainingStep:
        """Build the model, its optimizer and a synthetic batch, and return the training step.

        Args:
            batch: the number of samples in a batch. None for `default_batch`.
            precision: one of `PRECISIONS`.
            options: `device` ("cuda" by default) and other parameters of the model's function,
                such as `image` or `sequence`.
        """
        batch = self.default_batch if batch is None else batch
        if batch < 1:
            raise InvalidInput(f"{self.name}: the batch must be at least 1, not {batch}")
        if precision not in PRECISIONS:
            raise InvalidInput(
                f"{self.name}: unknown precision {precision!r}; known: {', '.join(PRECISIONS)}"
            )
        make = self._function()
        allowed = list(inspect.signature(make).parameters)[2:]
        if unknown := sorted(options.keys() - set(allowed)):
            raise InvalidInput(
                f"{self.name}: unknown option {', '.join(unknown)}; known: {', '.join(allowed)}"
            )
        return make(batch, precision, **options)

    def sizes(self) -> dict[str, int]:
        """Its whole-number options, such as `image` or `layers`, with their published values."""
        options = inspect.signature(self._function()).parameters.values()
        return {option.name: option.default for option in options if type(option.default) is int}

    def _function(self) -> Callable[..., TrainingStep]:
        try:
            module = importlib.import_module(f"{__name__}.models.{self.module}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtra(f"{self.name} needs torch: pip install 'wavecast[torch]'") from error
        function: Callable[..., TrainingStep] = getattr(module, self.name.replace("-", "_"))
        return function


def benchmarks() -> tuple[Benchmark, ...]:
    """All models of the suite."""
    return _BENCHMARKS


def benchmark(name: str) -> Benchmark:
    """The model of that name.

    Raises:
        UnknownName: there is none. The message has the nearest names.
    """
    by_name = {model.name: model for model in _BENCHMARKS}
    key = name.strip().lower().replace("_", "-")
    key = _ALIASES.get(key, key)
    if key in by_name:
        return by_name[key]
    near = difflib.get_close_matches(key, [*by_name, *_ALIASES], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(by_name)}"
    raise UnknownName(f"no suite model is named {name!r}; {hint}")


_ALIASES = {
    "bert": "bert-base",
    "deepspeech2": "deep-speech-2",
    "ds2": "deep-speech-2",
    "faster-r-cnn": "faster-rcnn",
    "fasterrcnn": "faster-rcnn",
    "gpt2-small": "gpt2",
    "gpt-2": "gpt2",
    "inception": "inception-v3",
    "inceptionv3": "inception-v3",
    "llama": "llama-1b",
    "llama-3.2-1b": "llama-1b",
    "resnet-50": "resnet50",
    "sage": "graphsage",
    "seq2seq": "nmt",
    "stable-diffusion": "latent-diffusion",
    "transformer-base": "transformer",
    "vgg": "vgg16",
    "vgg-16": "vgg16",
    "vgg-19": "vgg19",
    "vit-base": "vit",
    "wgan": "wgan-gp",
}

_DOMAINS = {
    "vision": "image classification",
    "language": "language modelling",
    "translation": "machine translation",
    "generation": "image generation",
    "llama": "language modelling",
    "diffusion": "image generation",
    "recommendation": "recommendation",
    "graphs": "graphs",
    "speech": "speech recognition",
    "wgan-gp": "adversarial learning",
    "reinforcement": "reinforcement learning",
    "classics": "image classification",
    "detection": "object detection",
}
"""The application domain of each file, and of a model that is not of its file's."""

_BERT = "Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers ..., NAACL 2019"
_GPT2 = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
_ROMBACH = "Rombach et al., High-Resolution Image Synthesis with Latent ..., CVPR 2022"
_VGG = "Simonyan and Zisserman, Very Deep Convolutional Networks ..., ICLR 2015"
_REFERENCES = {
    "resnet50": "He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
    "inception-v3": "Szegedy et al., Rethinking the Inception Architecture ..., CVPR 2016",
    "bert-base": _BERT,
    "bert-large": _BERT,
    "gpt2": _GPT2,
    "gpt2-medium": _GPT2,
    "gnmt": "Wu et al., Google's Neural Machine Translation System, arXiv:1609.08144, 2016",
    "transformer": "Vaswani et al., Attention Is All You Need, NeurIPS 2017",
    "dcgan": "Radford et al., Unsupervised Representation Learning with DCGANs, ICLR 2016",
    "llama-1b": "Touvron et al., LLaMA, arXiv:2302.13971, 2023; Meta, Llama 3.2 model card, 2024",
    "latent-diffusion": _ROMBACH,
    "dlrm": "Naumov et al., Deep Learning Recommendation Model ..., arXiv:1906.00091, 2019",
    "graphsage": "Hamilton et al., Inductive Representation Learning on Large Graphs, NIPS 2017",
    "deep-speech-2": "Amodei et al., Deep Speech 2: End-to-End Speech Recognition ..., ICML 2016",
    "wgan-gp": "Gulrajani et al., Improved Training of Wasserstein GANs, NIPS 2017",
    "a3c": "Mnih et al., Asynchronous Methods for Deep Reinforcement Learning, ICML 2016",
    "nmt": "Luong et al., Neural Machine Translation (seq2seq) Tutorial, TensorFlow, 2017",
    "alexnet": "Krizhevsky et al., ImageNet Classification with Deep CNNs, NeurIPS 2012",
    "googlenet": "Szegedy et al., Going Deeper with Convolutions, CVPR 2015",
    "vgg16": _VGG,
    "vgg19": _VGG,
    "vit": "Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021",
    "faster-rcnn": "Ren et al., Faster R-CNN: Towards Real-Time Object Detection ..., NeurIPS 2015",
}


def _model(
    name: str,
    title: str,
    module: str,
    parameters: int,
    batch: int,
    unit: str = "samples",
    per_sample: float = 1,
    smallest_batch: int = 1,
) -> Benchmark:
    facts = (_DOMAINS.get(name, _DOMAINS[module]), module, _REFERENCES[name], parameters)
    return Benchmark(name, title, *facts, batch, unit, per_sample, smallest_batch)


_BENCHMARKS = (
    _model("resnet50", "ResNet-50", "vision", 25_557_032, 64),
    _model(
        "inception-v3",
        "Inception v3, with its auxiliary head",
        "vision",
        27_161_264,
        64,
        smallest_batch=2,
    ),
    _model("bert-base", "BERT base, pre-training", "language", 110_106_428, 32),
    _model("bert-large", "BERT large, pre-training", "language", 336_226_108, 16),
    _model("gpt2", "GPT-2 (124M)", "language", 124_439_808, 8, "tokens", 1024),
    _model("gpt2-medium", "GPT-2 medium (355M)", "language", 354_823_168, 4, "tokens", 1024),
    _model("gnmt", "GNMT, LSTM translator with attention", "translation", 160_014_592, 128),
    _model("transformer", "Transformer base, translator", "translation", 63_045_632, 64),
    _model("dcgan", "DCGAN, generator and discriminator", "generation", 3_576_704 + 2_765_568, 128),
    _model("llama-1b", "Llama 3.2 1B", "llama", 1_235_814_400, 4, "tokens", 2048),
    _model(
        "latent-diffusion",
        "Latent diffusion, the network of Stable Diffusion v1",
        "diffusion",
        859_520_964,
        4,
    ),
    _model("dlrm", "DLRM, for Criteo Kaggle", "recommendation", 540_677_217, 2048),
    _model(
        "graphsage",
        "GraphSAGE on a graph like ogbn-arxiv, full-batch",
        "graphs",
        218_664,
        169_343,
        "nodes",
    ),
    _model(
        "deep-speech-2",
        "Deep Speech 2, two convolutions and five recurrent layers",
        "speech",
        47_625_873,
        16,
        "seconds of audio",
        12.5,
    ),
    _model(
        "wgan-gp",
        "WGAN with gradient penalty, residual generator and critic",
        "generation",
        8_540_483 + 7_490_816,
        64,
        "images",
        5,
    ),
    _model("a3c", "A3C, actors that play in step", "reinforcement", 677_943, 16, "frames", 5),
    _model(
        "nmt", "NMT, Seq2Seq LSTM translator with Luong's attention", "translation", 37_165_057, 128
    ),
    _model("alexnet", "AlexNet, with two groups", "classics", 60_965_224, 128),
    _model("googlenet", "GoogLeNet, with both auxiliary heads", "classics", 13_378_280, 32),
    _model("vgg16", "VGG-16", "classics", 138_357_544, 64),
    _model("vgg19", "VGG-19", "classics", 143_667_240, 64),
    _model("vit", "ViT-Base/16", "vision", 86_567_656, 64),
    _model("faster-rcnn", "Faster R-CNN with ResNet-101", "detection", 47_356_767, 1),
)
