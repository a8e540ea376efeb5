"""Every module of torch.nn and every optimizer of torch.optim, in a training step.

The shapes of results and gradients are compared with those of the same module on the CPU, where it
computes real values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from networks import Step
from torch import nn

from wavecast import ops
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Phase

Inputs = Callable[[str], tuple[Any, ...]]
Case = tuple[Callable[[], Any], Inputs]


def _normal(*shapes: tuple[int, ...]) -> Inputs:
    """Inputs drawn from a normal distribution, which need gradients."""
    return lambda device: tuple(
        torch.randn(shape, device=device, requires_grad=True) for shape in shapes
    )


def _scores(shape: tuple[int, ...], *target: int) -> Inputs:
    """Scores and the numbers of the right classes."""
    return lambda device: (
        torch.randn(shape, device=device, requires_grad=True),
        torch.randint(0, 3, target, device=device),
    )


def _signs(*shapes: tuple[int, ...], target: tuple[int, ...] = (4,)) -> Inputs:
    """Inputs that need gradients, and a target of ones."""
    return lambda device: (*_normal(*shapes)(device), torch.ones(target, device=device))


def _lengths(device: str) -> tuple[Any, ...]:
    scores = torch.randn(20, 2, 5, device=device, requires_grad=True)
    return scores.log_softmax(2), torch.randint(1, 5, (2, 6), device=device), [20, 20], [6, 6]


def _pooled(pool: Any, *shape: int) -> Inputs:
    return lambda device: pool(torch.randn(shape, device=device, requires_grad=True))


def _numbers(*shape: int) -> Inputs:
    return lambda device: (torch.randint(0, 10, shape, device=device),)


_POINTWISE = """
    AlphaDropout CELU Dropout ELU FeatureAlphaDropout Flatten GELU GLU Hardshrink Hardsigmoid
    Hardswish Hardtanh Identity LeakyReLU LogSigmoid Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid
    Softplus Softshrink Softsign Tanh Tanhshrink Dropout1d
""".split()
_TWO_ALIKE = "CosineSimilarity PairwiseDistance L1Loss MSELoss HuberLoss SmoothL1Loss".split()
# Layers for images of one, two or three dimensions, with their arguments.
_OF_DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "ConvNd": (4, 6, 3),
    "ConvTransposeNd": (4, 6, 3),
    "BatchNormNd": (4,),
    "InstanceNormNd": (4,),
    "ConstantPadNd": (1, 0.5),
    "LPPoolNd": (2, 3),
    **{f"{kind}PoolNd": (2,) for kind in ("AdaptiveAvg", "AdaptiveMax", "Avg", "Max")},
    **{f"{kind}PadNd": (1,) for kind in ("Circular", "Reflection", "Replication", "Zero")},
}
LAYERS: dict[str, Case] = {
    **{name: (getattr(nn, name), _normal((4, 6, 8))) for name in _POINTWISE},
    **{name: (getattr(nn, name), _normal((4, 8), (4, 8))) for name in _TWO_ALIKE},
    **{
        name.replace("Nd", f"{n}d"): (
            partial(getattr(nn, name.replace("Nd", f"{n}d")), *arguments),
            x,
        )
        for name, arguments in _OF_DIMENSIONS.items()
        for n, x in enumerate((_normal((2, 4, *[8] * n)) for n in (1, 2, 3)), start=1)
    },
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 9]),
        lambda device: (*_normal((6, 8))(device), torch.arange(0, 18, 3).to(device)),
    ),
    "BCELoss": (
        nn.BCELoss,
        lambda device: (
            *(x.sigmoid() for x in _normal((4, 8))(device)),
            torch.rand(4, 8, device=device),
        ),
    ),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, _normal((4, 8), (4, 8))),
    "Bilinear": (lambda: nn.Bilinear(8, 6, 5), _normal((4, 8), (4, 6))),
    "CTCLoss": (nn.CTCLoss, _lengths),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), _normal((2, 4, 8, 8))),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, _signs((4, 8), (4, 8))),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, _scores((4, 8), 4)),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(2), _normal((2, 4, 8, 8))),
    "Dropout2d": (nn.Dropout2d, _normal((2, 4, 8, 8))),
    "Dropout3d": (nn.Dropout3d, _normal((2, 4, 8, 8, 8))),
    "Embedding": (lambda: nn.Embedding(10, 8), _numbers(4, 6)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 8), _numbers(4, 6)),
    "Fold": (lambda: nn.Fold((4, 5), (2, 2)), _normal((2, 12, 12))),
    "FractionalMaxPool2d": (
        lambda: nn.FractionalMaxPool2d(2, output_size=5),
        _normal((2, 4, 8, 8)),
    ),
    "FractionalMaxPool3d": (
        lambda: nn.FractionalMaxPool3d(2, output_size=5),
        _normal((2, 4, 8, 8, 8)),
    ),
    "GRU": (lambda: nn.GRU(8, 6), _normal((5, 2, 8))),
    "GRUCell": (lambda: nn.GRUCell(8, 6), _normal((2, 8))),
    "GaussianNLLLoss": (
        nn.GaussianNLLLoss,
        lambda device: (*_normal((4, 8), (4, 8))(device), torch.rand(4, 8, device=device)),
    ),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), _normal((2, 4, 8, 8))),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, _signs((4,))),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), _normal((4, 8), (4, 8))),
    "LSTM": (lambda: nn.LSTM(8, 6), _normal((5, 2, 8))),
    "LSTMCell": (lambda: nn.LSTMCell(8, 6), _normal((2, 8))),
    "LayerNorm": (lambda: nn.LayerNorm(8), _normal((4, 8))),
    "Linear": (lambda: nn.Linear(8, 6), _normal((4, 8))),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), _normal((2, 4, 8, 8))),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), _normal((4, 8))),
    "MarginRankingLoss": (nn.MarginRankingLoss, _signs((4,), (4,))),
    "MaxUnpool1d": (
        lambda: nn.MaxUnpool1d(2),
        _pooled(nn.MaxPool1d(2, return_indices=True), 2, 4, 8),
    ),
    "MaxUnpool2d": (
        lambda: nn.MaxUnpool2d(2),
        _pooled(nn.MaxPool2d(2, return_indices=True), 2, 4, 8, 8),
    ),
    "MaxUnpool3d": (
        lambda: nn.MaxUnpool3d(2),
        _pooled(nn.MaxPool3d(2, return_indices=True), 2, 4, 8, 8, 8),
    ),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss, _scores((4, 8), 4, 8)),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss, _signs((4, 8), target=(4, 8))),
    "MultiMarginLoss": (nn.MultiMarginLoss, _scores((4, 8), 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2), _normal(*[(5, 2, 8)] * 3)),
    "NLLLoss": (nn.NLLLoss, _scores((4, 8), 4)),
    "NLLLoss2d": (nn.NLLLoss, _scores((4, 8, 6, 6), 4, 6, 6)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), _normal((2, 4, 8, 8))),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), _normal((2, 4, 8, 8))),
    "PoissonNLLLoss": (lambda: nn.PoissonNLLLoss(full=True), _signs((4, 8), target=(4, 8))),
    "RMSNorm": (lambda: nn.RMSNorm(8), _normal((4, 8))),
    "RNN": (lambda: nn.RNN(8, 6), _normal((5, 2, 8))),
    "RNNCell": (lambda: nn.RNNCell(8, 6), _normal((2, 8))),
    "SoftMarginLoss": (nn.SoftMarginLoss, _signs((4, 8), target=(4, 8))),
    "Softmax": (lambda: nn.Softmax(1), _normal((4, 8))),
    "Softmax2d": (nn.Softmax2d, _normal((2, 4, 8, 8))),
    "Softmin": (lambda: nn.Softmin(1), _normal((4, 8))),
    "Threshold": (lambda: nn.Threshold(0.1, 20), _normal((4, 8))),
    "Transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16),
        _normal((5, 2, 8), (4, 2, 8)),
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2),
        _normal((5, 2, 8), (4, 2, 8)),
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16),
        _normal((5, 2, 8), (4, 2, 8)),
    ),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        _normal((2, 5, 8)),
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), _normal((5, 2, 8))),
    "TripletMarginLoss": (nn.TripletMarginLoss, _normal(*[(4, 8)] * 3)),
    "TripletMarginWithDistanceLoss": (nn.TripletMarginWithDistanceLoss, _normal(*[(4, 8)] * 3)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 4)), _normal((4, 8))),
    "Unfold": (lambda: nn.Unfold((2, 2)), _normal((2, 4, 8, 8))),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), _normal((2, 4, 8, 8))),
    "UpsamplingBilinear2d": (
        lambda: nn.UpsamplingBilinear2d(scale_factor=2),
        _normal((2, 4, 8, 8)),
    ),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), _normal((2, 4, 8, 8))),
}
# Containers and base classes. Lazy layers are refused. SyncBatchNorm needs several processes.
NO_LAYERS = """
    Container Module ModuleDict ModuleList ParameterDict ParameterList RNNBase RNNCellBase
    Sequential LinearCrossEntropyOptions SyncBatchNorm
""".split()
if hasattr(nn, "LinearCrossEntropyLoss"):
    LAYERS["LinearCrossEntropyLoss"] = (
        lambda: nn.LinearCrossEntropyLoss(8, 10),
        _scores((4, 8), 4),
    )


def _tensors(value: Any) -> Iterable[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _one_step(name: str, device: str, shapes: list[Any]) -> Step:
    """A training step of a layer, which writes the shapes of its results and gradients."""
    make_layer, make_inputs = LAYERS[name]
    layer = make_layer().to(device).train()
    inputs = make_inputs(device)

    def step() -> None:
        shapes.clear()
        out = layer(*(_again(x) for x in inputs))
        results = list(_tensors(out))
        sum(t.float().sum() for t in results if t.is_floating_point()).backward()
        leaves = [*layer.parameters(), *(t for t in inputs if isinstance(t, torch.Tensor))]
        gradients = [t.grad if t.is_leaf else None for t in leaves]
        shapes.extend(tuple(t.shape) for t in results)
        shapes.extend(None if g is None else tuple(g.shape) for g in gradients)

    return step


def _again(value: Any) -> Any:
    """A new leaf for an input that was computed, so that each step has a graph of its own."""
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        return value.detach().requires_grad_()
    return value


def test_every_module_of_torch_is_in_the_list() -> None:
    named = {name for name in nn.modules.__all__ if not name.startswith("Lazy")}
    assert named <= {*LAYERS, *NO_LAYERS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_the_shapes_of_a_real_run(name: str) -> None:
    real: list[Any] = []
    traced: list[Any] = []
    _one_step(name, "cpu", real)()
    trace = capture(lambda: _one_step(name, "cuda", traced))
    assert traced == real
    assert any(call.phase is Phase.BACKWARD for call in trace)
    assert not ops.totals(trace).unknown
