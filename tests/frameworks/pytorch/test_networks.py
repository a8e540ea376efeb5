"""The layers of modules, and their times in steps measured on our GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from regression.counted import ops_by_category
from torch import Tensor, nn

import wavecast
from lab.measured import campaigns
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.networks import network_of
from wavecast.predictors.learned.predictor import Learned
from wavecast.regression.caffe_nets import caffe_net
from wavecast.regression.complexities import LayerCategory, Network, Pass
from wavecast.regression.layer_times import predicted_work, times_of_trace
from wavecast.regression.per_layer import PerLayer, timed_network
from wavecast.suite.classics import VGG, AlexNet, GoogLeNet
from wavecast.traces.step import Trace

MEASURED = campaigns.traces("runs")
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
    for which in Pass:
        assert ops_by_category(ours, which) == ops_by_category(theirs, which)


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

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.pool(self.relu(x))
        x = F.relu(x)  # a function, not a module, so it is not a layer
        return self.head(self.drop(self.last(x).flatten(1)))


def test_any_module_of_such_layers_works_and_others_are_named() -> None:
    model = Small()
    before = model.norm.running_mean.clone()
    net = network_of(model, (3, 16, 16), name="small")
    assert [(layer.name, layer.kind, layer.outputs) for layer in net.layers] == [
        ("conv", LayerCategory.CONV, (8, 8, 8)),
        ("relu", LayerCategory.RELU, (8, 8, 8)),
        ("relu", LayerCategory.RELU, (8, 8, 8)),
        ("pool", LayerCategory.POOL, (8, 4, 4)),
        ("last", LayerCategory.POOL, (8, 1, 1)),
        ("drop", LayerCategory.DROPOUT, (8, 1, 1)),
        ("head", LayerCategory.FC, (5, 1, 1)),
    ]
    assert net.unknown == ("norm (BatchNorm2d)",)
    assert net.weights == sum(p.numel() for p in model.parameters()) - 16
    assert (net.layers[3].kernel, net.layers[3].stride) == ((2, 2), 2)
    assert (net.layers[4].kernel, net.layers[4].stride) == ((4, 4), 1)
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
