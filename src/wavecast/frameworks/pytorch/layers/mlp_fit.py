"""Training of Habitat's MLPs (sections 4.3.1 and 4.3.2), on the CPU or as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from wavecast.frameworks.pytorch.recording.switches import true_float32

Floats = NDArray[np.float64]
Weights = tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The size of an MLP and how it is trained. The defaults are Habitat's published values."""

    width: int = 1024
    depth: int = 8
    """The number of layers from `width` to `width`, after the layer that takes the features."""
    epochs: int = 80
    batch: int = 512
    rate: float = 5e-4
    late_rate: float = 1e-4
    late_after: int = 40
    """The number of epochs with `rate`; the later ones use `late_rate`."""
    decay: float = 1e-4
    seed: int = 0

    @classmethod
    def sized(cls, width: int, epochs: int) -> Recipe:
        """The published recipe with another width and number of epochs.

        As published, the learning rate drops after half of the epochs.
        """
        return cls(width=width, epochs=epochs, late_after=epochs // 2)


@dataclass(frozen=True)
class Fitted:
    """A trained MLP. It predicts milliseconds."""

    mean: Floats
    """The mean of each feature in the training set."""
    scale: Floats
    """One over the standard deviation of each feature; 0 for a feature that never varied."""
    weights: Weights
    """The matrix (out, in) and the bias of each layer."""
    losses: tuple[float, ...]
    """The mean loss of each epoch."""


def network(features: int, width: int = 1024, depth: int = 8) -> nn.Sequential:
    """Habitat's network: features to width, `depth` times width to width, ReLUs, one output."""
    sizes = [features, *[width] * (depth + 1)]
    layers: list[nn.Module] = []
    for inwards, out in pairwise(sizes):
        layers += [nn.Linear(inwards, out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def fit(
    features: Floats,
    milliseconds: Floats,
    recipe: Recipe | None = None,
    *,
    device: str = "cpu",
    graph: bool = True,
) -> Fitted:
    """Train an MLP on standardised features, with Adam and the mean absolute percentage error.

    Args:
        recipe: how to train. None for the published recipe.
        graph: on a GPU, replay each step as a CUDA graph, which is many times faster.
    """
    recipe = recipe or Recipe()
    mean, scale = _standard(features)
    with true_float32(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        # Made on the CPU, so that training starts with the same weights on every device.
        model = network(features.shape[1], recipe.width, recipe.depth).to(device)
        inputs = torch.tensor((features - mean) * scale, dtype=torch.float32).to(device)
        target = torch.tensor(milliseconds, dtype=torch.float32).to(device)
        losses = _train(model, inputs, target, recipe, graph and device == "cuda")
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    weights = tuple((_array(layer.weight), _array(layer.bias)) for layer in linear)
    return Fitted(mean, scale, weights, losses)


def _standard(features: Floats) -> tuple[Floats, Floats]:
    mean, std = features.mean(0), features.std(0)
    # After rounding, a constant column may have a deviation of 1e-17: one over it would be huge.
    varied = std > 1e-9 * np.abs(mean)
    return mean, np.divide(1.0, std, out=np.zeros_like(std), where=varied)


def milliseconds(fitted: Fitted, features: Floats, device: str = "cpu") -> Floats:
    """The predictions of a trained MLP for many layers."""
    with torch.no_grad(), true_float32():
        scaled = (features - fitted.mean) * fitted.scale
        rows = torch.tensor(scaled, dtype=torch.float32).to(device)
        layers = [[torch.tensor(part).to(device) for part in pair] for pair in fitted.weights]
        predictions = []
        for part in rows.split(1 << 15):
            for number, (matrix, bias) in enumerate(layers):
                part = torch.addmm(bias, part, matrix.T)
                if number < len(layers) - 1:
                    part = part.relu_()
            predictions.append(part[:, 0])
        joined: Floats = torch.cat(predictions).double().cpu().numpy()
    return joined


def split_by_configuration(layers: NDArray[Any], share: float = 0.8, seed: int = 0) -> NDArray[Any]:
    """Whether each row is for training. All rows of one configuration, on all GPUs, go together."""
    configurations, which = np.unique(layers, axis=0, return_inverse=True)
    count = len(configurations)
    chosen = np.zeros(count, dtype=bool)
    chosen[np.random.default_rng(seed).permutation(count)[: round(share * count)]] = True
    return chosen[which.reshape(-1)]


def _train(
    model: nn.Sequential, inputs: Any, target: Any, recipe: Recipe, graph: bool
) -> tuple[float, ...]:
    rows, batch = len(target), min(recipe.batch, len(target))
    steps = -(-rows // batch)
    chosen = torch.arange(batch, device=inputs.device)
    total = torch.zeros((), device=inputs.device)
    rate = torch.tensor(recipe.rate, device=inputs.device)
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=rate if graph else recipe.rate,
        weight_decay=recipe.decay,
        capturable=graph,
        fused=inputs.device.type == "cuda",
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        expected = target[chosen]
        loss = ((model(inputs[chosen])[:, 0] - expected).abs() / expected).mean()
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())

    run = _captured(step, model, optimizer) if graph else step
    total.zero_()
    losses = []
    shuffle = torch.Generator(inputs.device).manual_seed(recipe.seed)
    for epoch in range(recipe.epochs):
        if epoch == recipe.late_after:
            _set_rate(optimizer, recipe.late_rate)
        order = torch.randperm(rows, generator=shuffle, device=inputs.device)
        # The last batch is filled up with the first rows, because a graph has a fixed batch size.
        order = torch.cat([order, order[: steps * batch - rows]])
        for part in order.split(batch):
            chosen.copy_(part)
            run()
        losses.append(float(total) / steps)
        total.zero_()
    return tuple(losses)


def _set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _captured(step: Callable[[], None], model: nn.Module, optimizer: Any) -> Callable[[], None]:
    """The step as a CUDA graph. Weights and optimizer are reset to their state before capture."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
    replay: Callable[[], None] = graph.replay
    return replay


def _array(tensor: Any) -> NDArray[np.float32]:
    values: NDArray[np.float32] = tensor.detach().cpu().numpy()
    return values
