"""The options of a training step: every command that takes a step has them from here.

`tests/cli/test_option_matrix.py` holds which command has which option, and why one has it not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

import wavecast
from wavecast import suite
from wavecast.cli.options.groups import grouped, option_group
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS, ModelOptions
from wavecast.frameworks.target_files import FORMS
from wavecast.hardware.devices import Device
from wavecast.targets.scripts import NO_SCRIPT_OPTIONS, ScriptOptions
from wavecast.targets.targets import Target, resolve

# The option `--assume`: what a traced step reads from the GPU, by line of code.


AssumeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="FILE:LINE=VALUE",
        help="The value that a line of your code reads from the GPU, or the number of rows of a "
        "result whose size depends on data; repeat for more lines. VALUE is a number, true or "
        "false, or several with commas, which are read in order.",
    ),
]

_WORDS = {"true": True, "false": False}


def given_values(assume: list[str]) -> dict[str, list[bool | float]]:
    """The values of `--assume`, by line of code."""
    values: dict[str, list[bool | float]] = {}
    for text in assume:
        line, separator, numbers = text.rpartition("=")
        if not separator:
            raise InvalidInput(f"--assume {text} has no value; write FILE:LINE=VALUE")
        if line in values:
            raise InvalidInput(f"--assume gives values for {line} twice; separate them by commas")
        values[line] = [_number(number, text) for number in numbers.split(",")]
    return values


def _number(number: str, text: str) -> bool | float:
    word = number.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError as error:
        raise InvalidInput(
            f"--assume {text}: {number!r} is no number; write a number, true or false"
        ) from error


def target_names(incomplete: str) -> list[str]:
    """The models of the suite whose names begin so, for the completion of a shell."""
    return [model.name for model in suite.benchmarks() if model.name.startswith(incomplete)]


TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help=f"The training step: {FORMS}.", autocompletion=target_names
    ),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", "-b", help="The number of samples in a batch.")
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", "-p", help="The precision: fp32, tf32, bf16 or fp16.")
]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        min=1,
        metavar="N",
        help="Trace the first of N ranks, for code that starts a process group, wraps its model "
        "in DistributedDataParallel, or shards it with fully_shard or DTensor.",
    ),
]
CompileOption = Annotated[
    bool | None,
    typer.Option(
        "--compile",
        help="Trace the step as if the modules that it calls were compiled (torch.compile).",
    ),
]
CompileOrBothOption = Annotated[
    bool | None,
    typer.Option(
        "--compile/--compile-both",
        help="Trace the step as if the modules that it calls were compiled (torch.compile), or, "
        "with --compile both, as written and compiled, to show the gain.",
    ),
]
ParallelOption = Annotated[
    str | None,
    typer.Option(
        "--parallel",
        metavar="AXIS=N,...",
        help="Spread the step over several GPUs; the step is then one micro-batch. As in data=8, "
        "or data=16,shard=3,tensor=4,pipeline=2,microbatches=8,cluster=dgx-h100.",
    ),
]
_OPTIONS: dict[str, Any] = {
    "batch": BatchOption,
    "precision": PrecisionOption,
    "assume": AssumeOption,
    "compile": CompileOption,
    "ranks": RanksOption,
}

model_options = option_group(
    "options",
    ModelOptions,
    {
        "task": "hf: the task to train for; by default the one that the config names.",
        "seq": "hf, decoders: the number of tokens in a sequence.",
        "context": "hf: --seq for the tasks prefill and decode: the tokens before the next one.",
        "cache": "hf: how decode keeps keys and values: dynamic (default) or static.",
        "quantize": "hf: store linear layers in 8 bits (int8) or 4 bits (nf4) for inference.",
        "weights": "hf, decoders: store the weights as fp32 (default), bf16 or fp16.",
        "lora": "hf, decoders: train low-rank adapters only: r=16, or, for hf, "
        "r=16,alpha=32,dropout=0.05.",
        "targets": "hf, decoders: the layers that get adapters, as q_proj,v_proj, or all-linear "
        "for hf; peft's default, and for decoders query, key and value.",
        "qlora": "hf: store linear layers in 4 bits, and train adapters only.",
        "checkpointing": "hf, decoders: recompute activations in the backward pass.",
        "recompute": "Decoders: what is recomputed in the backward pass: scores of attention "
        "(selective), all but attention and every second matmul (alternate), or blocks (full).",
        "unfused_attention": "Decoders: attention that writes its scores to memory, with dropout, "
        "as before FlashAttention.",
        "untied": "Decoders: an output layer with a weight of its own.",
        "joint": "llama: one matmul for queries, keys and values, which are copied from it, and "
        "one for both inputs of the gate, as in nanotron.",
        "layers": "Decoders: the number of blocks.",
        "hidden": "Decoders: the width of the model.",
        "heads": "Decoders: the heads of attention.",
        "kv_heads": "Decoders: the heads of keys and values; as many, if heads or hidden is given.",
        "head_size": "Decoders: the width of a head; by default hidden / heads.",
        "ffn": "Decoders: the inner width of the feed-forward network, or of one expert; "
        "4 x hidden, if that is given.",
        "vocab": "Decoders: the size of the vocabulary.",
        "experts": "mixtral: the experts of each block.",
        "top_k": "mixtral: the experts that each token is routed to.",
        "shared_experts": "mixtral: experts that all tokens are routed to, too.",
        "dense_layers": "mixtral: the first blocks, without experts.",
        "dense_ffn": "mixtral: the inner width of blocks without experts.",
        "kv_rank": "mixtral: the rank of keys and values in DeepSeek's attention.",
        "q_rank": "mixtral: the rank of queries in DeepSeek's attention.",
    },
    "Models of Hugging Face, and decoders of any size (gpt, llama, mixtral)",
)
"""A decorator that gives a command the options of `ModelOptions`, as its parameter `options`."""


@dataclass(frozen=True)
class StepOptions:
    """The options of a step, as the user gave them."""

    batch: int | None = None
    precision: str | None = None
    assume: list[str] | None = None
    compile: bool | None = None
    """Whether the step is compiled. None for no; False for both, where a command compares them."""
    ranks: int | None = None
    options: ModelOptions = field(default=NO_OPTIONS)
    running: ScriptOptions = field(default=NO_SCRIPT_OPTIONS)

    def words(self) -> list[str]:
        """Batch, precision and the model's options as they are typed."""
        given = {"batch": self.batch, "precision": self.precision} | vars(self.options)
        words: list[str] = []
        for name, value in given.items():
            if value is not None and value is not False:
                option = "--" + name.replace("_", "-")
                words += [option] if value is True else [option, str(value)]
        return words

    def target(self, text: str, fixed: tuple[str, ...] = ("batch", "precision")) -> Target:
        """The step that a text and these options name.

        Args:
            text: the target.
            fixed: the options that change nothing in a saved trace. A command that scales measured
                steps can change their precision, and name the batch of a profile.

        Raises:
            InvalidInput: an option would change nothing.
        """
        step = resolve(text, self.batch, self.precision, self.options, self.running)
        if step.trace is not None:
            self._refuse_fixed(step, fixed)
            return step
        return self.applied(step)

    def applied(self, step: Target) -> Target:
        """A step with what is assumed, its ranks, and compiled if that is asked for."""
        step = replace(step, assume=given_values(self.assume) if self.assume else None)
        step = replace(step, ranks=self.ranks)
        return as_compiled(step) if self.compile else step

    def _refuse_fixed(self, step: Target, fixed: tuple[str, ...]) -> None:
        """Refuse options that a saved trace cannot follow."""
        if self.assume:
            raise InvalidInput(
                f"{step.name} is a trace, whose assumed values are fixed; give --assume when the "
                "step is traced"
            )
        if self.ranks is not None:
            raise InvalidInput(
                f"{step.name} is a trace, whose ranks are fixed; give --ranks when the step is "
                "traced"
            )
        if self.compile is not None:
            raise InvalidInput(
                f"{step.name} is a trace, which is compiled or not; give --compile when the step "
                "is traced"
            )
        for option in fixed:
            if (value := getattr(self, option)) is not None:
                raise InvalidInput(
                    f"{step.name} is a trace, so --{option} {value} would change nothing here; "
                    "leave it out, or name the step itself"
                )


NO_STEP_OPTIONS = StepOptions()


def as_compiled(target: Target) -> Target:
    """The target, traced as if its modules were compiled."""
    if target.trace is not None:
        raise InvalidInput(
            f"{target.name} is a trace, which is compiled or not; give --compile when the step is "
            "traced"
        )
    return replace(target, name=f"{target.name}, compiled", compiled=True)


def step_options(
    *without: str, both: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command the options of a step, as its parameter `step`.

    Args:
        without: the options that make no sense for the command, and groups of options, by the
            fields of `StepOptions`.
        both: whether --compile both compares the step with its compiled twin.
    """
    own = {name: option for name, option in _OPTIONS.items() if name not in without}
    if both:
        own["compile"] = CompileOrBothOption

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        groups = {"options": model_options, "running": script_options}
        inner = tuple(group for group in groups if group not in without)
        shared = grouped(command, "step", StepOptions, own, inner=inner)
        for group in inner:
            shared = groups[group](shared)
        return shared

    return decorate


# The options of a script's run: how many steps, where they end, how long to wait for one.


_PANEL = "Training scripts"
_STEPS = typer.Option(
    "--steps", rich_help_panel=_PANEL, help="Run this many steps; by default until two are equal."
)
_UNTIL = typer.Option(
    "--until",
    metavar="FILE:LINE",
    rich_help_panel=_PANEL,
    help="A step ends when this line is reached, instead of at an optimizer step.",
)
_PATIENCE = typer.Option(
    "--patience",
    metavar="SECONDS",
    rich_help_panel=_PANEL,
    help="End a script that takes longer than this to a step, and say where it was.",
)
_OFFLINE = typer.Option(
    "--offline", rich_help_panel=_PANEL, help="Refuse the network to the script."
)
_BATCH_OPTION = typer.Option(
    "--batch-option",
    metavar="NAME",
    rich_help_panel=_PANEL,
    help="The script's own option for its batch, if there are several or none is found.",
)
_SCRIPT_OPTIONS: dict[str, Any] = {
    "steps": Annotated[int | None, _STEPS],
    "until": Annotated[str | None, _UNTIL],
    "patience": Annotated[float, _PATIENCE],
    "offline": Annotated[bool, _OFFLINE],
    "batch_option": Annotated[str | None, _BATCH_OPTION],
}


def script_options(command: Any) -> Any:
    """Give a command the options of a script's run, as its parameter `running`."""
    return grouped(command, "running", ScriptOptions, _SCRIPT_OPTIONS)


# The option `--gpu`, and the GPUs that it names.


ALL = "all"
"""The name that stands for all GPUs."""


def gpu_names(incomplete: str) -> list[str]:
    """The GPUs whose names begin so, for the completion of a shell."""
    return [gpu.id for gpu in wavecast.devices() if gpu.id.startswith(incomplete)]


def gpu_option(about: str) -> typer.models.OptionInfo:
    """The option `--gpu` with its own help."""
    option: typer.models.OptionInfo = typer.Option(
        "--gpu", "-g", autocompletion=gpu_names, help=about
    )
    return option


GpusOption = Annotated[list[str], gpu_option('A GPU to predict for; repeat for more, or "all".')]
SomeGpusOption = Annotated[list[str] | None, gpu_option("A GPU; repeat to compare several.")]
OneGpuOption = Annotated[str, gpu_option("The model of the GPUs.")]


def named_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, without duplicates."""
    return list({gpu.id: gpu for gpu in map(wavecast.device, names)}.values())


def named_or_all_gpus(names: list[str]) -> list[Device]:
    """The devices of these names, or all known ones if "all" is among them."""
    named = named_gpus([name for name in names if name != ALL])
    if ALL not in names:
        return named
    return list({gpu.id: gpu for gpu in (*wavecast.devices(), *named)}.values())


def refuse_all(names: list[str] | None, command: str, instead: str) -> None:
    """Refuse "all" GPUs in a command that has a column for each; `instead` is one with rows."""
    if ALL in (names or ()):
        raise InvalidInput(
            f'"wavecast {command}" shows a column for each GPU, so name some; "wavecast {instead} '
            '--gpu all" compares all'
        )
