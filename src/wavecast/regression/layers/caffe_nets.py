"""AlexNet, GoogLeNet and VGG-16, layer by layer, as in Caffe's reference files.

They reproduce tables 2 and 3 of Gianniti et al. 2019 with these conventions: AlexNet in one group
and in the order of `bvlc_alexnet` (normalize, then pool), pools that round up, and both auxiliary
heads of GoogLeNet. Layers have the names of Caffe's files, so that the log of `caffe time` matches.
"""

from __future__ import annotations

from collections.abc import Callable

from wavecast.errors import UnknownName
from wavecast.regression.layers.complexities import (
    LayerCategory,
    Network,
    NetworkLayer,
    Shape,
    convolved_side,
    joined,
    pooled_side,
)


class _Builder:
    """Adds layers one after the other; `shape` is the input of the next layer."""

    def __init__(self, inputs: Shape) -> None:
        self.inputs = self.shape = inputs
        self.layers: list[NetworkLayer] = []

    def _add(self, name: str, kind: LayerCategory, outputs: Shape, **options: object) -> None:
        self.layers.append(NetworkLayer(name, kind, self.shape, outputs, **options))  # type: ignore[arg-type]
        self.shape = outputs

    def conv(
        self, name: str, filters: int, kernel: int, stride: int = 1, pad: int = 0, relu: str = ""
    ) -> None:
        height, width = (convolved_side(side, kernel, stride, pad) for side in self.shape[1:])
        options = {"kernel": (kernel, kernel), "stride": stride}
        self._add(name, LayerCategory.CONV, (filters, height, width), **options)
        self._add(relu, LayerCategory.RELU, self.shape, in_place=True)

    def pool(self, name: str, kernel: int, stride: int, pad: int = 0) -> None:
        height, width = (pooled_side(side, kernel, stride, pad) for side in self.shape[1:])
        options = {"kernel": (kernel, kernel), "stride": stride}
        self._add(name, LayerCategory.POOL, (self.shape[0], height, width), **options)

    def norm(self, name: str) -> None:
        self._add(name, LayerCategory.NORM, self.shape)

    def hidden(self, name: str, units: int, relu: str, dropout: str) -> None:
        self._add(name, LayerCategory.FC, (units, 1, 1))
        self._add(relu, LayerCategory.RELU, self.shape, in_place=True)
        self.dropout(dropout)

    def dropout(self, name: str) -> None:
        self._add(name, LayerCategory.DROPOUT, self.shape, in_place=True)

    def classify(self, name: str, loss: str, classes: int = 1000) -> None:
        self._add(name, LayerCategory.FC, (classes, 1, 1))
        self._add(loss, LayerCategory.LOSS, (1, 1, 1))


def alexnet() -> Network:
    """AlexNet: `bvlc_alexnet` without groups."""
    net = _Builder((3, 227, 227))
    net.conv("conv1", 96, 11, stride=4, relu="relu1")
    net.norm("norm1")
    net.pool("pool1", 3, 2)
    net.conv("conv2", 256, 5, pad=2, relu="relu2")
    net.norm("norm2")
    net.pool("pool2", 3, 2)
    net.conv("conv3", 384, 3, pad=1, relu="relu3")
    net.conv("conv4", 384, 3, pad=1, relu="relu4")
    net.conv("conv5", 256, 3, pad=1, relu="relu5")
    net.pool("pool5", 3, 2)
    net.hidden("fc6", 4096, "relu6", "drop6")
    net.hidden("fc7", 4096, "relu7", "drop7")
    net.classify("fc8", "loss")
    return Network("AlexNet", net.inputs, tuple(net.layers), depth=8)


def vgg16() -> Network:
    """VGG-16, configuration D."""
    net = _Builder((3, 224, 224))
    for stage, (filters, convolutions) in enumerate(
        ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1
    ):
        for number in range(1, convolutions + 1):
            name = f"{stage}_{number}"
            net.conv(f"conv{name}", filters, 3, pad=1, relu=f"relu{name}")
        net.pool(f"pool{stage}", 2, 2)
    net.hidden("fc6", 4096, "relu6", "drop6")
    net.hidden("fc7", 4096, "relu7", "drop7")
    net.classify("fc8", "loss")
    return Network("VGG-16", net.inputs, tuple(net.layers), depth=16)


# Numbers of filters: 1x1; reduction for 3x3, 3x3; reduction for 5x5, 5x5; after the pool.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet() -> Network:
    """GoogLeNet: `bvlc_googlenet` with both auxiliary heads."""
    net = _Builder((3, 224, 224))
    net.conv("conv1/7x7_s2", 64, 7, stride=2, pad=3, relu="conv1/relu_7x7")
    net.pool("pool1/3x3_s2", 3, 2)
    net.norm("pool1/norm1")
    net.conv("conv2/3x3_reduce", 64, 1, relu="conv2/relu_3x3_reduce")
    net.conv("conv2/3x3", 192, 3, pad=1, relu="conv2/relu_3x3")
    net.norm("conv2/norm2")
    net.pool("pool2/3x3_s2", 3, 2)
    for name in _INCEPTIONS:
        _inception(net, name)
        if name in ("3b", "4e"):
            stage = int(name[0])
            net.pool(f"pool{stage}/3x3_s2", 3, 2)
        elif name == "4a":
            _head(net, "loss1")
        elif name == "4d":
            _head(net, "loss2")
    net.pool("pool5/7x7_s1", 7, 1)
    net.dropout("pool5/drop_7x7_s1")
    net.classify("loss3/classifier", "loss3/loss3")
    return Network("GoogLeNet", net.inputs, tuple(net.layers), depth=22)


def _inception(net: _Builder, module: str) -> None:
    one, before_three, three, before_five, five, last = _INCEPTIONS[module]
    before, name = net.shape, f"inception_{module}"

    def conv(part: str, filters: int, kernel: int) -> None:
        net.conv(f"{name}/{part}", filters, kernel, pad=kernel // 2, relu=f"{name}/relu_{part}")

    outputs = []
    conv("1x1", one, 1)
    outputs.append(net.shape)
    for part, reduced, filters, kernel in (
        ("3x3", before_three, three, 3),
        ("5x5", before_five, five, 5),
    ):
        net.shape = before
        conv(f"{part}_reduce", reduced, 1)
        conv(part, filters, kernel)
        outputs.append(net.shape)
    net.shape = before
    net.pool(f"{name}/pool", 3, 1, pad=1)
    conv("pool_proj", last, 1)
    outputs.append(net.shape)
    net.shape = joined(outputs)
    net._add(f"{name}/output", LayerCategory.CONCAT, net.shape)


def _head(net: _Builder, name: str) -> None:
    """Adds an auxiliary classifier; the main path continues from the same input."""
    before = net.shape
    net.pool(f"{name}/ave_pool", 5, 3)
    net.conv(f"{name}/conv", 128, 1, relu=f"{name}/relu_conv")
    net.hidden(f"{name}/fc", 1024, f"{name}/relu_fc", f"{name}/drop_fc")
    net.classify(f"{name}/classifier", f"{name}/loss")
    net.shape = before


NETWORKS: dict[str, Callable[[], Network]] = {
    "alexnet": alexnet,
    "googlenet": googlenet,
    "vgg16": vgg16,
}


def caffe_net(name: str) -> Network:
    """The network with a name: "alexnet", "googlenet" or "vgg16".

    Raises:
        UnknownName: There is no such network.
    """
    plain = name.strip().lower().replace("-", "").replace("_", "")
    if plain not in NETWORKS:
        raise UnknownName(f'no reference network is named "{name}"; known: {", ".join(NETWORKS)}')
    return NETWORKS[plain]()
