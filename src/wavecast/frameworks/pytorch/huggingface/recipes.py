"""What is trained and how, decided before anything is built: model, task, sizes, precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.huggingface.configs import ModelConfig, config_of
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions, check, lora_of


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
        precision: "bf16" and "fp16" mean autocast. None for the precision of the weights, and for
            bf16 with `options.qlora`: QLoRA stores in 4 bits and computes in bf16.
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


# The tasks that models are trained for, and which one a config names.


@dataclass(frozen=True)
class Task:
    """What a model is trained for."""

    name: str
    auto_class: str
    """The class of transformers (or diffusers) that builds the model."""
    endings: tuple[str, ...]
    """The endings of the names of architectures for this task."""
    batch: int
    """The default batch."""
    sequence: int | None = None
    """The default number of tokens of a sequence. None if the input has no such length."""
    unit: str = "samples"
    """The unit of the throughput: "tokens" if the input is text."""
    adapted: str | None = None
    """peft's name of the task, if it has one."""


def _text(
    name: str, kind: str, adapted: str | None, *endings: str, batch: int = 8, sequence: int = 512
) -> Task:
    """A task on text. Architectures for it end in "For" and the kind, or in other `endings`."""
    ends = endings or (f"For{kind}",)
    return Task(name, f"AutoModelFor{kind}", ends, batch, sequence, "tokens", adapted)


INFERENCE = ("prefill", "decode")
"""The tasks that train nothing: reading prompts, and one more token of each sequence."""

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        _text(
            "causal-lm",
            "CausalLM",
            "CAUSAL_LM",
            "ForCausalLM",
            "LMHeadModel",
            batch=1,
            sequence=2048,
        ),
        _text("masked-lm", "MaskedLM", None, "ForMaskedLM", "ForPreTraining"),
        _text("seq2seq", "Seq2SeqLM", "SEQ_2_SEQ_LM", "ForConditionalGeneration"),
        _text("sequence-classification", "SequenceClassification", "SEQ_CLS"),
        _text("token-classification", "TokenClassification", "TOKEN_CLS"),
        _text("question-answering", "QuestionAnswering", "QUESTION_ANS"),
        Task(
            "image-classification",
            "AutoModelForImageClassification",
            ("ForImageClassification",),
            32,
        ),
        Task("speech-seq2seq", "AutoModelForSpeechSeq2Seq", (), batch=8, sequence=128),
        *(
            Task(name, "AutoModelForCausalLM", (), batch=1, sequence=2048, unit="tokens")
            for name in INFERENCE
        ),
        Task("denoising", "UNet2DConditionModel", ("UNet2DConditionModel",), batch=1),
    )
}

_SPEECH = ("whisper", "speech_to_text", "moonshine")
_TEXT_TO_TEXT = tuple(
    """
    t5 mt5 umt5 longt5 switch_transformers bart mbart m2m_100 pegasus pegasus_x led marian
    blenderbot blenderbot-small bigbird_pegasus nllb-moe prophetnet plbart fsmt t5gemma
    """.split()
)
"""The types whose ForConditionalGeneration reads text alone. Others take images, too."""


def task_of(config: ModelConfig, name: str | None) -> Task:
    """The task of a model: the one that is wanted, else the one that its config names.

    Raises:
        UnknownName: there is no such task.
        InvalidInput: the config names none, or the task is not for this library.
    """
    if name is not None and name not in TASKS:
        raise UnknownName(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    denoising = TASKS["denoising"]
    if config.diffusion_class is not None:
        return _diffusion_task(config, name)
    if name is not None:
        if TASKS[name] is denoising:
            raise InvalidInput(
                f"hf:{config.name} is a {config.model_type} model of transformers; the task "
                "denoising is for U-Nets of diffusers"
            )
        return TASKS[name]
    named = config.values.get("architectures")
    listed = named if isinstance(named, list) else []
    architectures = [name for name in listed if isinstance(name, str)]
    for architecture in architectures:
        if task := _by_architecture(architecture, config.model_type):
            return task
    raise InvalidInput(
        f"the config of hf:{config.name} does not say what the model is trained for "
        f"(architectures: {', '.join(architectures) or 'none'}); give --task, one of "
        f"{', '.join(name for name in TASKS if name != denoising.name)}"
    )


def _diffusion_task(config: ModelConfig, name: str | None) -> Task:
    denoising = TASKS["denoising"]
    if config.diffusion_class != denoising.auto_class:
        raise InvalidInput(
            f"hf:{config.name} is a {config.diffusion_class} of diffusers; only "
            f"{denoising.auto_class} can be built from its config. Write the step yourself: "
            "FILE.py:FUNCTION"
        )
    if name not in (None, denoising.name):
        raise InvalidInput(f"hf:{config.name} is a U-Net, which is trained for denoising alone")
    return denoising


def _by_architecture(architecture: str, model_type: str) -> Task | None:
    if architecture.endswith("ForConditionalGeneration"):
        if model_type in _SPEECH:
            return TASKS["speech-seq2seq"]
        return TASKS["seq2seq"] if model_type in _TEXT_TO_TEXT else None
    return next((t for t in TASKS.values() if architecture.endswith(t.endings or ("-",))), None)


_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def longest_sequence(config: ModelConfig) -> int | None:
    """The most tokens of a sequence that the config allows. None if it does not say."""
    if "relative_attention_num_buckets" in config.values:  # T5 has no table of positions
        return None
    inner = config.values.get("text_config")
    tables = (config.values, inner if isinstance(inner, Mapping) else {})
    for table in tables:
        for name in _LENGTHS:
            length = table.get(name)
            if isinstance(length, int) and length > 0:
                return length
    return None


def sequence_of(config: ModelConfig, task: Task, length: int | None) -> int | None:
    """The number of tokens in a sequence. None for tasks that have none.

    Raises:
        InvalidInput: the model has no sequence of tokens, or takes no sequence as long.
    """
    if task.sequence is None:
        if length is not None:
            raise InvalidInput(f"--seq is for tasks with tokens; hf:{config.name} is {task.name}")
        return None
    longest = longest_sequence(config)
    if length is not None and longest is not None and length > longest:
        raise InvalidInput(f"hf:{config.name} takes at most {longest} tokens, not {length} (--seq)")
    return length or min(task.sequence, longest or task.sequence)
