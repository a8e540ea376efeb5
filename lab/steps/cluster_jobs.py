"""The trainings that Gavel and Sia scheduled, rebuilt from their papers and the models' own.

Each function makes a step at a batch, as `wavecast.trace` takes it. Gavel: ResNet-18 on CIFAR-10,
ResNet-50 on ImageNet, the LSTM of PyTorch's language model example on Wikitext-2, an autoencoder on
ML-20M, CycleGAN. Sia: BERT on SQuAD, ResNet-18 on CIFAR-10, ResNet-50 on ImageNet, neural
collaborative filtering on MovieLens, YOLOv3 on PASCAL VOC.

PyTorch of those years updated one parameter after the other, so the optimizers do that here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast import suite
from wavecast.suite.models.vision import ResNet, image_step

Step = Callable[[], Any]


class BasicBlock(nn.Module):
    """Two convolutions around a shortcut (He et al., figure 2)."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        same = inner == outer and stride == 1
        projected = nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
        self.shortcut = nn.Identity() if same else nn.Sequential(*projected)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convs(x) + self.shortcut(x))


def resnet18_cifar(batch: int, precision: str) -> Step:
    """ResNet-18 for images of 32 pixels: no pooling in the stem."""
    widths = (64, 64, 128, 256, 512)
    blocks: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        blocks += [
            BasicBlock(inner, outer, 1 if inner == outer else 2),
            BasicBlock(outer, outer, 1),
        ]
    stem = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)
    model = nn.Sequential(*stem, *blocks, *head)
    return _classifying(model, (batch, 3, 32, 32), precision, 10)


def resnet50(batch: int, precision: str) -> Step:
    """ResNet-50 of the suite."""
    return _classifying(ResNet((3, 4, 6, 3), 64, 1000), (batch, 3, 224, 224), precision, 1000)


def bert(batch: int, precision: str) -> Step:
    """BERT-base with sequences of 384 tokens, as for SQuAD."""
    return suite.benchmark("bert-base").make_step(batch, precision, sequence=384)


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers of 200 and a decoder, as PyTorch's example has by default."""

    def __init__(self, words: int = 33_278, width: int = 200) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, dropout=0.2)
        self.dropout = nn.Dropout(0.2)
        self.decoder = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.decoder(self.dropout(outputs)).flatten(0, 1)


def language_model(batch: int, precision: str) -> Step:
    """35 words of each sequence, gradients clipped, plain SGD."""
    model = LanguageModel().cuda()
    tokens = torch.randint(33_278, (35, batch), device="cuda")
    targets = torch.randint(33_278, (35 * batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=20, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    return step


def recommendation(batch: int, precision: str) -> Step:
    """An autoencoder of the 20,108 films of ML-20M through 200 units."""
    films = 20_108
    model = nn.Sequential(nn.Linear(films, 200), nn.Tanh(), nn.Linear(200, films)).cuda()
    seen = torch.zeros(batch, films, device="cuda")
    return _minimising(model, lambda: F.mse_loss(model(seen), seen))


class Collaborative(nn.Module):
    """NeuMF: embeddings multiplied, and through a perceptron (He et al. 2017)."""

    def __init__(self, users: int = 6_040, items: int = 3_706, width: int = 32) -> None:
        super().__init__()
        sizes = (users, width), (items, width), (users, 4 * width), (items, 4 * width)
        self.tables = nn.ModuleList(nn.Embedding(*size) for size in sizes)
        layers: list[nn.Module] = []
        for inner, outer in pairwise((8 * width, 4 * width, 2 * width, width)):
            layers += [nn.Linear(inner, outer), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(2 * width, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        a, b, c, d = (
            table(index) for table, index in zip(self.tables, (user, item, user, item), strict=True)
        )
        deep = self.layers(torch.cat((c, d), -1))
        return self.out(torch.cat((a * b, deep), -1)).squeeze(-1)


def collaborative(batch: int, precision: str) -> Step:
    """NeuMF with Adam."""
    model = Collaborative().cuda()
    user, item = (torch.randint(3_706, (batch,), device="cuda") for _ in range(2))
    liked = torch.rand(batch, device="cuda")
    return _minimising(
        model, lambda: F.binary_cross_entropy_with_logits(model(user, item), liked), True
    )


def _conv(inner: int, outer: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inner, outer, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.LeakyReLU(0.1))


class DarkBlock(nn.Module):
    """A bottleneck of Darknet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(_conv(width, width // 2, 1), _conv(width // 2, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convs(x)


class Yolo(nn.Module):
    """YOLOv3: Darknet-53 and three heads (Redmon and Farhadi, 2018)."""

    def __init__(self, outputs: int = 75) -> None:
        super().__init__()
        stages = []
        for blocks, (inner, outer) in zip(
            (1, 2, 8, 8, 4), pairwise((32, 64, 128, 256, 512, 1024)), strict=True
        ):
            dark = (DarkBlock(outer) for _ in range(blocks))
            stages.append(nn.Sequential(_conv(inner, outer, 3, 2), *dark))
        self.stem, self.stages = _conv(3, 32), nn.ModuleList(stages)
        self.necks = nn.ModuleList()
        self.heads = nn.ModuleList()
        self.turns = nn.ModuleList()
        for inner, width in ((1024, 512), (768, 256), (384, 128)):
            wide = [_conv(inner, width, 1), _conv(width, 2 * width), _conv(2 * width, width, 1)]
            wide += [_conv(width, 2 * width), _conv(2 * width, width, 1)]
            self.necks.append(nn.Sequential(*wide))
            head = _conv(width, 2 * width), nn.Conv2d(2 * width, outputs, 1)
            self.heads.append(nn.Sequential(*head))
            self.turns.append(_conv(width, width // 2, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        x, kept = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        outputs, before = [], None
        for level, (neck, head, turn) in enumerate(
            zip(self.necks, self.heads, self.turns, strict=True)
        ):
            x = kept[-1 - level]
            if before is not None:
                x = torch.cat((F.interpolate(before, scale_factor=2.0), x), 1)
            x = neck(x)
            outputs.append(head(x))
            before = turn(x)
        return outputs


def yolo(batch: int, precision: str) -> Step:
    """Images of 416 pixels; the loss is a square in place of YOLO's own, which is small."""
    model = Yolo().cuda()
    images = torch.randn(batch, 3, 416, 416, device="cuda")
    return _minimising(model, lambda: torch.stack([y.square().mean() for y in model(images)]).sum())


def _generator() -> nn.Module:
    """Nine residual blocks between two ways down and up (Zhu et al. 2017)."""

    def normed(conv: nn.Module, width: int) -> list[nn.Module]:
        return [conv, nn.InstanceNorm2d(width), nn.ReLU(inplace=True)]

    layers = [nn.ReflectionPad2d(3), *normed(nn.Conv2d(3, 64, 7), 64)]
    for inner in (64, 128):
        layers += normed(nn.Conv2d(inner, 2 * inner, 3, 2, 1), 2 * inner)
    layers += [PaddedBlock(256) for _ in range(9)]
    for inner in (256, 128):
        up = nn.ConvTranspose2d(inner, inner // 2, 3, 2, 1, output_padding=1)
        layers += normed(up, inner // 2)
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(64, 3, 7), nn.Tanh())


class PaddedBlock(nn.Module):
    """Two padded convolutions and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        convs: list[nn.Module] = []
        for last in (False, True):
            convs += [nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)]
            convs += [] if last else [nn.ReLU(inplace=True)]
        self.convs = nn.Sequential(*convs)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convs(x)


def _discriminator() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
    for inner in (64, 128, 256):
        conv = nn.Conv2d(inner, 2 * inner, 4, 2, 1)
        layers += [conv, nn.InstanceNorm2d(2 * inner), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, padding=1))


def cycle_gan(batch: int, precision: str) -> Step:
    """Two generators and two discriminators on images of 256 pixels, one at a time."""
    there, back = _generator().cuda(), _generator().cuda()
    judges = nn.ModuleList([_discriminator().cuda() for _ in range(2)])
    ways = nn.ModuleList([there, back])
    a, b = (torch.randn(batch, 3, 256, 256, device="cuda") for _ in range(2))
    making = torch.optim.Adam(ways.parameters(), lr=2e-4, foreach=False)
    judging = torch.optim.Adam(judges.parameters(), lr=2e-4, foreach=False)

    def step() -> None:
        made_b, made_a = there(a), back(b)
        making.zero_grad()
        loss = F.l1_loss(back(made_b), a) + F.l1_loss(there(made_a), b)
        loss = loss + F.l1_loss(there(b), b) + F.l1_loss(back(a), a)
        for judge, fake in zip(judges, (made_a, made_b), strict=True):
            loss = loss + (judge(fake) - 1).square().mean()
        loss.backward()
        making.step()
        judging.zero_grad()
        for judge, real, fake in zip(judges, (a, b), (made_a, made_b), strict=True):
            right = (judge(real) - 1).square().mean() + judge(fake.detach()).square().mean()
            right.backward()
        judging.step()

    return step


def _minimising(model: nn.Module, loss: Callable[[], Tensor], adam: bool = False) -> Step:
    adam_of = partial(torch.optim.Adam, lr=1e-3, foreach=False)
    optimizer = adam_of(model.parameters()) if adam else _momentum(model)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _classifying(model: nn.Module, shape: Sequence[int], precision: str, classes: int) -> Step:
    model = model.cuda()
    return image_step(model, _momentum(model), shape, precision, "cuda", classes)


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)


JOBS: dict[tuple[str, str], Callable[[int, str], Step]] = {
    ("gavel", "ResNet-18"): resnet18_cifar,
    ("gavel", "ResNet-50"): resnet50,
    ("gavel", "LM"): language_model,
    ("gavel", "Recommendation"): recommendation,
    ("gavel", "CycleGAN"): cycle_gan,
    ("sia", "bert"): bert,
    ("sia", "cifar10"): resnet18_cifar,
    ("sia", "imagenet"): resnet50,
    ("sia", "ncf"): collaborative,
    ("sia", "yolov3"): yolo,
}
"""How each job type of a system is rebuilt."""
