"""The benchmark suite: published models with their published training, to predict and measure.

Each file has the models of one application domain, or one long model. Each entry of `_BENCHMARKS`
is one model. To add a model, write a function `name_of_the_model(batch, precision, *,
device="cuda", ...)` that returns a `TrainingStep` in the file of its domain, and add its entry.

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
from wavecast.suite.tags import TAGS, Tags

if TYPE_CHECKING:
    from wavecast.suite.training import TrainingStep

__all__ = ["PRECISIONS", "Benchmark", "benchmark", "benchmarks"]

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Float32, float32 with TF32 products, autocast to bfloat16, and to float16 with loss scaling."""


@dataclass(frozen=True)
class Benchmark:
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
            module = importlib.import_module(f"{__name__}.{self.module}")
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
    wanted = name.strip().lower().replace("_", "-")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted in by_name:
        return by_name[wanted]
    near = difflib.get_close_matches(wanted, [*by_name, *_ALIASES], n=3)
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

_BERT = "Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers ..., NAACL 2019"
_GPT2 = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
_VGG = "Simonyan and Zisserman, Very Deep Convolutional Networks ..., ICLR 2015"

_BENCHMARKS = (
    Benchmark(
        name="resnet50",
        title="ResNet-50",
        domain="image classification",
        module="vision",
        reference="He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
        published_parameters=25_557_032,
        default_batch=64,
        unit="samples",
    ),
    Benchmark(
        name="inception-v3",
        title="Inception v3, with its auxiliary head",
        domain="image classification",
        module="inception",
        reference="Szegedy et al., Rethinking the Inception Architecture ..., CVPR 2016",
        published_parameters=27_161_264,
        default_batch=64,
        unit="samples",
        smallest_batch=2,
    ),
    Benchmark(
        name="bert-base",
        title="BERT base, pre-training",
        domain="language modelling",
        module="language",
        reference=_BERT,
        published_parameters=110_106_428,
        default_batch=32,
        unit="samples",
    ),
    Benchmark(
        name="bert-large",
        title="BERT large, pre-training",
        domain="language modelling",
        module="language",
        reference=_BERT,
        published_parameters=336_226_108,
        default_batch=16,
        unit="samples",
    ),
    Benchmark(
        name="gpt2",
        title="GPT-2 (124M)",
        domain="language modelling",
        module="language",
        reference=_GPT2,
        published_parameters=124_439_808,
        default_batch=8,
        unit="tokens",
        units_per_sample=1024,
    ),
    Benchmark(
        name="gpt2-medium",
        title="GPT-2 medium (355M)",
        domain="language modelling",
        module="language",
        reference=_GPT2,
        published_parameters=354_823_168,
        default_batch=4,
        unit="tokens",
        units_per_sample=1024,
    ),
    Benchmark(
        name="gnmt",
        title="GNMT, LSTM translator with attention",
        domain="machine translation",
        module="translation",
        reference="Wu et al., Google's Neural Machine Translation System, arXiv:1609.08144, 2016",
        published_parameters=160_014_592,
        default_batch=128,
        unit="samples",
    ),
    Benchmark(
        name="transformer",
        title="Transformer base, translator",
        domain="machine translation",
        module="translation",
        reference="Vaswani et al., Attention Is All You Need, NeurIPS 2017",
        published_parameters=63_045_632,
        default_batch=64,
        unit="samples",
    ),
    Benchmark(
        name="dcgan",
        title="DCGAN, generator and discriminator",
        domain="image generation",
        module="generation",
        reference="Radford et al., Unsupervised Representation Learning with DCGANs, ICLR 2016",
        published_parameters=3_576_704 + 2_765_568,
        default_batch=128,
        unit="samples",
    ),
    Benchmark(
        name="llama-1b",
        title="Llama 3.2 1B",
        domain="language modelling",
        module="llama",
        reference="Touvron et al., LLaMA, arXiv:2302.13971, 2023; Meta, Llama 3.2 model card, 2024",
        published_parameters=1_235_814_400,
        default_batch=4,
        unit="tokens",
        units_per_sample=2048,
    ),
    Benchmark(
        name="latent-diffusion",
        title="Latent diffusion, the network of Stable Diffusion v1",
        domain="image generation",
        module="diffusion",
        reference="Rombach et al., High-Resolution Image Synthesis with Latent ..., CVPR 2022",
        published_parameters=859_520_964,
        default_batch=4,
        unit="samples",
    ),
    Benchmark(
        name="dlrm",
        title="DLRM, for Criteo Kaggle",
        domain="recommendation",
        module="recommendation",
        reference="Naumov et al., Deep Learning Recommendation Model ..., arXiv:1906.00091, 2019",
        published_parameters=540_677_217,
        default_batch=2048,
        unit="samples",
    ),
    Benchmark(
        name="graphsage",
        title="GraphSAGE on a graph like ogbn-arxiv, full-batch",
        domain="graphs",
        module="graphs",
        reference="Hamilton et al., Inductive Representation Learning on Large Graphs, NIPS 2017",
        published_parameters=218_664,
        default_batch=169_343,
        unit="nodes",
    ),
    Benchmark(
        name="deep-speech-2",
        title="Deep Speech 2, two convolutions and five recurrent layers",
        domain="speech recognition",
        module="speech",
        reference="Amodei et al., Deep Speech 2: End-to-End Speech Recognition ..., ICML 2016",
        published_parameters=47_625_873,
        default_batch=16,
        unit="seconds of audio",
        units_per_sample=12.5,
    ),
    Benchmark(
        name="wgan-gp",
        title="WGAN with gradient penalty, residual generator and critic",
        domain="adversarial learning",
        module="adversarial",
        reference="Gulrajani et al., Improved Training of Wasserstein GANs, NIPS 2017",
        published_parameters=8_540_483 + 7_490_816,
        default_batch=64,
        unit="images",
        units_per_sample=5,
    ),
    Benchmark(
        name="a3c",
        title="A3C, actors that play in step",
        domain="reinforcement learning",
        module="reinforcement",
        reference="Mnih et al., Asynchronous Methods for Deep Reinforcement Learning, ICML 2016",
        published_parameters=677_943,
        default_batch=16,
        unit="frames",
        units_per_sample=5,
    ),
    Benchmark(
        name="nmt",
        title="NMT, Seq2Seq LSTM translator with Luong's attention",
        domain="machine translation",
        module="seq2seq",
        reference="Luong et al., Neural Machine Translation (seq2seq) Tutorial, TensorFlow, 2017",
        published_parameters=37_165_057,
        default_batch=128,
        unit="samples",
    ),
    Benchmark(
        name="alexnet",
        title="AlexNet, with two groups",
        domain="image classification",
        module="classics",
        reference="Krizhevsky et al., ImageNet Classification with Deep CNNs, NeurIPS 2012",
        published_parameters=60_965_224,
        default_batch=128,
        unit="samples",
    ),
    Benchmark(
        name="googlenet",
        title="GoogLeNet, with both auxiliary heads",
        domain="image classification",
        module="classics",
        reference="Szegedy et al., Going Deeper with Convolutions, CVPR 2015",
        published_parameters=13_378_280,
        default_batch=32,
        unit="samples",
    ),
    Benchmark(
        name="vgg16",
        title="VGG-16",
        domain="image classification",
        module="classics",
        reference=_VGG,
        published_parameters=138_357_544,
        default_batch=64,
        unit="samples",
    ),
    Benchmark(
        name="vgg19",
        title="VGG-19",
        domain="image classification",
        module="classics",
        reference=_VGG,
        published_parameters=143_667_240,
        default_batch=64,
        unit="samples",
    ),
    Benchmark(
        name="vit",
        title="ViT-Base/16",
        domain="image classification",
        module="vision",
        reference="Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021",
        published_parameters=86_567_656,
        default_batch=64,
        unit="samples",
    ),
    Benchmark(
        name="faster-rcnn",
        title="Faster R-CNN with ResNet-101",
        domain="object detection",
        module="detection",
        reference="Ren et al., Faster R-CNN: Towards Real-Time Object Detection ..., NeurIPS 2015",
        published_parameters=47_356_767,
        default_batch=1,
        unit="samples",
    ),
)
