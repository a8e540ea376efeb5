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


# Scripts whose steps are of the size that GPUs are bought for, with their arguments.


_TRAINER = ("transformers", "accelerate")
_GPT2 = (
    *("--n_layer=12", "--n_head=12", "--n_embd=768", "--block_size=1024", "--batch_size=8"),
    *("--gradient_accumulation_steps=2", "--eval_iters=1"),
)


def _case(
    name: str,
    like: str,
    arguments: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    script: str = "",
) -> ScriptCase:
    return ScriptCase(name, like, arguments, needs, f"large/{script or name}.py")


LARGE = (
    _case("trainer_bert", "Trainer, BERT base, fp32", (), _TRAINER),
    _case(
        "trainer_bert_bf16",
        "Trainer, BERT base, bf16",
        ("--bf16", "--batch", "64", "--length", "256"),
        _TRAINER,
        "trainer_bert",
    ),
    _case("trainer_compiled", "Trainer, compiled GPT-2, bf16", (), _TRAINER),
    _case("accelerate_gpt2", "Accelerate, GPT-2, two micro-batches, bf16", (), _TRAINER),
    ScriptCase("nanogpt_gpt2", "nanoGPT, compiled GPT-2, bf16", _GPT2, file="nanogpt/train.py"),
    _case("imagenet_amp", "ResNet-50, fp16, channels_last, 8 workers"),
    _case("lightning_resnet", "Lightning, ResNet-50, 2 workers", (), ("pytorch_lightning",)),
    _case("pyg_sage", "PyG, full-batch GraphSAGE", (), ("torch_geometric",)),
    _case("graph_net", "a graph network by index_add"),
    _case("dcgan", "DCGAN, two optimizers"),
    _case("unet", "U-Net, fp16, Dice loss"),
    _case("conv_vae", "a convolutional VAE"),
    _case("lstm_lm", "an LSTM language model"),
    _case("vit_finetune", "fine-tuning of ViT base, bf16", (), ("transformers",)),
    _case("seq2seq", "translation with torch.nn.Transformer, TF32"),
    _case("dlrm", "a recommender with 26 embedding tables"),
    _case("lora", "LoRA by hand on a Llama, bf16", (), ("transformers",)),
    _case("diffusion", "denoising diffusion, averaged weights, bf16"),
    _case("checkpointed", "a decoder with checkpointing, bf16"),
    _case("two_towers", "contrastive training of two towers, bf16"),
    _case("speech_ctc", "speech recognition with CTC, bf16"),
    _case("distill", "distillation from a ResNet-50, bf16"),
    _case("policy_gradient", "REINFORCE, waits for the host"),
    _case("tabular", "a small perceptron, waits for the host"),
    _case("loader_bound", "a small CNN, waits for 2 workers"),
)
"""All are made for one H200; those that wait for something else say so."""
