"""The layers of modules, and their times in steps measured on our GPU."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hostile.odd_traces import odd_trace
from regression.counted import ops_by_category
from torch import Tensor, nn

import wavecast
from lab.measured import campaigns
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.layers.networks import network_of
from wavecast.predictors.learned.predictor import Learned
from wavecast.runs.regression.complexities import (
    Category,
    LayerCategory,
    Network,
    Pass,
    caffe_net,
    network_of_trace,
)
from wavecast.runs.regression.layer_times import predicted_work, times_of_trace
from wavecast.runs.regression.per_layer import PerLayer, published, timed_network
from wavecast.suite.models.classics import VGG, AlexNet, GoogLeNet
from wavecast.suite.models.vision import ResNet
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

MEASURED = campaigns.traces("runs")
SUITE = campaigns.traces("suite")
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "alexnet": (partial(AlexNet, groups=1), (3, 227, 227)),
    "googlenet": (GoogLeNet, (3, 224, 224)),
    "vgg16": (VGG, (3, 224, 224)),
}


def made(name: str) -> Network:
    make, shape = NETS[name]
    with torch.device("meta"):
        model = make()
    return network_of(model, shape)


@pytest.mark.parametrize("name", NETS)
def test_the_suites_nets_have_the_operations_of_caffes_files(name: str) -> None:
    ours, theirs = made(name), caffe_net(name)
    assert ours.unknown == ()
    assert ours.weights == theirs.weights
    assert ours.activations() == theirs.activations()
    for which in Pass:
        assert ops_by_category(ours, which) == ops_by_category(theirs, which)


@pytest.mark.parametrize("name", ["alexnet-ungrouped", "googlenet", "vgg16"])
def test_the_trace_of_a_step_has_the_same_layers_as_its_module(name: str) -> None:
    traced = network_of_trace(MEASURED[f"{name}-b16-tf32"])
    ours = made(name.removesuffix("-ungrouped"))
    assert (traced.unknown, traced.inputs) == ((), ours.inputs)
    assert (traced.weights, traced.activations()) == (ours.weights, ours.activations())
    assert [(layer.kind, layer.outputs, layer.kernel, layer.stride) for layer in ours.layers] == [
        (layer.kind, layer.outputs, layer.kernel, layer.stride) for layer in traced.layers
    ]


def resnet50() -> Network:
    with torch.device("meta"):
        return network_of(ResNet(), (3, 224, 224))


def test_resnet_50_leaves_no_layer_out() -> None:
    net = resnet50()
    assert (net.unknown, net.weights) == ((), 25_557_032)
    counts = Counter(layer.category for layer in net.layers)
    assert counts == {
        Category.CONV_FC: 54,
        Category.BATCH_NORM: 53,
        Category.RELU_DROP: 49,
        Category.SUM: 16,
        Category.POOL_DENSE: 1,
        Category.POOL_STRIDED: 1,
    }
    trace = SUITE["resnet50-b16-fp32"]
    traced = network_of_trace(trace)
    assert Counter(layer.category for layer in traced.layers) == counts
    assert (traced.unknown, traced.weights) == ((), net.weights)
    for network in (net, traced):
        timed = times_of_trace(trace, network)
        layers_s = timed_network("resnet50", timed.times).seconds
        both = {"forward", "backward"}
        whole_s = sum(k.seconds for call in trace if call.phase in both for k in call.kernels)
        assert timed.untimed == ()
        assert layers_s > 0.999 * whole_s
        assert layers_s + sum(timed.elsewhere_s.values()) == pytest.approx(whole_s)


def test_a_profile_without_modules_shares_times_by_the_kinds_of_ops() -> None:
    trace = SUITE["resnet50-b16-fp32"]
    bare = replace(trace, calls=tuple(replace(call, module="") for call in trace.calls))
    network = network_of_trace(bare)
    assert network.weights == 25_557_032
    timed = times_of_trace(bare, network)
    known = timed_network("resnet50", times_of_trace(trace, network_of_trace(trace)).times)
    parts = timed_network("resnet50", timed.times).parts
    assert parts[Category.BATCH_NORM, Pass.BACKWARD] == pytest.approx(
        known.parts[Category.BATCH_NORM, Pass.BACKWARD]
    )
    assert sum(parts.values()) > 0.97 * known.seconds


@pytest.mark.parametrize(
    ("key", "weights", "covered"),
    [
        ("bert-base-b8-fp32", None, 0.99),
        ("gpt2-b2-fp32", 124_439_808 + 768 * 50257, 0.97),  # the output layer shares its weights
        ("dcgan-b32-fp32", None, 0.99),
        ("vit-b16-fp32", None, 0.99),
    ],
)
def test_steps_of_other_kinds_are_covered_by_layers(
    key: str, weights: int | None, covered: float
) -> None:
    trace, batch = SUITE[key], int(key.split("-b")[-1].split("-")[0])
    network = network_of_trace(trace, batch=batch)
    timed = times_of_trace(trace, network, batch=batch)
    both = {"forward", "backward"}
    whole_s = sum(k.seconds for call in trace if call.phase in both for k in call.kernels)
    assert timed_network(key, timed.times).seconds > covered * whole_s
    assert weights is None or network.weights == weights


class Functional(nn.Module):
    """Layers that are functions, and modules of torch whose work is more than one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.words = nn.Embedding(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu_(self.depthwise(F.relu(x))), 2)
        x = F.avg_pool2d(F.dropout(self.up(x), 0.5, self.training), 2).flatten(2).mT
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        x += self.words(torch.zeros(len(x), 1, dtype=torch.long))
        heads = torch.cat([F.gelu(x), x], dim=1).unsqueeze(1)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).mean((2, 3))


def test_functions_are_layers_of_the_module_that_calls_them() -> None:
    net = network_of(Functional(), (8, 16, 16))
    assert net.unknown == ()
    assert [(layer.name, str(layer.category)) for layer in net.layers] == [
        ("", "ReLU/Drop"),
        ("depthwise", "Depthwise conv"),
        ("", "ReLU/Drop"),
        ("", "Pool S>1"),
        ("up", "Transposed conv"),
        ("", "ReLU/Drop"),
        ("", "Pool S>1"),
        *3 * [("attention", "Conv/FC")],
        ("attention", "Attention"),
        ("attention", "Conv/FC"),
        ("", "Sum"),
        ("norm", "Layer norm"),
        ("words", "Embedding"),
        ("", "Sum"),
        ("", "Activation"),
        ("", "None"),
        ("", "Attention"),
        ("", "Pool S=1"),
    ]
    assert net.weights == sum(p.numel() for p in Functional().parameters())
    assert net.layers[-2].kernel == (-(-129 // 2),), "a causal query meets half of 128 keys"
    assert [layer.in_place for layer in net.layers if layer.kind == "ReLU"] == [False, True]
    evaluated = network_of(Functional().eval(), (8, 16, 16))
    assert len(evaluated.layers) == len(net.layers) - 1, "dropout does nothing"


def test_a_model_of_tokens_takes_a_batch_of_them() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    net = network_of(model, torch.zeros(1, 7, dtype=torch.long))
    assert (net.inputs, net.weights) == ((1, 7, 1), 80)
    assert [layer.ops(Pass.FORWARD) for layer in net.layers] == [28, 280]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.drop = nn.Dropout()
        self.head = nn.Linear(8, 5)
        self.last = nn.AdaptiveAvgPool2d(1)
        self.fold = nn.Fold((1, 1), 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.pool(self.relu(x))
        x = F.relu(x)  # a function, which is a layer of the model itself
        x = self.fold(self.last(x).flatten(2))
        return self.head(self.drop(x.flatten(1)))


def test_any_module_of_such_layers_works_and_others_are_named() -> None:
    model = Small()
    before = model.norm.running_mean.clone()
    net = network_of(model, (3, 16, 16), name="small")
    assert [(layer.name, layer.kind, layer.outputs) for layer in net.layers] == [
        ("conv", LayerCategory.CONV, (8, 8, 8)),
        ("norm", LayerCategory.BATCH_NORM, (8, 8, 8)),
        ("relu", LayerCategory.RELU, (8, 8, 8)),
        ("relu", LayerCategory.RELU, (8, 8, 8)),
        ("pool", LayerCategory.POOL, (8, 4, 4)),
        ("", LayerCategory.RELU, (8, 4, 4)),
        ("last", LayerCategory.POOL, (8, 1, 1)),
        ("drop", LayerCategory.DROPOUT, (8, 1, 1)),
        ("head", LayerCategory.FC, (5, 1, 1)),
    ]
    assert net.unknown == ("fold (Fold)",)
    assert net.weights == sum(p.numel() for p in model.parameters())
    assert (net.layers[4].kernel, net.layers[4].stride) == ((2, 2), 2)
    assert (net.layers[6].kernel, net.layers[6].stride) == ((4, 4), 1)
    assert torch.equal(model.norm.running_mean, before), "the model is left as it was"
    assert not model.conv._forward_hooks


def test_dropout_that_does_nothing_is_no_layer() -> None:
    net = network_of(Small().eval(), (3, 16, 16))
    assert "drop" not in [layer.name for layer in net.layers]
    assert not [name for name in net.unknown if "Dropout" in name]


def test_a_linear_layer_at_several_positions_counts_them_all() -> None:
    model = nn.Sequential(nn.Flatten(2), nn.Linear(49, 10))
    net = network_of(model, (6, 7, 7))
    assert net.layers[0].ops(Pass.FORWARD) == 6 * 49 * 10


def test_a_sample_may_be_given_as_a_batch() -> None:
    assert network_of(Small(), torch.empty(4, 3, 16, 16)) == network_of(Small(), (3, 16, 16))


def test_a_model_that_does_not_run_on_the_sample_is_refused() -> None:
    with pytest.raises(
        CaptureError, match=r"Small does not run on a sample of shape \(4, 16, 16\)"
    ):
        network_of(Small(), (4, 16, 16))
    with pytest.raises(InvalidInput, match=r"it must be \(channels, height, width\)"):
        network_of(Small(), (16, 16))


@pytest.mark.parametrize("name", ["alexnet-ungrouped", "googlenet", "vgg16"])
@pytest.mark.parametrize("batch", [16, 64])
def test_every_layer_of_a_measured_step_has_its_time(name: str, batch: int) -> None:
    trace = MEASURED[f"{name}-b{batch}-tf32"]
    timed = times_of_trace(trace, made(name.removesuffix("-ungrouped")))
    assert timed.untimed == ()
    assert all(time.batch == batch for time in timed)
    layers_s = timed_network(name, timed.times).seconds
    both = {"forward", "backward"}
    whole_s = sum(k.seconds for call in trace if call.phase in both for k in call.kernels)
    assert layers_s + sum(timed.elsewhere_s.values()) == pytest.approx(whole_s)
    assert layers_s > 0.97 * whole_s


@pytest.mark.slow
def test_predicted_work_makes_layers_of_one_net_predict_another() -> None:
    gpu, predictor = wavecast.device("h200-sxm"), Learned.shipped()
    errors = {}
    works, times = {}, {}
    for name in ("googlenet", "vgg16"):
        for batch in (16, 64):
            trace = MEASURED[f"{name}-b{batch}-tf32"]
            works[name, batch] = predicted_work(trace, made(name), gpu, predictor)
            times[name, batch] = times_of_trace(trace, made(name), work=works[name, batch])
    model = PerLayer().fit([*times["googlenet", 16], *times["googlenet", 64]])
    for batch in (16, 64):
        predicted = model.predict(made("vgg16"), batch, work=works["vgg16", batch])
        actual = timed_network("vgg16", times["vgg16", batch].times)
        errors[batch] = predicted.seconds / actual.seconds - 1
    assert max(map(abs, errors.values())) < 0.23


def test_traces_that_cannot_give_times_are_refused() -> None:
    trace = MEASURED["vgg16-b16-tf32"]
    with pytest.raises(InvalidInput, match="no module of this trace is a layer of Small"):
        times_of_trace(trace, network_of(Small(), (3, 16, 16)))
    bare = Trace(trace.calls, samples=None)
    with pytest.raises(InvalidInput, match="does not say its batch"):
        times_of_trace(bare, made("vgg16"))
    assert times_of_trace(bare, made("vgg16"), batch=16).times[0].batch == 16
    with pytest.raises(InvalidInput, match="no kernel"):
        times_of_trace(Trace((), samples=1), made("vgg16"))
    with pytest.raises(InvalidInput, match="none of the 0 calls"):
        network_of_trace(Trace((), samples=1))
    with pytest.raises(InvalidInput, match="counts tokens, which do not say its batch"):
        network_of_trace(SUITE["gpt2-b2-fp32"])


def test_an_op_that_cannot_be_is_no_layer() -> None:
    def pool(**attrs: tuple[int, ...]) -> Call:
        image = TensorSpec((2, 3, 8, 8), "float32")
        op = Op("aten.avg_pool2d", (image,), (image,), tuple(attrs.items()))
        return Call(op, Phase.FORWARD, "net.pool")

    relu = TensorSpec((2, 3, 8, 8), "float32")
    good = Call(Op("aten.relu", (relu,), (relu,)), Phase.FORWARD, "net.relu")
    net = network_of_trace(Trace((good, pool(kernel_size=(-1, 3)), pool()), samples=2))
    assert [layer.name for layer in net.layers] == ["net.relu"]
    assert net.unknown == ("net.pool (aten.avg_pool2d)",)
    odd = Call(Op("aten.relu", (), (TensorSpec((3, 8), "float32"),)), Phase.FORWARD, "net.odd")
    net = network_of_trace(Trace((good, odd), samples=2))
    assert net.unknown == ("net.odd (aten.relu)",), "no whole number of rows for a sample"


@pytest.mark.slow
def test_odd_traces_have_layers_or_are_refused() -> None:
    for seed in range(200):
        trace = odd_trace(random.Random(seed), 8, measured=True)
        try:
            network = network_of_trace(trace, batch=2)
            time = published("quadro-m6000").predict(network, 4)
            times_of_trace(trace, network, batch=2)
        except InvalidInput:
            continue
        assert time.seconds >= 0
        assert network.weights >= 0
