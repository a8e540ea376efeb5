"""The scripts of tests/scripts with their arguments, data, and hand-written steps."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.places import ROOT

HERE = ROOT / "tests" / "scripts"


@dataclass(frozen=True)
class ScriptCase:
    """A script, and what is needed to run it."""

    name: str
    like: str
    """Which scripts of users it resembles."""
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """The packages that it imports beside torch and numpy."""
    file: str = ""
    """The file in `tests/scripts`, if it is not called as the case is."""

    @property
    def script(self) -> Path:
        """The file to run."""
        return HERE / (self.file or f"{self.name}.py")

    @property
    def make_step(self) -> Callable[[], Callable[[], Any]]:
        """The same step, written by hand."""
        return lambda: _by_hand(self.name)()


def _by_hand(name: str) -> Any:
    path = HERE / "by_hand" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_by_hand", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.path.insert(0, str(HERE))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(HERE))
        for new in set(sys.modules) - before:  # the script will be run itself
            if str(getattr(sys.modules[new], "__file__", "")).startswith(str(HERE)):
                del sys.modules[new]
    return module.make_step


def prepare(folder: Path) -> None:
    """Write the data that the scripts read from the current folder."""
    import numpy as np

    data = folder / "data" / "text"
    data.mkdir(parents=True)
    tokens = np.random.default_rng(0).integers(0, 50257, 20_000, dtype=np.uint16)
    for split in ("train", "val"):
        tokens.tofile(data / f"{split}.bin")
    (folder / "data" / "wikitext-2.txt").write_text(
        "A line of words for the demos to read.\n" * 800
    )
    (folder / "corpus.txt").write_text("All work and no play makes a dull corpus.\n" * 800)


_CLM = (
    *("--train_file", "corpus.txt", "--output_dir", "clm", "--config_overrides"),
    "hidden_size=256,intermediate_size=688,num_hidden_layers=3,num_attention_heads=4,"
    "num_key_value_heads=4",
)

CASES = (
    ScriptCase("mnist", "PyTorch's first example", ("--batch-size", "64", "--save-model")),
    ScriptCase("cifar_amp", "fp16 with GradScaler, channels_last"),
    ScriptCase("accumulate", "gradient accumulation and clipping, no main guard"),
    ScriptCase("gan", "two optimizers", ("--batch_size", "64")),
    ScriptCase(
        "nanogpt",
        "nanoGPT: memmap, estimate_loss, exec of a config",
        ("--eval_interval=1000", "--compile=False"),
        file="nanogpt/train.py",
    ),
    ScriptCase("hf_trainer", "Hugging Face Trainer", needs=("transformers", "accelerate")),
    ScriptCase(
        "hf_trainer_lm",
        "Trainer: bf16, accumulation, checkpointing, evaluation, saving",
        needs=("transformers", "accelerate"),
    ),
    ScriptCase(
        "accelerate_loop",
        "Accelerate: accumulate, prepare, gather",
        ("--mixed_precision", "bf16", "--gradient_accumulation_steps", "2"),
        ("transformers", "accelerate"),
    ),
    ScriptCase("run_clm", "transformers' run_clm_no_trainer", _CLM, ("transformers",)),
    ScriptCase("lightning_module", "Lightning: closures, validation", needs=("pytorch_lightning",)),
    ScriptCase("word_language_model", "an LSTM that carries its state"),
    ScriptCase("vae", "a variational autoencoder"),
    ScriptCase("dcgan", "DCGAN", ("--manualSeed", "1")),
    ScriptCase("vision_reference", "torchvision's reference", ("--amp", "--model-ema")),
    ScriptCase("timm_like", "timm's train.py: mixup, EMA", ("-b", "32")),
    ScriptCase(
        "train_unconditional",
        "diffusers' train_unconditional",
        ("--mixed_precision", "bf16"),
        ("diffusers", "accelerate"),
    ),
    ScriptCase(
        "recipe",
        "a torchtune recipe with a config file",
        (str(HERE / "recipe.json"), "gradient_accumulation_steps=2"),
    ),
    ScriptCase("ppo", "reinforcement learning with rollouts"),
    ScriptCase("distill", "distillation with a frozen teacher"),
    ScriptCase(
        "logs_and_checkpoints", "logs, checkpoints and links in every step", ("--out", "run")
    ),
    ScriptCase(
        "lightning_transformer",
        "Lightning's demo of a transformer, as installed",
        needs=("pytorch_lightning",),
    ),
    ScriptCase(
        "lightning_lstm",
        "Lightning's demo of an LSTM, as installed",
        needs=("pytorch_lightning",),
    ),
    ScriptCase(
        "lightning_manual",
        "Lightning's demo of manual optimization, as installed",
        needs=("pytorch_lightning",),
    ),
)
