"""Callbacks that predict the step of real, tiny trainings on the CPU, and compare meanwhile."""

from __future__ import annotations

import logging
import random
from collections import namedtuple
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integrations.trainings import lightning_module, train_gpt, train_net

import wavecast
from wavecast.errors import CaptureError

torch = pytest.importorskip("torch")

Told = list[tuple[str, int]]


def clock(step_s: float) -> Any:
    """A clock that goes on by this much whenever it is read."""
    ticks = count()
    return lambda: next(ticks) * step_s


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def options(told: Told) -> dict[str, Any]:
    return {
        "warm_up": 2,
        "every": 4,
        "clock": clock(0.5),
        "told": lambda *message: told.append(message),
    }


def weights(model: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def messages(told: Told) -> str:
    return "\n".join(text for text, _ in told)


def gpt_predictor(**options: Any) -> Any:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from wavecast.integrations.huggingface import TrainerStepPredictor

    return TrainerStepPredictor("l4", **options)


def net_predictor(**options: Any) -> Any:
    from wavecast.integrations.lightning import LightningStepPredictor

    return LightningStepPredictor("l4", **options)


@pytest.mark.slow
def test_a_trainer_of_hugging_face_trains_as_without_the_callback(
    tmp_path: Path, transformers: Any, options: dict[str, Any]
) -> None:
    predictor = gpt_predictor(**options)
    watched = train_gpt(transformers, tmp_path, [predictor])
    plain = train_gpt(transformers, tmp_path, [])
    assert predictor.watch.prediction is not None
    for one, other in zip(weights(watched.model), weights(plain.model), strict=True):
        assert torch.equal(one, other)  # dropout included: the random numbers are the same
    losses = [[row.get("loss") for row in each.state.log_history] for each in (watched, plain)]
    assert losses[0] == losses[1]
    assert not watched.model._forward_pre_hooks


def test_its_prediction_is_that_of_the_same_step_written_by_hand(
    tmp_path: Path, transformers: Any, options: dict[str, Any]
) -> None:
    predictor = gpt_predictor(**options)
    trained = train_gpt(transformers, tmp_path, [predictor], bf16=True, max_grad_norm=1.0)

    def make_step() -> Any:
        model = transformers.GPT2LMHeadModel(trained.model.config).cuda()
        decayed = trained.get_decay_parameter_names(model)
        groups: list[dict[str, Any]] = [{"params": []}, {"params": []}]
        for name, parameter in model.named_parameters():
            groups[name in decayed]["params"].append(parameter)
        optimizer = torch.optim.AdamW(groups, fused=True)
        tokens = torch.randint(64, (4, 16))

        def step() -> None:
            ids, labels = tokens.to("cuda"), tokens.clone().to("cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                counted = torch.tensor(60).to("cuda")
                loss = model(input_ids=ids, labels=labels, num_items_in_batch=counted).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    predicted = predictor.watch.prediction
    by_hand = wavecast.predict(wavecast.trace(make_step, gpu="l4"), "l4")
    assert predicted.trace.notes == ()
    assert predicted.seconds == pytest.approx(by_hand.seconds, rel=0.01)
    assert predicted.gpu_s == pytest.approx(by_hand.gpu_s, rel=0.01)


def test_on_a_cpu_the_prediction_is_told_and_not_compared(
    tmp_path: Path, transformers: Any, options: dict[str, Any], told: Told
) -> None:
    predictor = gpt_predictor(**options)
    train_gpt(transformers, tmp_path, [predictor])
    first, second = told
    assert first[0].startswith("predicted ")
    assert " a step on l4, range " in first[0]
    assert ", fits: " in first[0]
    assert second == ("the training runs on cpu, so its times are not compared", logging.INFO)
    assert set(predictor.watch.metrics) == {"wavecast/predicted_s", "wavecast/measured_s"}


def test_a_step_outside_of_its_range_is_warned_of_once(
    tmp_path: Path, transformers: Any, options: dict[str, Any], told: Told
) -> None:
    predictor = gpt_predictor(running_on="l4", **options)
    trainer = train_gpt(transformers, tmp_path, [predictor])
    assert predictor.watch.measured_s == pytest.approx(0.5)
    [warning] = [text for text, level in told if level == logging.WARNING]
    assert ", measured 500 ms a step on l4, above the range of " in warning
    last = trainer.state.log_history[-2]  # the last one is the summary
    assert last["wavecast/measured_s"] == pytest.approx(0.5)
    assert last["wavecast/measured_over_predicted"] > 1


@pytest.mark.slow
def test_accumulated_batches_are_one_step(
    tmp_path: Path, transformers: Any, options: dict[str, Any]
) -> None:
    once, twice = gpt_predictor(**options), gpt_predictor(**options)
    train_gpt(transformers, tmp_path, [once])
    train_gpt(transformers, tmp_path, [twice], gradient_accumulation_steps=2)
    steps = [predictor.watch.prediction for predictor in (once, twice)]
    assert steps[1].trace.samples == 2 * steps[0].trace.samples
    assert 1.5 < steps[1].seconds / steps[0].seconds < 2


@pytest.mark.slow
def test_reporters_get_the_numbers_if_the_callback_is_attached(
    tmp_path: Path, transformers: Any, options: dict[str, Any]
) -> None:
    seen: list[dict[str, float]] = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            seen.append(dict(logs))

    predictor = gpt_predictor(**options)
    trainer = train_gpt(transformers, tmp_path, [Reporter()])
    predictor.attach(trainer)
    seen.clear()
    trainer.train()
    assert "wavecast/predicted_s" in seen[0]


def test_a_step_that_cannot_be_traced_does_not_stop_the_training(
    tmp_path: Path, lightning: Any, options: dict[str, Any], told: Told
) -> None:
    module = lightning_module(lightning, automatic_optimization=False)
    predictor = net_predictor(running_on="l4", **options)
    trainer = train_net(lightning, tmp_path, [predictor], module=module)
    assert predictor.watch.prediction is None
    [(text, level)] = told
    assert level == logging.WARNING
    assert "the step was not predicted: the module updates its weights itself" in text
    assert trainer.state.finished


def test_a_trainer_of_lightning_trains_as_without_the_callback(
    tmp_path: Path, lightning: Any, options: dict[str, Any], told: Told
) -> None:
    predictor = net_predictor(running_on="l4", **options)
    watched = train_net(lightning, tmp_path, [predictor], gradient_clip_val=0.5)
    plain = train_net(lightning, tmp_path, [], gradient_clip_val=0.5)
    prediction = predictor.watch.prediction
    assert prediction is not None
    assert prediction.trace.samples == 4
    for one, other in zip(
        weights(watched.lightning_module), weights(plain.lightning_module), strict=True
    ):
        assert torch.equal(one, other)
    assert watched.callback_metrics["loss"] == plain.callback_metrics["loss"]
    names = {call.op.base for call in prediction.trace}
    assert "aten._foreach_norm" in names  # the clipping
    assert "measured 500 ms a step on l4" in messages(told)


def test_the_loggers_of_lightning_get_the_numbers(
    tmp_path: Path, lightning: Any, options: dict[str, Any]
) -> None:
    from pytorch_lightning.loggers import CSVLogger

    predictor = net_predictor(**options)
    train_net(lightning, tmp_path, [predictor], logger=CSVLogger(tmp_path))
    [table] = tmp_path.rglob("metrics.csv")
    assert "wavecast/predicted_s" in table.read_text(encoding="utf-8").splitlines()[0]


def test_evaluations_are_not_timed() -> None:
    from wavecast.integrations.training_watch import TrainingWatch

    now = [0.0]
    watch = TrainingWatch("l4", warm_up=1, every=1, clock=lambda: now[0], told=lambda *_: None)
    for step in range(1, 11):
        now[0] += 0.1
        watch.step()
        if step == 5:
            watch.interrupt()
            now[0] += 60
    assert watch.measured_s == pytest.approx(0.1)


def test_a_training_without_a_gpu_needs_a_name(told: Told) -> None:
    from wavecast.integrations.training_watch import TrainingWatch

    watch = TrainingWatch(told=lambda *message: told.append(message))
    watch.predict(lambda: lambda: None, torch.device("cpu"))
    assert "name a GPU to predict for" in messages(told)
    with pytest.raises(wavecast.UnknownName):
        TrainingWatch("h1000")


def test_messages_go_to_the_standard_error_if_nobody_set_up_logging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wavecast.integrations import training_watch

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(training_watch._LOG, "handlers", [])
    training_watch.tell("predicted 1 ms")
    assert capsys.readouterr().err == "predicted 1 ms\n"


# Copies of a training's step: traced without touching the training.


copies = pytest.importorskip("wavecast.integrations.training_watch")

Pair = namedtuple("Pair", "x y")


def training() -> tuple[Any, Any, Any]:
    """A model with tied weights and a buffer, its optimizer with a scheduler, and a batch."""
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)
    )
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
    return model, optimizer, copies.on_host([Pair(torch.randn(4, 8), "text")])


def loss(model: Any, batch: Any) -> Any:
    return model(batch[0].x).square().mean()


def traced(recipe: Any) -> wavecast.Trace:
    model, optimizer, batch = training()
    return wavecast.trace(copies.step_of(model, optimizer, batch, loss, recipe), gpu="l4")


def test_the_training_is_not_touched() -> None:
    model, optimizer, batch = training()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = list(map(id, model.parameters()))
    make_step = copies.step_of(model, optimizer, batch, loss, copies.StepRecipe())
    with copies.undisturbed():
        wavecast.trace(make_step, gpu="l4")
    assert list(map(id, model.parameters())) == parameters
    for name, tensor in model.state_dict().items():
        assert type(tensor) is torch.Tensor
        assert torch.equal(tensor, before[name])
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    loss(model, batch).backward()
    optimizer.step()  # it still trains
    assert not torch.equal(model[0].weight, before["0.weight"])


def test_random_numbers_come_as_if_nothing_had_been_traced() -> None:
    def drawn() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = drawn()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    with copies.undisturbed():
        drawn()
    assert drawn() == expected


def test_autocast_of_the_training_is_left_and_comes_back() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with copies.undisturbed():
            assert not torch.is_autocast_enabled("cpu")
            assert torch.autocast_increment_nesting() == 1
            torch.autocast_decrement_nesting()
        assert torch.is_autocast_enabled("cpu")


def names(trace: wavecast.Trace) -> list[str]:
    return [call.op.base for call in trace]


def test_the_copy_has_the_memory_of_the_training() -> None:
    trace = traced(copies.StepRecipe())
    weights = sum(a.nbytes for a in trace.allocations if a.role == "parameter" and a.born is None)
    assert weights == pytest.approx(4 * (64 + 8 + 8 + 8 + 8), abs=5 * 512)  # rounded by tensor
    assert "aten._foreach_addcdiv_" in names(trace)


def test_clipping_scaling_and_accumulation_are_part_of_the_step() -> None:
    plain = traced(copies.StepRecipe())
    clipped = traced(copies.StepRecipe(clip_norm=1.0))
    limited = traced(copies.StepRecipe(clip_value=1.0))
    scaled = traced(copies.StepRecipe(autocast="fp16", clip_norm=1.0))
    twice = traced(copies.StepRecipe(accumulate=2))
    assert "aten._foreach_norm" not in names(plain)
    assert "aten._foreach_norm" in names(clipped)
    assert len(limited) > len(plain)
    assert "aten._amp_foreach_non_finite_check_and_unscale_" in names(scaled)
    assert {t.dtype for call in scaled for t in call.op.inputs} >= {"float16", "float32"}
    assert names(twice).count("aten.addmm") == 2 * names(plain).count("aten.addmm")


def test_only_batches_in_pinned_memory_do_not_wait() -> None:
    assert not any(call.syncs for call in traced(copies.StepRecipe(pinned=True)))
    assert any(call.syncs for call in traced(copies.StepRecipe(pinned=False)))


def test_an_optimizer_of_other_weights_is_refused() -> None:
    model, _, batch = training()
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=torch.tensor(0.1))
    make_step = copies.step_of(model, other, batch, loss, copies.StepRecipe())
    with pytest.raises(CaptureError, match="parameters that the model does not have"):
        wavecast.trace(make_step, gpu="l4")


def test_a_learning_rate_in_a_tensor_is_read() -> None:
    model, _, batch = training()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    make_step = copies.step_of(model, optimizer, batch, loss, copies.StepRecipe())
    assert len(wavecast.trace(make_step, gpu="l4"))
