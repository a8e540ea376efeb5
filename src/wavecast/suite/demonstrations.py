"""Small trainings that show that the suite's models learn: one for each of TBD's six domains.

TBD compares what its models reach with what was published: 75 to 80% of ImageNet's images, 20 BLEU,
19 points in Pong (section III). That takes days. Here small variants of the models learn synthetic
tasks that a model cannot solve by chance, on a CPU and in seconds. Each task states the quality
that counts as solved, which is measured on data that was not trained on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wavecast.errors import InvalidInput
from wavecast.results import Shown
from wavecast.suite import benchmark
from wavecast.suite.models.detection import overlap
from wavecast.suite.models.reinforcement import follow_the_light
from wavecast.suite.training import TrainingStep

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Demonstration:
    """A small model that learns a synthetic task, and the quality that counts as learned."""

    model: str
    """The model of the suite."""
    task: str
    measure: str
    """What the quality is."""
    needed: float
    """The least quality that counts as learned."""
    steps: int
    """How many training steps it gets."""
    make: Callable[[float | None, str], Learner]
    """Builds the model, its data and its test, given the learning rate (None for the default) and
    the device."""
    usual_steps: int = 0
    """How many steps it usually takes to reach the needed quality: the median of five seeds on a
    CPU (`python -m lab score time_to_quality --seeds`)."""

    @property
    def domain(self) -> str:
        """The application domain of the model."""
        return benchmark(self.model).domain


@dataclass(frozen=True)
class Learner:
    """A training step, where its batches come from, and how its quality is measured."""

    step: TrainingStep
    refill: Callable[[], Inputs]
    """Returns a new batch."""
    quality: Callable[[], float]
    """The quality on new data."""

    def fill(self) -> None:
        """Make a batch, and write it into the inputs of the step."""
        for tensor, values in zip(self.step.inputs, self.refill(), strict=True):
            tensor.copy_(values)

    def train(self) -> None:
        """Make a batch, and run a training step on it."""
        self.fill()
        self.step()


@dataclass(frozen=True)
class SmallTraining:
    """What a demonstration reached."""

    domain: str
    model: str
    task: str
    measure: str
    steps: int
    before: float
    """The quality before the first step."""
    reached: float
    needed: float

    @property
    def learned(self) -> bool:
        """Whether it reached the needed quality."""
        return self.reached >= self.needed


def train(
    demonstration: Demonstration, *, learning_rate: float | None = None, seed: int = 1
) -> SmallTraining:
    """Train a demonstration, and return the quality that it reached.

    Args:
        demonstration: one of `DEMONSTRATIONS`.
        learning_rate: None for the demonstration's own; 0 shows what it reaches without learning.
        seed: of weights and data. The state of torch's generator is the same afterwards.
    """
    with seeded(seed):
        learner = demonstration.make(learning_rate, "cpu")
        before = learner.quality()
        for _ in range(demonstration.steps):
            learner.train()
        reached = learner.quality()
    shared = ("domain", "model", "task", "measure", "steps", "needed")
    facts = {name: getattr(demonstration, name) for name in shared}
    return SmallTraining(before=before, reached=reached, **facts)


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """A block whose weights and data are those of the seed, made on the device.

    On a CPU it computes on one thread: models this small only wait for several, and results repeat.
    The state of torch's generators is the same afterwards.
    """
    before = torch.get_num_threads()
    own = range(torch.cuda.device_count()) if device == "cuda" else []
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=own), torch.device(device):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def _made(
    name: str, batch: int, rate: float | None, device: str, usual: float, **sizes: Any
) -> TrainingStep:
    learning_rate = usual if rate is None else rate
    return benchmark(name).make_step(batch, device=device, learning_rate=learning_rate, **sizes)


def _classifier(rate: float | None, device: str) -> Learner:
    """ResNet classifies the direction of stripes in a noisy image, one of three."""
    sizes = {"image": 32, "classes": 3, "layers": (1, 1, 1, 1), "width": 8}
    return stripes(_made("resnet50", 32, rate, device, 0.02, **sizes))


def stripes(step: TrainingStep, noise: float = 1.0) -> Learner:
    """A classifier of images that learns the direction of stripes in noise, one of three."""
    batch, _, side, _ = step.inputs[0].shape
    across = torch.arange(side).expand(side, side)
    place = torch.stack([across, across.T, across + across.T])

    def refill() -> Inputs:
        labels = torch.randint(3, (batch,))
        shift = torch.randint(8, (batch, 1, 1))
        stripe = ((place[labels] + shift) % 8 < 4).float() * 2 - 1
        return stripe[:, None] + noise * torch.randn(batch, 3, side, side), labels

    def quality() -> float:
        images, labels = _joined(refill, 8)
        guessed = _evaluated(step, images).argmax(dim=1)
        return float((guessed == labels).float().mean())

    return Learner(step, refill, quality)


def _translator(rate: float | None, device: str) -> Learner:
    """Seq2Seq reverses a sentence; the quality is the share of tokens that are right."""
    sizes = {"shortest": 2, "longest": 4, "width": 32, "vocabulary": 7}
    step = _made("nmt", 32, rate, device, 1.0, dropout=0.0, **sizes)
    source, _, following = (held > 0 for held in step.inputs)
    lengths = source.sum(dim=1, keepdim=True)
    backwards = (lengths - 1 - torch.arange(following.shape[1])) % lengths

    def refill() -> Inputs:
        words = torch.randint(1, 7, source.shape) * source
        translation = words.gather(1, backwards) * following
        said_before = torch.cat([torch.ones(32, 1), translation[:, :-1]], dim=1) * following
        return words, said_before, translation

    def quality() -> float:
        right = total = 0.0
        for _ in range(8):
            words, said_before, translation = refill()
            guessed = _evaluated(step, words, lengths.squeeze(1).tolist(), said_before.long())
            right += float(((guessed.argmax(dim=-1) == translation) & following).sum())
            total += float(following.sum())
        return right / total

    return Learner(step, refill, quality)


def _detector(rate: float | None, device: str) -> Learner:
    """Faster R-CNN finds a bright or dark rectangle; the quality is its best proposal's overlap."""
    step = _made(
        *("faster-rcnn", 8, rate, device, 0.02),
        image=(64, 64),
        objects=2,
        classes=3,
        layers=(1, 1, 1, 1),
        width=8,
        hidden=64,
        scales=(16, 32, 64),
        proposals=60,
        regions=16,
        anchors=16,
        side=4,
        frozen=False,
    )
    model = step.model

    def refill() -> Inputs:
        images, boxes = 0.2 * torch.randn(8, 3, 64, 64), torch.zeros(8, 2, 4)
        labels = torch.zeros(8, 2, dtype=torch.long)  # the second place of each is left empty
        labels[:, 0] = torch.randint(1, 3, (8,))
        for image, box, label in zip(images, boxes[:, 0], labels[:, 0], strict=True):
            sides = torch.randint(20, 40, (2,))
            corner = (torch.rand(2) * (64 - sides)).long()
            (x, y), (right, bottom) = corner.tolist(), (corner + sides).tolist()
            image[:, y:bottom, x:right] += 2 if label == 2 else -2
            box[:] = torch.tensor([x, y, right, bottom])
        return images, boxes, labels

    def quality() -> float:
        overlaps = []
        for _ in range(5):
            images, boxes, _labels = refill()
            with torch.no_grad():
                proposals, _ = model.select(*model.propose(model.body(images)), images)
            overlaps.append(overlap(proposals[:, :1], boxes[:, :1]).mean())
        return float(torch.stack(overlaps).mean())

    return Learner(step, refill, quality)


def _listener(rate: float | None, device: str) -> Learner:
    """Deep Speech 2 spells tones of three pitches; the quality is the share of right letters."""
    sizes = {"seconds": 0.6, "frequencies": 17, "channels": 4, "layers": 2, "width": 32}
    step = _made("deep-speech-2", 8, rate, device, 3e-4, letters=3, **sizes)
    spectrograms, text = (held.clone() for held in step.inputs)
    frames, band = torch.arange(spectrograms.shape[-1]), torch.arange(17) // 4
    place = (frames // 7).clamp(max=text.shape[1] - 1)
    letters = (text > 0).sum(dim=1, keepdim=True)

    def refill() -> Inputs:
        spelled = torch.randint(1, 4, text.shape) * (text > 0)
        heard = spelled[:, place] * (frames < 7 * letters)
        # A letter lasts five of seven frames, so there is a pause between two equal letters.
        loud = (band[:, None] == heard[:, None] - 1) & (frames % 7 < 5)
        return 2.0 * loud[:, None] + 0.1 * torch.randn_like(spectrograms), spelled

    def quality() -> float:
        sound, spelled = refill()
        wrong = total = 0
        with torch.no_grad():
            for heard, letters in zip(sound, spelled, strict=True):
                count = int((letters > 0).sum())
                long = min(7 * count + 7, sound.shape[-1])
                logits = _evaluated(step, heard[None, ..., :long], [long], part=0)
                wrong += _distance(_best_path(logits[:, 0]), letters[:count].tolist())
                total += count
        return 1 - wrong / total

    return Learner(step, refill, quality)


def _painter(rate: float | None, device: str) -> Learner:
    """WGAN-GP learns the brightness of images; the quality is 1 less the mean difference."""
    step = _made("wgan-gp", 16, rate, device, 1e-3, image=8, width=8, noise=8, critic_steps=3)

    def refill() -> Inputs:
        return ((0.6 + 0.1 * torch.randn(3, 16, 3, 8, 8)).clamp(-1, 1),)

    def quality() -> float:
        with torch.no_grad():
            images = step.model["generator"](torch.randn(64, 8))
        return 1 - float((images - 0.6).abs().mean())

    return Learner(step, refill, quality)


def _player(rate: float | None, device: str) -> Learner:
    """A3C learns a game of three actions; the quality is the share of rewarded actions."""
    step = _made("a3c", 16, rate, device, 3e-3, image=20, actions=3, discount=0.5)

    def refill() -> Inputs:
        return tuple(held.clone() for held in step.inputs)  # the actors play on

    def quality() -> float:
        frames, _, _ = follow_the_light(step.inputs[0], torch.zeros(16), 3)
        rewards = []
        for _ in range(20):
            with torch.no_grad():
                chances = step.model(frames)[0].softmax(dim=1)
            action = torch.multinomial(chances, 1).squeeze(1)
            frames, reward, _ = follow_the_light(frames, action, 3)
            rewards.append(reward)
        return float(torch.stack(rewards).mean())

    return Learner(step, refill, quality)


def _joined(refill: Callable[[], Inputs], batches: int) -> Inputs:
    parts = zip(*(refill() for _ in range(batches)), strict=True)
    return tuple(torch.cat(part) for part in parts)


def _evaluated(step: TrainingStep, *inputs: object, part: int | None = None) -> Tensor:
    """The model's answer in evaluation mode; one part of it if it has several."""
    step.model.eval()
    with torch.no_grad():
        answer = step.model(*inputs)
    step.model.train()
    result: Tensor = answer if part is None else answer[part]
    return result


def _best_path(logits: Tensor) -> list[int]:
    """The letters of the likeliest path: repeated ones count once, and blanks (0) not at all."""
    path = logits.argmax(dim=-1).unique_consecutive().tolist()
    return [letter for letter in path if letter]


def _distance(heard: list[int], spelled: list[int]) -> int:
    """How many letters to insert, delete or replace to make one text of the other."""
    row = list(range(len(spelled) + 1))
    for count, letter in enumerate(heard, start=1):
        diagonal, row[0] = row[0], count
        for place, other in enumerate(spelled, start=1):
            replaced = diagonal + (letter != other)
            diagonal = row[place]
            row[place] = min(replaced, row[place] + 1, row[place - 1] + 1)
    return row[-1]


_STRIPES = "stripes in three directions, in noise", "images that are classified rightly"
_REVERSED = "sentences of 2 to 4 words, said backwards", "words that are right"
_BOX = "a bright or dark rectangle", "overlap of the best proposal with the object"
_TONES = "tones of three pitches as letters", "letters that are right"
_BRIGHTNESS = "the brightness of real images", "1 less the mean difference in brightness"
_GAME = "a game of three actions", "actions that are rewarded"

DEMONSTRATIONS = (
    Demonstration("resnet50", *_STRIPES, 0.9, 150, _classifier, usual_steps=35),
    Demonstration("nmt", *_REVERSED, 0.85, 500, _translator, usual_steps=255),
    Demonstration("faster-rcnn", *_BOX, 0.5, 200, _detector, usual_steps=55),
    Demonstration("deep-speech-2", *_TONES, 0.9, 200, _listener, usual_steps=95),
    Demonstration("wgan-gp", *_BRIGHTNESS, 0.75, 150, _painter, usual_steps=75),
    Demonstration("a3c", *_GAME, 0.9, 150, _player, usual_steps=45),
)
"""One small training for each of TBD's domains."""


# Time to quality: a training that runs until its model is good enough, and its prediction.
#
# How many steps a model needs does not depend on the GPU; how long a step takes does. So the time
# to a quality is predicted from two parts: the steps that such a training usually takes, and the
# time of a few steps on the machine at hand, with the start-up that was seen by then. The training
# then runs until it reaches the quality, and both are compared. Making batches and testing are
# part of both.


FEW = 20
"""How many steps the prediction is made from."""
_FIRST = 5
"""Steps before these, which load libraries and are not counted."""
EVERY = 10
"""After this many steps the quality is tested."""
_MOST = 20
"""A training is given up after this many times its usual steps."""


@dataclass(frozen=True)
class TrainingToQuality(Shown):
    """A training that was predicted from a few steps, and then run until it was good enough."""

    domain: str
    model: str
    measure: str
    """What the quality is."""
    needed: float
    reached: float
    device: str
    """The id of the GPU, or "cpu"."""
    usual_steps: int
    """The steps that the prediction took: those that other seeds needed."""
    steps: int
    """The steps that it needed."""
    startup_s: float
    """Building the model, and what its first steps took beyond the usual."""
    step_s: float
    """The median of the few steps alone."""
    few_steps_s: float
    """The median of the few steps, with making a batch for each."""
    test_s: float
    """The first test."""
    predicted_s: float
    """The time to the quality, predicted from the few steps."""
    seconds: float
    """The time that it took, start-up and the first steps included."""
    usd_per_h: float | None = None
    """The price of the machine; None if it has none."""

    @property
    def learned(self) -> bool:
        """Whether it reached the needed quality."""
        return self.reached >= self.needed

    @property
    def error(self) -> float:
        """(predicted - actual) / actual; negative if it took longer than predicted."""
        return self.predicted_s / self.seconds - 1

    @property
    def step_error(self) -> float:
        """The part of the error that is due to the time of steps and tests alone."""
        spent_s = self.steps * self.few_steps_s + self.steps // EVERY * self.test_s
        return (self.startup_s + spent_s) / self.seconds - 1

    @property
    def predicted_usd(self) -> float | None:
        """The predicted cost; None without a price."""
        return None if self.usd_per_h is None else self.usd_per_h * self.predicted_s / 3600

    @property
    def usd(self) -> float | None:
        """What it cost; None without a price."""
        return None if self.usd_per_h is None else self.usd_per_h * self.seconds / 3600


def train_to_quality(
    demonstration: Demonstration,
    *,
    seed: int = 1,
    device: str = "cpu",
    gpu: str = "cpu",
    usual_steps: int | None = None,
    most_steps: int | None = None,
) -> TrainingToQuality:
    """Train until the needed quality is reached, and compare the time with its prediction.

    Args:
        demonstration: what to train.
        seed: of weights and data.
        device: "cpu" or "cuda".
        gpu: the id of the GPU.
        usual_steps: the steps to predict from; by default those of the demonstration.
        most_steps: give up after so many; by default after 20 times the usual ones.
    """
    usual = usual_steps or demonstration.usual_steps
    most = most_steps or _MOST * max(usual, FEW)
    with seeded(seed, device):
        began = _now(device)
        learner = demonstration.make(None, device)
        for _ in range(_FIRST):
            learner.train()
        started = _now(device)
        few = [_timed_step(learner, device) for _ in range(FEW)]
        alone_s, step_s = (statistics.median(times) for times in zip(*few, strict=True))
        before = _now(device)
        learner.quality()
        test_s = _now(device) - before
        steps, reached = _FIRST + FEW, 0.0
        while reached < demonstration.needed and steps < most:
            for _ in range(EVERY):
                learner.train()
            steps, reached = steps + EVERY, learner.quality()
        seconds = _now(device) - began
    startup_s = max(0.0, started - began - _FIRST * step_s)
    shared = {name: getattr(demonstration, name) for name in ("domain", "model", "measure")}
    return TrainingToQuality(
        **shared,
        needed=demonstration.needed,
        reached=reached,
        device=gpu,
        usual_steps=usual,
        steps=steps,
        startup_s=startup_s,
        step_s=alone_s,
        few_steps_s=step_s,
        test_s=test_s,
        predicted_s=startup_s + usual * step_s + usual // EVERY * test_s,
        seconds=seconds,
    )


def _timed_step(learner: Learner, device: str) -> tuple[float, float]:
    """The seconds of a step alone, and with making its batch."""
    begin = _now(device)
    learner.fill()
    filled = _now(device)
    learner.step()
    done = _now(device)
    return done - filled, done - begin


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _full_size(rate: float | None, device: str) -> Learner:
    """ResNet-50 as published, on images of 224 pixels with stripes of three directions."""
    learning_rate = 0.02 if rate is None else rate
    step = benchmark("resnet50").make_step(32, device=device, learning_rate=learning_rate)
    return stripes(step, noise=2.0)


FULL_SIZE = replace(DEMONSTRATIONS[0], make=_full_size, usual_steps=0)
"""A model of the suite at its published size, which needs a GPU. Its usual steps are those of a
first training of it, on any machine."""


def demonstration(model: str) -> Demonstration:
    """The small training of a model.

    Raises:
        InvalidInput: there is none.
    """
    known = {each.model: each for each in DEMONSTRATIONS}
    if model not in known:
        raise InvalidInput(f"there is no small training of {model}; known: {', '.join(known)}")
    return known[model]
