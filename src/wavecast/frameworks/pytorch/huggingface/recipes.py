"""What is trained and how, decided before anything is built: model, task, sizes, precision."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.configs import ModelConfig, config_of
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions, check, lora_of
from wavecast.frameworks.pytorch.huggingface.tasks import INFERENCE, Task, sequence_of, task_of


@dataclass(frozen=True)
class TrainingRecipe:
    """A training step of a Hugging Face model, before it is built."""

    config: ModelConfig
    task: Task
    batch: int
    sequence: int | None
    """The tokens of a sequence. None if the inputs have no tokens."""
    precision: str | None
    """One of `suite.PRECISIONS`; bf16 and fp16 mean autocast. None to compute in the precision of
    the weights."""
    options: ModelOptions

    @property
    def samples(self) -> int:
        """How many of `task.unit` a step takes."""
        if self.task.name == "decode":
            return self.batch
        return self.batch * (self.sequence or 1 if self.task.unit == "tokens" else 1)

    @property
    def title(self) -> str:
        """The step in words, for the headings of reports."""
        lora, options = lora_of(self.options), self.options
        parts = [f"hf:{self.config.name}", f"batch {self.batch}"]
        if self.task.name in INFERENCE:
            parts.insert(1, self.task.name)
        if self.sequence is not None:
            parts.append(f"{self.sequence} tokens")
        parts += [] if self.precision is None else [self.precision]
        parts += [] if options.weights is None else [f"{options.weights} weights"]
        parts += [] if options.quantize is None else [f"{options.quantize} linear layers"]
        parts += [] if options.cache is None else [f"{options.cache} cache"]
        if lora is not None:
            parts.append(f"{'QLoRA' if options.qlora else 'LoRA'} {lora}")
        if options.checkpointing:
            parts.append("checkpointing")
        return ", ".join(parts)


def recipe_of(
    name: str, batch: int | None, precision: str | None, options: ModelOptions
) -> TrainingRecipe:
    """The recipe of `hf:NAME`.

    Args:
        name: a preset, a name in the local cache, or a path; see `configs.config_of`.
        batch: how many samples. None for the task's default.
        precision: "bf16" and "fp16" mean autocast. None for the precision of the weights, and for
            bf16 with `options.qlora`: QLoRA stores in 4 bits and computes in bf16.
        options: how the model is trained.
    """
    check(options)
    config = config_of(name)
    task = task_of(config, options.task)
    if options.qlora and task.name == "denoising":
        raise InvalidInput(
            f"--qlora is for models of transformers; hf:{config.name} is a U-Net of diffusers"
        )
    usual = "bf16" if options.qlora else "fp32" if options.weights is None else None
    inference = {"--context": options.context, "--quantize": options.quantize}
    for option, value in inference.items():
        if value is not None and task.name not in INFERENCE:
            raise InvalidInput(f"{option} is for --task {' and '.join(INFERENCE)}; leave it out")
    if task.name in INFERENCE:  # in the precision of the weights, which is bf16 by default
        usual = None
    return TrainingRecipe(
        config=config,
        task=task,
        batch=batch or task.batch,
        sequence=sequence_of(config, task, options.seq or options.context),
        precision=precision or usual,
        options=options,
    )
