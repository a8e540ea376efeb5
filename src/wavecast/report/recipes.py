"""Recipes: what to rent, which settings, what it takes, how to run it, and what comes second."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from wavecast.frameworks.pytorch.huggingface.configs import config_of
from wavecast.frameworks.target_files import is_python
from wavecast.parallel.strategy import Parallel, option_of
from wavecast.planning.cost import Ranged
from wavecast.planning.selection import Aim, Candidate, Limit, Selection
from wavecast.report.costs import long_range, money_range
from wavecast.report.units import long_duration, money, of_capacity
from wavecast.steps.request import on_cluster
from wavecast.targets.sources import units_of
from wavecast.targets.targets import Target, Trait, hugging_face_name

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
    cheaper = next((one for one in selection.ranked[1:] if one.usd.value < usd.value), None)
    then = "it would still be the first" if cheaper is None else f"then {told(cheaper)} comes first"
    yield f"the price is one provider's: {there}; {then}"


def _others(selection: Selection, best: Candidate) -> Iterator[str]:
    """The second-best choice with the reason why it lost, and the step without any change."""
    if len(selection.ranked) > 1:
        other = selection.ranked[1]
        alike = other in selection.as_good
        reason = "it cannot be told apart" if alike else _times(best, other)
        yield f"runner-up: {told(other)}; {reason}"
    sure = next((one for one in selection.ranked if _is_sure(one)), None)
    if not _is_sure(best) and sure is not None:
        yield f"sure to keep the limits: {told(sure)}; {_times(best, sure)}"
    plain = selection.as_given
    if plain is not None:
        kept = "" if plain.keeps_limits else ", which misses the limits"
        yield f"without changes to the step: {told(plain)}{kept}; {_times(best, plain)}"
    if selection.aim is not Aim.TIME:
        fastest = min(selection.ranked, key=lambda one: one.seconds.value)
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
