"""Training steps by hand that compile in all the ways people do, to see what can be captured.

They are small: what matters is how they are written, and not how long they take.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.steps.small_nets import Denoiser, SequenceNet

Step = Callable[[], Any]
BATCH, WIDTH = 16, 64


class Own(nn.Module):
    """Layers one after the other, in a class of the user's.

    `Module.compile()` compiles nothing of torch's own `nn.Sequential`.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        """What the last layer makes of a batch."""
        return self.layers(x)


def perceptron(width: int = WIDTH) -> nn.Module:
    """Two products with a normalisation between them."""
    return Own(
        nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width), nn.Linear(4 * width, width)
    ).cuda()


def convolutions() -> nn.Module:
    """Two convolutions with batch norms, and a classifier."""
    return Own(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, WIDTH),
    ).cuda()


def rows(width: int = WIDTH) -> Any:
    """A batch of vectors."""
    return torch.randn(BATCH, width, device="cuda")


def pictures() -> Any:
    """A batch of small images."""
    return torch.randn(BATCH, 3, 32, 32, device="cuda")


def trained(model: nn.Module, run: Callable[[], Any], **options: Any) -> Step:
    """The step that minimises what `run` returns, with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)

    def step() -> None:
        optimizer.zero_grad()
        run().backward()
        optimizer.step()

    return step


# Ways of asking for compiled code.


def by_options(**options: Any) -> Callable[[], Step]:
    """A perceptron compiled with options of torch.compile."""

    def make() -> Step:
        model, x = perceptron(), rows()
        compiled = torch.compile(model, **options)
        return trained(model, lambda: compiled(x).square().mean())

    return make


def compiled_blocks() -> Step:
    """Each block of a model compiled on its own, in place."""
    model, x = nn.Sequential(*(perceptron() for _ in range(4))), rows()
    for block in model:
        block.compile(fullgraph=True)
    return trained(model, lambda: model(x).square().mean())


def compiled_function() -> Step:
    """A function that is compiled, with a loss, which calls a model that is not."""
    model, x = perceptron(), rows()

    def loss(y: Any) -> Any:
        return F.softplus(y).square().sum(-1).mean()

    compiled = torch.compile(loss)
    return trained(model, lambda: compiled(model(x)))


def compiled_step() -> Step:
    """The whole step compiled, backward pass and update outside of the graphs of torch."""
    model, x = perceptron(), rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return model(x).square().mean()

    compiled = torch.compile(forward)

    def step() -> None:
        compiled().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compiled_optimizer() -> Step:
    """A compiled model, and a compiled update."""
    model, x = perceptron(), rows()
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    update = torch.compile(optimizer.step)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        update()

    return step


def disabled_part() -> Step:
    """A compiled model with a part that must not be compiled."""
    model, x = perceptron(), rows()

    apart = torch.compiler.disable(lambda y: y.cumsum(-1))

    def run() -> Any:
        return apart(model(x)).square().mean()

    return trained(model, torch.compile(run))


# Ways of training.


def recurrent(kind: type[nn.RNNBase]) -> Callable[[], Step]:
    """A recurrent layer between two others."""

    def make() -> Step:
        layer = kind(WIDTH, WIDTH, num_layers=2, batch_first=True).cuda()
        head = perceptron()
        model = nn.ModuleList([layer, head])
        x = torch.randn(BATCH, 12, WIDTH, device="cuda")

        def run() -> Any:
            return head(layer(x)[0]).square().mean()

        return trained(model, torch.compile(run))

    return make


def cells() -> Step:
    """A recurrent net in a loop of Python."""
    cell, head = nn.LSTMCell(WIDTH, WIDTH).cuda(), perceptron()
    model = nn.ModuleList([cell, head])
    x = torch.randn(6, BATCH, WIDTH, device="cuda")

    def run() -> Any:
        state: Any = None
        for moment in x:
            state = cell(moment, state)
        return head(state[0]).square().mean()

    return trained(model, torch.compile(run))


def sequences() -> Step:
    """The recurrent net of the lab, as users compile it."""
    model = SequenceNet().cuda()
    tokens = torch.randint(0, 10_000, (BATCH, 20), device="cuda")
    model.compile()
    return trained(model, lambda: model(tokens).square().mean())


def graph_net() -> Step:
    """Messages between the nodes of a graph, gathered and scattered."""
    enter, leave = perceptron(), perceptron()
    model = nn.ModuleList([enter, leave])
    x = torch.randn(200, WIDTH, device="cuda")
    source, target = torch.randint(0, 200, (2, 1000), device="cuda")

    def run() -> Any:
        messages = enter(x)[source]
        summed = torch.zeros_like(x).index_add(0, target, messages)
        counts = torch.zeros(200, 1, device="cuda").scatter_add(
            0, target[:, None], torch.ones(1000, 1, device="cuda")
        )
        return leave(summed / counts.clamp(min=1)).square().mean()

    return trained(model, torch.compile(run))


def denoiser() -> Step:
    """A U-Net under autocast, in channels last."""
    model = Denoiser(16).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(4, 4, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    time = torch.rand(4, device="cuda")
    compiled = torch.compile(model)

    def run() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return F.mse_loss(compiled(x, time), x)

    return trained(model, run)


def channels_last() -> Step:
    """Convolutions in channels last, with fused SGD."""
    model = convolutions().to(memory_format=torch.channels_last)
    x = pictures().contiguous(memory_format=torch.channels_last)
    model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    return step


def adversarial() -> Step:
    """Two compiled nets against each other, each with an optimizer."""
    maker, critic = perceptron(), perceptron()
    maker.compile()
    critic.compile()
    first = torch.optim.Adam(maker.parameters(), lr=1e-4)
    second = torch.optim.Adam(critic.parameters(), lr=1e-4)
    real = rows()

    def step() -> None:
        made = maker(torch.randn(BATCH, WIDTH, device="cuda"))
        second.zero_grad()
        (critic(made.detach()).mean() - critic(real).mean()).backward()
        second.step()
        first.zero_grad()
        (-critic(made).mean()).backward()
        first.step()

    return step


def towers() -> Step:
    """Two towers and a contrastive loss, which is compiled with them."""
    left, right = perceptron(), convolutions()
    model = nn.ModuleList([left, right])
    scale = nn.Parameter(torch.ones((), device="cuda"))
    x, y = rows(), pictures()

    def run() -> Any:
        a, b = F.normalize(left(x), dim=-1), F.normalize(right(y), dim=-1)
        scores = scale.exp() * a @ b.T
        labels = torch.arange(BATCH, device=scores.device)
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2

    return trained(model, torch.compile(run))


def accumulated() -> Step:
    """Gradients of four batches, clipped, and a schedule."""
    model, batches = perceptron(), [rows() for _ in range(4)]
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

    def step() -> None:
        for x in batches:
            (model(x).square().mean() / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def checkpointed() -> Step:
    """Blocks that are computed again in the backward pass, inside of the compiled code."""
    model, x = nn.ModuleList(perceptron() for _ in range(3)), rows()

    def run() -> Any:
        y = x
        for block in model:
            y = checkpoint(block, y, use_reentrant=False)
        return y.square().mean()

    return trained(model, torch.compile(run))


def checkpointed_outside() -> Step:
    """Compiled blocks that are computed again in the backward pass."""
    model, x = nn.ModuleList(perceptron() for _ in range(3)), rows()
    for block in model:
        block.compile()

    def run() -> Any:
        y = x
        for block in model:
            y = checkpoint(block, y, use_reentrant=False)
        return y.square().mean()

    return trained(model, run)


def scaled() -> Step:
    """float16 with a GradScaler and clipping."""
    model, x = convolutions(), pictures()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = compiled(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def averaged() -> Step:
    """A moving average of the weights."""
    model, x = perceptron(), rows()
    average = copy.deepcopy(model)
    model.compile()
    update = trained(model, lambda: model(x).square().mean())

    def step() -> None:
        update()
        with torch.no_grad():
            pairs = zip(average.parameters(), model.parameters(), strict=True)
            for kept, new in pairs:
                kept.lerp_(new, 0.01)

    return step
