"""Choices of GPUs: the verdict in a sentence, and the candidates."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType

from wavecast.frameworks.pytorch.huggingface.configs import config_of
from wavecast.frameworks.target_files import is_python
from wavecast.parallel.strategy import Parallel, option_of
from wavecast.planning.cost import Ranged, TrainingPlan
from wavecast.planning.selection import SHARED_ERROR, Aim, Candidate, Limit, Selection
from wavecast.report.fields import Field, describe, output
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import (
    NOTHING,
    Html,
    Plot,
    PlotAxis,
    bullets,
    element,
    empty_element,
    escaped,
    html_table,
    joined,
    title_of,
)
from wavecast.report.results.costs import long_range, machine, money_range, plan_text, seen
from wavecast.report.tables import (
    ANY_WIDTH,
    Column,
    fitting,
    left_out,
    line,
    listed,
    remarks,
    sentence,
    table,
    titled,
)
from wavecast.report.units import long_duration, money, of_capacity
from wavecast.steps.request import on_cluster
from wavecast.targets.sources import units_of
from wavecast.targets.targets import Target, Trait, hugging_face_name

# Recipes: what to rent, which settings, what it takes, how to run it, and what comes second.


_OPTIONS = {
    "bf16": ("--precision", "bf16"),
    "fp16": ("--precision", "fp16"),
    "lora": ("--lora", "r=16"),
    "qlora": ("--qlora", "--checkpointing"),
    "checkpointing": ("--checkpointing",),
    "compile": ("--compile",),
}
_ARGUMENTS = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "checkpointing": "--gradient_checkpointing",
    "compile": "--torch_compile",
}
"""The arguments of transformers' Trainer (`TrainingArguments`)."""
OWN = ("yours", "bought")
"""Providers of prices that the user has given."""
_FAR_BELOW = 1.25
"""How many times the money the next provider asks before a choice is said to rest on one price."""
_ENDPOINT = "--rdzv_backend c10d --rdzv_endpoint HOST:29500"


@dataclass(frozen=True)
class AskedStep:
    """The step that a choice is about, as it was asked for."""

    target: str = "TARGET"
    options: tuple[str, ...] = ()
    """The options of the step as they were typed, without batch and precision."""
    precision: str | None = None
    given: frozenset[str] = field(default_factory=frozenset)
    """The settings that the step has of itself, by the names of changes: "bf16"."""
    has_trainer: bool = False
    """Whether transformers' Trainer trains such models."""
    takes_batch: bool = True
    """Whether it can be predicted at another batch; a saved trace cannot."""
    sequence: int | None = None
    """The tokens of a sequence, where they are known."""

    @property
    def script(self) -> str:
        """The user's script with its arguments; train.py where another step was asked for."""
        text = " ".join(shlex.split(self.target))  # the target is one word, in quotation marks
        return text if is_python(text.partition(" ")[0]) else "train.py"

    @property
    def is_llama(self) -> bool:
        """Whether torchtitan trains such models."""
        return "llama" in self.target


ANY_STEP = AskedStep()


def asked_step(
    target: Target, text: str, options: Sequence[str], precision: str | None
) -> AskedStep:
    """A step as it was asked for.

    Args:
        target: the step.
        text: how it was named; empty for an uploaded trace.
        options: its options as they are typed, without batch and precision.
        precision: the precision that was asked for.
    """
    chosen = target.options
    has = {
        "checkpointing": chosen.checkpointing,
        "compile": bool(target.compiled),
        "lora": chosen.lora is not None,
        "qlora": chosen.qlora,
        target.precision or "": target.precision is not None,
    }
    return AskedStep(
        shlex.quote(text) if text else ANY_STEP.target,
        tuple(options),
        precision,
        frozenset(name for name, given in has.items() if given),
        _has_trainer(text),
        not target.traits & (Trait.SAVED | Trait.SCRIPT),
        units_of(target) if target.unit == "tokens" else None,
    )


def _has_trainer(text: str) -> bool:
    """Whether a target is a model of transformers, and not of diffusers."""
    name = hugging_face_name(text)
    return name is not None and config_of(name).diffusion_class is None


def recipe(selection: Selection, asked: AskedStep) -> list[str]:
    """How to run the best choice, and why the next ones lost."""
    best = selection.best
    if best is None or best.cost is None:
        return []
    return [
        _rent(best),
        f"settings: {', '.join(_ways(best)) or 'as given'}",
        _takes(best),
        *_run(best, asked),
        f"look closer: {_predict(best, asked)}",
        *_elsewhere(selection, best),
        *_others(selection, best),
    ]


def _rent(best: Candidate) -> str:
    offer = None if best.cost is None else best.cost.offer
    if offer is None:
        return f"take {best.name}; no price is known"
    machine = ", ".join(filter(None, (offer.instance or "single GPUs", offer.region)))
    machines = offer.machines_for(best.gpus)
    many = f"{machines} machines, " if machines > 1 else ""
    price = f"{money(offer.usd_per_hour)} per GPU and hour on {offer.date}"
    return f"rent {best.name} at {offer.provider} ({machine}): {many}{price}"


def _ways(best: Candidate) -> Iterator[str]:
    if best.batch is not None:
        yield f"batch {best.batch} on each GPU"
    micro = 1 if best.cost is None else best.cost.accumulated
    if micro > 1:
        yield f"gradients of {micro} batches accumulated"
    if best.settings:
        yield best.settings
    if best.strategy is not None:
        yield from _spread_ways(best.strategy)


def _spread_ways(strategy: Parallel) -> Iterator[str]:
    if strategy.shard:
        yield "FSDP (shard=3)"
    elif strategy.data > 1:
        yield "DistributedDataParallel"
    if strategy.offload != "none":
        yield "optimizer states on the host (ZeRO-Offload)"


def _takes(best: Candidate) -> str:
    cost = best.cost
    assert cost is not None
    parts = [long_duration(cost.seconds.value) + _range(cost.seconds, long_range)]
    if cost.usd is not None:
        parts.append(money(cost.usd.value) + _range(cost.usd, money_range))
    if best.memory is not None:
        needed = of_capacity(best.memory.needed_bytes, best.device.memory_bytes)
        parts.append(f"{needed} on each GPU")
    return f"takes: {', '.join(parts)}"


def _range(value: Ranged, show: Callable[[Ranged], str]) -> str:
    return "" if value.low is None else f" ({show(value)})"


def _run(best: Candidate, asked: AskedStep) -> Iterator[str]:
    """The command that starts the training, and what configures it."""
    sharded = best.strategy is not None and bool(best.strategy.shard)
    arguments = _trainer_arguments(best, asked) if asked.has_trainer else ""
    offloads = best.strategy is not None and best.strategy.offload != "none"
    if (sharded or offloads) and asked.has_trainer:
        yield f"run: {_accelerate(best, asked)} train.py{arguments}"
    else:
        yield f"run: {_torchrun(best)} {asked.script}{arguments}"
    if offloads and not asked.has_trainer:
        stage = 3 if sharded else 2
        yield (
            f'with DeepSpeed\'s configuration: {{"zero_optimization": {{"stage": {stage}, '
            '"offload_optimizer": {"device": "cpu", "pin_memory": true}}}'
        )
    elif sharded and not asked.has_trainer:
        yield "in train.py: fully_shard(block) for each block, then fully_shard(model) (FSDP2)"
    if arguments:
        yield "the arguments are those of transformers.TrainingArguments"
    yield from _in_the_script(_settings(best, asked))
    network = on_cluster(best.device, Parallel()).cluster.network if best.gpus > 1 else None
    machines, _ = _machines(best)
    if machines > 1 and network is not None:
        speed = f"{8 * network.bytes_per_s / 1e9:,.0f} Gbit/s"
        yield f"ask for a network of {speed} between the machines: so much is assumed"
    if asked.is_llama and not {"lora", "qlora"} & _settings(best, asked):
        yield f"or with torchtitan: {_torchtitan(best, asked)}"


def _in_the_script(settings: set[str]) -> Iterator[str]:
    """What adapters need in the script, for which there are no arguments."""
    if "qlora" in settings:
        yield (
            "in train.py: from_pretrained(..., quantization_config=BitsAndBytesConfig("
            "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_compute_dtype=torch.bfloat16))"
        )
    if {"lora", "qlora"} & settings:
        yield "in train.py: model = peft.get_peft_model(model, peft.LoraConfig(...))"


def _settings(best: Candidate, asked: AskedStep) -> set[str]:
    """All settings of a choice: those of the step itself, and what was changed."""
    changed = {*best.changes, *(("checkpointing",) if "qlora" in best.changes else ())}
    narrow = {"bf16", "fp16"}
    return {*changed, *(asked.given - (narrow if narrow & changed else set()))}


def _machines(best: Candidate) -> tuple[int, int]:
    """The number of machines, and the GPUs that are used of each."""
    offer = None if best.cost is None else best.cost.offer
    usual = on_cluster(best.device, Parallel()).cluster.gpus_per_node
    size = max(usual if offer is None else offer.gpus, min(usual, best.gpus))
    machines = -(-best.gpus // size)
    return machines, best.gpus // machines


def _torchrun(best: Candidate) -> str:
    if best.gpus == 1:
        return "python"
    machines, each = _machines(best)
    if machines == 1:
        return f"torchrun --nproc_per_node {each}"
    return f"torchrun --nnodes {machines} --nproc_per_node {each} {_ENDPOINT}"


def _accelerate(best: Candidate, asked: AskedStep) -> str:
    machines, _ = _machines(best)
    narrow = [name for name in ("bf16", "fp16") if name in _settings(best, asked)]
    words = [
        f"accelerate launch --num_processes {best.gpus}",
        f"--num_machines {machines} --main_process_ip HOST" if machines > 1 else "",
        f"--mixed_precision {narrow[0]}" if narrow else "",
        *_sharding_words(best.strategy),
    ]
    return " ".join(filter(None, words))


def _sharding_words(strategy: Parallel | None) -> tuple[str, ...]:
    """How accelerate shards: FSDP, or DeepSpeed where the optimizer is on the host."""
    if strategy is not None and strategy.offload != "none":
        stage = strategy.shard or 2
        return (f"--use_deepspeed --zero_stage {stage} --offload_optimizer_device cpu",)
    return (
        "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true",
        "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP",
    )


def _trainer_arguments(best: Candidate, asked: AskedStep) -> str:
    words = [] if best.batch is None else [f"--per_device_train_batch_size {best.batch}"]
    micro = 1 if best.cost is None else best.cost.accumulated
    words += [f"--gradient_accumulation_steps {micro}"] if micro > 1 else []
    changes = _settings(best, asked)
    words += dict.fromkeys(_ARGUMENTS[name] for name in _ARGUMENTS if name in changes)
    return "".join(f" {word}" for word in words)


def _torchtitan(best: Candidate, asked: AskedStep) -> str:
    """The flags of torchtitan for a choice."""
    strategy = best.strategy
    words = [] if best.batch is None else [f"--training.local_batch_size {best.batch}"]
    if asked.sequence is not None:
        words.append(f"--training.seq_len {asked.sequence}")
        if best.cost is not None and best.cost.step_samples is not None:
            sequences = int(best.cost.step_samples // asked.sequence)
            words.append(f"--training.global_batch_size {sequences}")
    axis = "shard" if strategy is not None and strategy.shard else "replicate"
    words.append(f"--parallelism.data_parallel_{axis}_degree {best.gpus}")
    recomputes = "checkpointing" in _settings(best, asked)
    words.append(f"--activation_checkpoint.mode {'full' if recomputes else 'none'}")
    if "compile" in _settings(best, asked):
        words.append("--compile.enable")
    return " ".join(words)


def _predict(best: Candidate, asked: AskedStep) -> str:
    """The command that predicts the choice in detail."""
    words = ["wavecast predict", asked.target, *asked.options]
    if best.batch is not None and asked.takes_batch:
        words.append(f"--batch {best.batch}")
    narrow = {"bf16", "fp16"} & {*best.changes}
    if asked.precision is not None and not narrow:
        words.append(f"--precision {asked.precision}")
    options = [word for name in best.changes for word in _OPTIONS.get(name, ())]
    words += [" ".join(options)] if options else []
    words.append(f"--gpu {best.device.id}")
    if best.strategy is not None:
        words.append(f"--parallel {option_of(best.strategy)}")
    return " ".join(words)


def _elsewhere(selection: Selection, best: Candidate) -> Iterator[str]:
    """What becomes of the choice at another provider's price, where that is far higher."""
    offer = None if best.cost is None else best.cost.offer
    if offer is None or offer.provider in OWN or selection.aim is Aim.TIME:
        return
    usd, other = best.usd_elsewhere, best.next_offer
    if usd is None or other is None:
        yield f"only {offer.provider} is known to offer it; compare its price before you rely on it"
        return
    if usd.value < _FAR_BELOW * best.usd.value:
        return
    more = f"{usd.value / best.usd.value:.2f} times"
    there = f"{other.provider} asks {more} as much ({money(usd.value)} in all)"
    cheaper = next(
        (choice for choice in selection.ranked[1:] if choice.usd.value < usd.value), None
    )
    then = "it would still be the first" if cheaper is None else f"then {told(cheaper)} comes first"
    yield f"the price is one provider's: {there}; {then}"


def _others(selection: Selection, best: Candidate) -> Iterator[str]:
    """The second-best choice with the reason why it lost, and the step without any change."""
    if len(selection.ranked) > 1:
        other = selection.ranked[1]
        alike = other in selection.as_good
        reason = "it cannot be told apart" if alike else _times(best, other)
        yield f"runner-up: {told(other)}; {reason}"
    sure = next((choice for choice in selection.ranked if _is_sure(choice)), None)
    if not _is_sure(best) and sure is not None:
        yield f"sure to keep the limits: {told(sure)}; {_times(best, sure)}"
    plain = selection.as_given
    if plain is not None:
        kept = "" if plain.keeps_limits else ", which misses the limits"
        yield f"without changes to the step: {told(plain)}{kept}; {_times(best, plain)}"
    if selection.aim is not Aim.TIME:
        fastest = min(selection.ranked, key=lambda choice: choice.seconds.value)
        if fastest.seconds.value < best.seconds.value / 1.5:
            yield f"if time matters more: {told(fastest)}; {_times(best, fastest)}"


def _is_sure(candidate: Candidate) -> bool:
    """Whether the whole range keeps budget and deadline."""
    return candidate.budget is candidate.deadline is Limit.KEPT


def _times(best: Candidate, other: Candidate) -> str:
    time = other.seconds.value / best.seconds.value
    usd = other.usd.value / best.usd.value
    return f"{time:.2f} times the time, {usd:.2f} times the money"


def told(candidate: Candidate) -> str:
    """A choice with its time and money: `l4 at lambda: 3.2 h, $1.20 ($1.00 - $2.00)`."""
    cost = candidate.cost
    assert cost is not None
    where = "" if cost.offer is None else f" at {cost.offer.provider}"
    ways = f" with {candidate.settings}" if candidate.settings else ""
    time = long_duration(cost.seconds.value)
    if cost.usd is None:
        return f"{candidate.name}{where}{ways}: {time}, no price"
    usd = money(cost.usd.value) + _range(cost.usd, money_range)
    return f"{candidate.name}{where}{ways}: {time}, {usd}"


_ADJECTIVES = {Aim.MONEY: "cheapest", Aim.TIME: "fastest", Aim.BOTH: "best of both"}
_LOST_SHOWN = 6


def verdict(selection: Selection) -> str:
    """The choice in a sentence."""
    best = selection.best
    if best is None or best.cost is None:
        if selection.beyond:
            nearest = selection.beyond[0]
            return f"Nothing keeps the limits. The nearest is {told(nearest)}."
        return "The training can run on none of these GPUs."
    word = _ADJECTIVES[selection.aim]
    sentence = f"The {word} is {told(best)}."
    if best.seconds.high is None:
        return f"{sentence} The prediction has no range, so it is not known how sure this is."
    if not selection.as_good:
        return sentence
    names = listed([choice.name for choice in selection.as_good])
    return f"{sentence} It cannot be told apart from {names}."


def choices(
    title: str,
    selection: Selection,
    plan: TrainingPlan,
    unit: str,
    width: int,
    shown: int = 10,
    asked: AskedStep = ANY_STEP,
) -> RenderableType:
    """The verdict, the best choices, and why the others lost."""
    rows = list(selection.ranked[:shown]) or list(selection.beyond[:shown])
    body: list[RenderableType] = [line(verdict(selection)), ""]
    names: set[str] = set()
    missing: list[str] = []
    if rows:
        every = choice_columns(rows, selection)
        kept = fitting(every, width)
        names, missing = {column.name for column in kept}, left_out(every, kept)
        body += [table(kept), ""]
    lines = [*missing, *choice_lines(selection, rows, names)]
    steps = recipe(selection, asked)
    if steps:
        body += [titled("the recipe", *map(line, steps)), ""]
    return titled(f"{title}: {plan_text(plan, unit)}", *body, *remarks(lines))


def choice_columns(rows: Sequence[Candidate], selection: Selection) -> list[Column]:
    """The columns of a table of choices."""
    return CHOICES.columns([RankedChoice(choice, choice in selection.as_good) for choice in rows])


@dataclass(frozen=True)
class RankedChoice:
    """A candidate among others."""

    candidate: Candidate
    as_good: bool
    """Whether it cannot be told apart from the best."""

    @property
    def mark(self) -> str:
        """`*` if no other choice is both faster and cheaper, `=` if it is as good as the best."""
        return ("*" if self.candidate.on_front else " ") + ("=" if self.as_good else "")

    @property
    def batch(self) -> str | None:
        """The batch on one GPU, and how often it is accumulated: `32 x 4`."""
        choice = self.candidate
        if choice.batch is None:
            return None
        micro = 1 if choice.cost is None else choice.cost.accumulated
        return str(choice.batch) if micro == 1 else f"{choice.batch} x {micro}"

    @property
    def memory(self) -> str | None:
        """The memory that one GPU needs, and what it has."""
        choice = self.candidate
        if choice.memory is None:
            return None
        sharded = ", sharded" if choice.strategy is not None and choice.strategy.shard else ""
        offloads = choice.strategy is not None and choice.strategy.offload != "none"
        host = ", optimizer on the host" if offloads else ""
        return of_capacity(choice.memory.needed_bytes, choice.device.memory_bytes) + sharded + host

    @property
    def limits(self) -> str:
        """What is known about the budget and the deadline, where they may be missed."""
        limits = {"budget": self.candidate.budget, "deadline": self.candidate.deadline}
        texts = (_LIMITS[limit].format(name) for name, limit in limits.items())
        return ", ".join(filter(None, texts))


_LIMITS = {
    Limit.KEPT: "",
    Limit.UNSURE: "may miss the {}",
    Limit.MISSED: "misses the {}",
    Limit.UNKNOWN: "no price for the {}",
}
CHOICES = describe(
    RankedChoice,
    Field("", "candidate.name", title="GPUs"),
    Field("", "mark", title=""),
    Field("", "candidate.seconds.value", title="time", text=long_duration, drawn=True),
    Field("", "candidate.seconds", title="range", rank=3, text=long_range),
    Field("", "candidate.cost.usd.value", title="cost", text=money),
    Field("", "candidate.cost.usd", title="range of cost", rank=3, text=money_range),
    Field("", "batch", title="batch", rank=4, left=False),
    Field("largest_batch", "candidate.largest_batch", title="largest", rank=6, text=str),
    Field("", "memory", title="memory", rank=2, left=True),
    Field("settings", "candidate.settings", title="settings", rank=2),
    Field("changes", "candidate.changes", meaning="The changes, by the names of advise."),
    Field("", "limits", title="limits", rank=1),
    Field("", "candidate.cost.offer.provider", title="at", left=True),
    Field("", "candidate.cost.offer", title="machine", rank=5, text=machine, left=True),
    Field("", "candidate.cost.offer", title="price of", rank=8, text=seen),
    Field("gpu", "candidate.device.id", meaning="The id of the GPU."),
    *(Field(name, f"candidate.{name}") for name in ("gpus", "batch", "strategy", "on_front")),
    Field("needed_bytes", "candidate.memory.needed_bytes"),
    Field("as_good_as_best", "as_good"),
    Field("budget", "candidate.budget", meaning="Whether the budget is kept."),
    Field("deadline", "candidate.deadline", meaning="Whether the deadline is kept."),
    Field("reason", "candidate.reason"),
    Field("training", "candidate.cost", meaning="The whole training; null if it cannot run there."),
)


_SELECTION = output(
    "The GPUs on which a training may run, best first.",
    Field("verdict", kind=str, meaning="The choice in a sentence."),
    Field("by", kind=Aim, meaning="What the choice is by."),
    Field("shared_error", kind=float, meaning="The correlation of the errors on two GPUs."),
    Field("ranked", kind=[RankedChoice], meaning="Those that keep the limits, best first."),
    Field("beyond_limits", kind=[RankedChoice], meaning="Those that miss a limit."),
    Field("impossible", kind=[RankedChoice], meaning="Those that cannot run it, with the reason."),
    Field("unverified", kind=[RankedChoice], meaning="Those whose generation was never measured."),
    Field("recipe", kind=[str], meaning="How to run the best, and the runner-up."),
)
CHOSEN = output(
    "The GPUs on which a training may run, best first.",
    Field("target", kind=str, meaning="What is trained."),
    Field("", "choice", kind=_SELECTION, inline=True),
)


def chosen_record(target: str, selection: Selection, asked: AskedStep = ANY_STEP) -> dict[str, Any]:
    """The choices for a target as plain data."""
    return CHOSEN.record({"target": target, "choice": chosen(selection, asked)})


def chosen(selection: Selection, asked: AskedStep = ANY_STEP) -> Mapping[str, Any]:
    """The choices with their verdict, by the keys of JSON."""
    groups = (selection.ranked, selection.beyond, selection.impossible, selection.unverified)
    rows = (
        [RankedChoice(candidate, candidate in selection.as_good) for candidate in group]
        for group in groups
    )
    names = ("ranked", "beyond_limits", "impossible", "unverified")
    answer = {"verdict": verdict(selection), "by": selection.aim, "shared_error": SHARED_ERROR}
    steps = {"recipe": recipe(selection, asked)}
    return answer | dict(zip(names, rows, strict=True)) | steps


describe(
    Selection,
    Field("", verdict, title="verdict"),
    Field("", "aim", title="by"),
    Field("", chosen, kind=_SELECTION, inline=True),
    parts="ranked",
)


def _alone(candidate: Candidate) -> RankedChoice:
    return RankedChoice(candidate, as_good=False)


describe(Candidate, Field("", _alone, inline=True), shown_as=_alone)


def choice_lines(selection: Selection, rows: Sequence[Candidate], names: set[str]) -> list[str]:
    """What is to be known of a table of choices; `names` are those of its columns."""
    lines = []
    if any(choice.on_front for choice in rows):
        lines.append("*: no other choice is both faster and cheaper")
    if selection.as_good:
        shared = f"{SHARED_ERROR:.0%} of the errors are taken as shared"
        lines.append(f"=: as good as the first, as far as the ranges tell ({shared})")
    if "largest" in names:
        lines.append("largest: the largest batch that fits, among doubles of the batch")
    if "batch" in names and any(
        ((choice.cost and choice.cost.accumulated) or 1) > 1 for choice in rows
    ):
        lines.append("batch: samples of a micro-batch on one GPU x micro-batches in a step")
    lines += _unverified(selection.unverified)
    more = len(selection.ranked) - len(rows)
    if more > 0:
        lines.append(f"{more} more choices (--show {len(selection.ranked)})")
    if selection.ranked and selection.beyond:
        names_beyond = listed([choice.name for choice in selection.beyond])
        lines.append(f"beyond the limits: {names_beyond}")
    return [*lines, *_impossible(selection.impossible)]


def _unverified(candidates: Sequence[Candidate]) -> list[str]:
    """What is known of GPUs that do not take part."""
    if not candidates:
        return []
    names = listed([told(choice) for choice in candidates[:3]])
    reason = (
        "nothing was measured on GPUs of this vendor or generation (--unverified lets them win)"
    )
    return [f"not verified: {names}; {reason}"]


def _impossible(candidates: Sequence[Candidate]) -> list[str]:
    """Why some cannot be used: those that do not fit, and other reasons with their GPUs."""
    small = [
        candidate.name for candidate in candidates if candidate.reason.startswith("does not fit")
    ]
    lines = [f"does not fit: {listed(small)}"] if small else []
    others: dict[str, list[str]] = {}
    for candidate in candidates:
        if not candidate.reason.startswith("does not fit"):
            others.setdefault(candidate.reason, []).append(candidate.name)
    return [*lines, *(f"{listed(n)}: {reason}" for reason, n in list(others.items())[:_LOST_SHOWN])]


# The page about a choice of GPUs for a training.


_LISTED = 40
_METHOD = (
    "The time of a step is predicted for each GPU and batch, and multiplied by the number of "
    "steps; its error is the same in every step, so it does not average out.",
    "Two choices cannot be told apart if their ranges overlap too far, part of their errors being "
    "the same.",
    "Money is that of whole machines, for the whole time. Each price has its date.",
)


def choice_report(
    title: str,
    selection: Selection,
    plan: TrainingPlan,
    unit: str,
    limits: tuple[float | None, float | None] = (None, None),
    asked: AskedStep = ANY_STEP,
) -> Report:
    """The verdict, time and money of all choices, and why the others lost.

    Args:
        title: what is trained.
        selection: the choices in order.
        plan: how long the training is.
        unit: what the step counts: "samples".
        limits: the budget in USD and the deadline in seconds; None for none.
        asked: the step, as the recipe names it.
    """
    rows = [*selection.ranked, *selection.beyond][:_LISTED]
    sections = []
    lines: list[str] = choice_lines(selection, rows, set())
    if rows:
        columns = fitting(choice_columns(rows, selection), ANY_WIDTH)
        lines = choice_lines(selection, rows, {column.name for column in columns})
        listed = html_table(columns, caption="The choices, best first")
        content: Html = joined([choice_chart(selection, *limits), listed])
        lead = f"{sentence(plan_text(plan, unit))} The best comes first."
        sections.append(Section("choices", "The choices", content, lead, "choices"))
    if recipe_lines := recipe(selection, asked):
        steps = bullets(map(sentence, recipe_lines))
        sections.insert(0, Section("recipe", "The recipe", steps, short="recipe"))
    notes = bullets(map(sentence, lines))
    sections.append(Section("notes", "What the marks mean, and what lost", notes, short="notes"))
    how = bullets(_METHOD)
    sections.append(Section("method", "How this was chosen", how, short="how"))
    return Report(title, _told(selection), tuple(sections))


def _told(selection: Selection) -> Html:
    """The choice in a sentence, with its name marked."""
    text = verdict(selection)
    if selection.best is None:
        return escaped(text)
    before, name, after = text.partition(selection.best.name)
    return joined([before, element("strong", name), after])


# Choices of GPUs by time and money.


_MOST_NAMED = 8
_MOST_MARKS = 5
_HOUR_S = 3600.0
TIMES_S = (
    *(60.0, 300.0, 900.0, 1800.0),
    *(hours * _HOUR_S for hours in (1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 720, 1440, 2880, 8760)),
)
"""Times at which an axis may have marks, in seconds."""


def choice_chart(
    selection: Selection, budget_usd: float | None = None, deadline_s: float | None = None
) -> Html:
    """Time and money of all choices; nothing if fewer than two have a price.

    The line joins the choices than which no other is both faster and cheaper.
    """
    drawn = [
        choice
        for choice in (*selection.ranked, *selection.beyond)
        if choice.cost and choice.cost.usd
    ]
    if len(drawn) < 2:
        return NOTHING
    plot = _plot(drawn)
    front = sorted(
        (choice for choice in drawn if choice.on_front), key=lambda choice: choice.seconds.value
    )
    xs = [choice.seconds.value for choice in front]
    line = empty_element(
        "polyline", points=plot.path(xs, [choice.usd.value for choice in front]), class_="curve"
    )
    plot = plot.with_parts(_limits(plot, budget_usd, deadline_s))
    plot = plot.with_parts([plot.stretched(line)])
    plot = plot.with_parts(part for choice in front for part in _range_lines(plot, choice))
    plot = plot.with_parts(_dot(plot, choice, choice is selection.best) for choice in drawn)
    first = sorted(front, key=lambda choice: choice is not selection.best)
    named = [(choice.seconds.value, plot.y(choice.usd.value) - 12, choice.name) for choice in first]
    plot = plot.with_parts(plot.names(named[:_MOST_NAMED], "strong halo"))
    label = (
        f"Time and money of {len(drawn)} choices. No other is both faster and cheaper than: "
        f"{', '.join(choice.name for choice in front)}."
    )
    under = "across: time; up: USD; the line joins what no other choice beats in both"
    return plot.drawn(label, under)


def _plot(drawn: Sequence[Candidate]) -> Plot:
    seconds, money = zip(
        *((choice.seconds.value, choice.usd.value) for choice in drawn), strict=True
    )
    times = marked_axis(min(seconds) / 1.25, max(seconds) * 1.25, TIMES_S, long_duration)
    prices = sorted(digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5))
    costs = marked_axis(min(money) / 1.6, max(money) * 1.6, prices, lambda usd: f"${usd:,.4g}")
    return Plot(times, costs, height=320)


def marked_axis(
    low: float, high: float, marks: Sequence[float], label: Callable[[float], str]
) -> PlotAxis:
    """A logarithmic axis with some of the marks that lie on it, or with its ends."""
    inside = [float(mark) for mark in marks if low <= mark <= high]
    chosen = inside[:: -(-len(inside) // _MOST_MARKS)] if len(inside) > 1 else [low, high]
    return PlotAxis(low, high, tuple((mark, label(mark)) for mark in chosen), is_log=True)


def _limits(plot: Plot, budget_usd: float | None, deadline_s: float | None) -> Iterable[Html]:
    """The budget and the deadline, as far as they are in the plot."""
    if budget_usd is not None and plot.up.low < budget_usd < plot.up.high:
        y = plot.y(budget_usd)
        yield plot.level(y, "limit")
        text = f"budget ${budget_usd:,.4g}"
        yield element("text", text, x="99.5%", y=y - 5, class_="last limit halo")
    if deadline_s is not None and plot.across.low < deadline_s < plot.across.high:
        yield plot.upright(deadline_s, "limit")
        text = f"deadline {long_duration(deadline_s)}"
        # At the bottom, since the budget's name may be at the top.
        low = plot.height - 8
        yield element("text", text, x=plot.x(deadline_s), y=low, class_="last limit halo")


def _range_lines(plot: Plot, choice: Candidate) -> Iterable[Html]:
    """The ranges of time and money, as two lines through a point."""
    x, y = plot.x(choice.seconds.value), plot.y(choice.usd.value)
    if choice.seconds.low is not None and choice.seconds.high is not None:
        ends = plot.x(choice.seconds.low), plot.x(choice.seconds.high)
        yield empty_element("line", x1=ends[0], x2=ends[1], y1=y, y2=y, class_="whisker thin")
    if choice.usd.low is not None and choice.usd.high is not None:
        heights = plot.y(choice.usd.low), plot.y(choice.usd.high)
        yield empty_element("line", x1=x, x2=x, y1=heights[0], y2=heights[1], class_="whisker thin")


def _dot(plot: Plot, choice: Candidate, is_best: bool) -> Html:
    text = f"{choice.name}: {long_duration(choice.seconds.value)}, ${choice.usd.value:,.2f}"
    class_ = "dot" if choice.on_front else "dot soft"
    x, y = plot.x(choice.seconds.value), plot.y(choice.usd.value)
    return element("circle", title_of(text), cx=x, cy=y, r="7" if is_best else "4.5", class_=class_)
