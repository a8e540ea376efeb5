"""Trainings recorded in the store, by the callbacks of real, tiny trainers on the CPU."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import wavecast
from wavecast.errors import DoubtfulInput, InvalidInput
from wavecast.integrations.training_watch import TrainingRecorder
from wavecast.runs.readers.timing import Facts

pytest.importorskip("sqlalchemy", reason="needs wavecast[runs]")

FACTS = Facts(model="net", batch=8)


class Clock:
    """A clock that returns given seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(tmp_path: Path, steps: int, **given: Any) -> tuple[TrainingRecorder, Clock]:
    clock = Clock()
    recorder = TrainingRecorder(tmp_path / "runs.sqlite", "test", clock, **given)
    recorder.begin()
    for step in range(1, steps + 1):
        clock.now_s += 0.2 if step <= 20 else 0.1
        recorder.step(step)
        if step % 100 == 0:
            recorder.interrupt()
            clock.now_s += 7
    return recorder, clock


def test_warm_up_and_evaluations_are_left_out(tmp_path: Path) -> None:
    recorder, _ = record(tmp_path, 450)
    (run,) = recorder.end(FACTS)
    assert run.seconds / run.iterations == pytest.approx(0.1)
    assert run.iterations == 449 - 50 - 4  # less the guard and those with an evaluation
    with wavecast.RunStore(tmp_path / "runs.sqlite") as store:
        assert list(store.runs()) == [run]


def test_of_a_long_training_fewer_moments_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.integrations.training_watch.MOST_MARKS", 200)
    recorder, _ = record(tmp_path, 5000)
    assert len(recorder._marks) < 200
    (run,) = recorder.end(FACTS)
    assert run.seconds / run.iterations == pytest.approx(0.1)
    assert run.iterations > 2000  # of every 128 steps or so, those with an evaluation are out


def test_a_short_training_is_recorded_whole_and_said_to_be(tmp_path: Path) -> None:
    recorder, clock = record(tmp_path, 20)
    clock.now_s += 3  # saving the weights
    with pytest.warns(DoubtfulInput, match=r"step 2: 19 logged times .* is used whole"):
        (run,) = recorder.end(FACTS)
    assert (run.iterations, run.total_iterations) == (19, 20)
    assert (run.seconds, run.total_s) == pytest.approx((19 * 0.2, 20 * 0.2 + 3))
    recorder, _ = record(tmp_path, 20, warm_up=5)
    assert recorder.end(FACTS)[0].iterations == 14


def test_a_store_that_is_lost_meanwhile_is_told_and_the_run_kept(tmp_path: Path) -> None:
    recorder, _ = record(tmp_path, 400)
    for file in tmp_path.iterdir():
        file.unlink()
    (tmp_path / "runs.sqlite").mkdir()
    with pytest.warns(DoubtfulInput, match="was not stored: .*cannot be a run store"):
        recorder.end(FACTS)
    assert len(recorder.runs) == 1


def test_a_wrong_store_is_found_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not mysql:"):
        TrainingRecorder("mysql://host/runs", "test")
    with pytest.raises(InvalidInput, match="a run has no batch_size"):
        TrainingRecorder(tmp_path / "runs.sqlite", "test", batch_size=3)


def test_the_trainer_of_hugging_face_is_recorded(tmp_path: Path, transformers: Any) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    from wavecast.integrations.huggingface import TrainerRunRecorder

    class Slow(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            if self.training:
                time.sleep(0.002)
            return {"loss": (self.layer(x) - labels).square().mean()}

    data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
    recorder = TrainerRunRecorder(tmp_path / "runs.sqlite", warm_up=10)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=40,
        eval_strategy="steps",
        eval_steps=16,
        save_steps=25,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        Slow(), arguments, train_dataset=data, eval_dataset=data, callbacks=[recorder]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's and transformers' own
        trainer.train()
    with wavecast.RunStore(tmp_path / "runs.sqlite") as store:
        (run,) = store.runs()
    assert (run.model, run.batch, run.gpu, run.gpus) == ("Slow", 8, "cpu", 1)
    assert (run.precision, run.framework) == ("fp32", "pytorch")
    # 39 stretches, less 10 of warm-up, less those after steps 16, 25, 32; a pause may be out, too.
    assert 20 <= run.iterations <= 26
    assert run.seconds / run.iterations >= 2 * 0.002
    assert recorder.recorder.runs == (run,)


def test_the_trainer_of_lightning_is_recorded(tmp_path: Path, lightning: Any) -> None:
    torch = pytest.importorskip("torch")
    from wavecast.integrations.lightning import LightningRunRecorder

    class Tiny(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            time.sleep(0.002)
            return self.layer(batch[0]).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            time.sleep(0.001)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    samples = torch.utils.data.TensorDataset(torch.randn(160, 4))
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    recorder = LightningRunRecorder(tmp_path / "runs.sqlite", warm_up=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=2,
            accumulate_grad_batches=2,
            accelerator="cpu",
            callbacks=[recorder],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(Tiny(), loader, loader)
    with wavecast.RunStore(tmp_path / "runs.sqlite") as store:
        (run,) = store.runs()
    assert (run.model, run.batch, run.gpu, run.gpus) == ("Tiny", 8, "cpu", 1)
    assert (run.precision, run.framework) == ("fp32", "pytorch")
    # 40 steps in 39 stretches, 10 of warm-up, one after the validation of the first epoch.
    assert 20 <= run.iterations <= 28
    assert run.seconds / run.iterations >= 2 * 0.002
