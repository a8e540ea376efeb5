"""Advice: what would make a step faster or smaller, as tables, JSON and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.advice.proposals import LoaderAdvice, OtherGpus, Proposal, StepAdvice
from wavecast.report.fields import Field, columns, describe
from wavecast.report.html.markup import bullets, element, joined
from wavecast.report.tables import listed
from wavecast.report.units import UNKNOWN, duration, memory, money, percent
from wavecast.report.views import View, ViewPart

_SLIGHT = 0.01
"""A wait for data that is not worth a word, as a share of the iteration."""


@dataclass(frozen=True)
class AdvisedChange:
    """A proposal as tables show it."""

    advice: StepAdvice
    proposal: Proposal

    @property
    def gain(self) -> str:
        """The share of time that is saved, with its range."""
        proposal = self.proposal
        if proposal.gain is None:
            return UNKNOWN
        if proposal.gain_low is None or proposal.gain_high is None:
            return signed(proposal.gain)
        return (
            f"{signed(proposal.gain)} ({signed(proposal.gain_low)} to {signed(proposal.gain_high)})"
        )

    @property
    def step(self) -> str:
        """The time of the changed step."""
        after = self.proposal.after
        return UNKNOWN if after is None else duration(after.seconds)

    @property
    def saved(self) -> str:
        """The memory that is saved, or needed in addition."""
        saved = self.proposal.saved_bytes
        if saved is None:
            return UNKNOWN
        return f"{'-' if saved > 0 else '+'}{memory(abs(saved))}" if saved else "0"

    @property
    def money(self) -> str:
        """What a million samples cost then."""
        after = self.proposal.after
        usd = None if after is None else self.advice.usd_of(after)
        return UNKNOWN if usd is None else money(usd)


def signed(gain: float) -> str:
    """A gain of time as the change of the time: `-12%`."""
    return f"{'-' if gain > 0 else '+'}{percent(abs(gain))}"


ROWS = describe(
    AdvisedChange,
    Field("", "proposal.title", title="change", folds=True),
    Field("", "gain", title="time", left=False),
    Field("", "step", title="step", rank=3, left=False),
    Field("", "saved", title="memory", rank=1, left=False),
    Field("", "money", title="$ / M {unit}", rank=4, left=False),
    Field("", "proposal.price", title="what it costs", rank=2, folds=True),
)
describe(
    Proposal,
    Field("name", title="change"),
    Field("title"),
    Field("verdict", title="verdict"),
    Field("gain", title="gain", text=signed),
    Field("gain_low"),
    Field("gain_high"),
    Field("gpu_gain"),
    Field("time_ratio"),
    Field("saved_bytes", title="saves"),
    Field("fits"),
    Field("seconds", "after.seconds", meaning="The time of the changed step."),
    Field("needed_bytes", "after.memory.needed_bytes", meaning="The memory that it needs."),
    Field("code", title="code", folds=True),
    Field("price"),
    Field("lines"),
    Field("reason"),
)
describe(
    OtherGpus,
    Field("kind", title="kind"),
    Field("gpu", "step.device.id", title="GPU", meaning="The id of the GPU."),
    Field("gpus", "step.gpus", title="GPUs", meaning="How many of them."),
    Field("seconds", "step.seconds", title="time", meaning="The time of the step there."),
    Field("sample_s"),
    Field("usd_per_million"),
)
describe(
    LoaderAdvice,
    Field("step_s", title="step"),
    Field("data_s", title="data of a step every"),
    Field("iteration_s", title="iteration"),
    Field("cpu_s", title="CPU time"),
    Field("workers", title="workers"),
    Field("cores", title="cores"),
    Field("waits", title="waits", text=percent),
    Field("needed", title="workers needed"),
)
describe(
    StepAdvice,
    Field("target", "name", title="step"),
    Field("gpu", "before.device.id", title="GPU", meaning="The id of the GPU."),
    Field("seconds", "before.seconds", title="time", meaning="The time of the step as it is."),
    Field("low_s", "before.low_s"),
    Field("high_s", "before.high_s"),
    Field("needed_bytes", "before.memory.needed_bytes", meaning="The memory that it needs."),
    Field("usd_per_million"),
    "together",
    "proposals",
    "elsewhere",
    "loader",
    parts="proposals",
)


def verdict(advice: StepAdvice) -> str:
    """The advice in a sentence or two."""
    before, best = advice.before, advice.best
    now = f"On {before.device.id} the step takes {duration(before.seconds)}."
    if before.fits is False:
        now = f"{now[:-1]}, but it does not fit."
    if advice.loader is not None and advice.loader.waits >= _SLIGHT:
        ready = f"its data loader has a step's data every {duration(advice.loader.data_s)} only"
        now = f"{now[:-1]}, but {ready}."
    if best is None or best.after is None:
        return f"{now} None of the changes that were tried makes it faster."
    then = f"{now} With {best.title} it would take {duration(best.after.seconds)}"
    more = best.after.samples, before.samples
    if more[0] and more[1] and more[0] != more[1]:
        then += f" for {more[0] / more[1]:.3g} times the samples"
    shown_gain = AdvisedChange(advice, best).gain
    fits = "" if best.fits is not False else "; it would still not fit"
    return f"{then}: {shown_gain} of the time for a sample{fits}."


_TITLES = {
    "together": "What helps together",
    "faster": "What makes it faster",
    "smaller": "What makes it smaller",
}


def advice_view(advice: StepAdvice) -> View:
    """The verdict, the changes that help, their code, and what is of no use."""
    together = () if advice.together is None else (advice.together,)
    groups = {"together": together, "faster": advice.faster, "smaller": advice.smaller}
    unit = advice.before.trace.unit
    parts = [
        ViewPart(
            _TITLES[name],
            name,
            columns([AdvisedChange(advice, change) for change in changes], unit),
            identity=name,
            short=name,
        )
        for name, changes in groups.items()
        if changes
    ]
    # The changes that help, alone or beside others, with the code that makes them.
    codes = [(p.title, p.code) for p in (*advice.faster, *advice.smaller, *_beside(advice))]
    if codes:
        lines = [f"{title}: {code}" for title, code in codes]
        marked = [joined([f"{title}: ", element("code", code)]) for title, code in codes]
        parts.append(ViewPart(heading="what to write", lines=lines))
        title = "What to write"
        parts.append(ViewPart(title, identity="code", short="code", chart=lambda: bullets(marked)))
    others, lines = other_lines(advice), advice_lines(advice)
    if others:
        title = "The step on other GPUs"
        parts.append(ViewPart(title, lines=others, identity="elsewhere", short="other GPUs"))
    useless = [text for text in lines if text not in others]
    title = "What does not help here"
    parts.append(ViewPart(title, lines=useless, identity="useless", short="no use"))
    return View(
        advice.name,
        [verdict(advice)],
        parts,
        heading=f"{advice.name}: advice",
        remarks=lines,
        notes=list(dict.fromkeys((*advice.before.notes, *advice.before.trace.notes))),
    )


def _beside(advice: StepAdvice) -> list[Proposal]:
    """The changes that are of no use alone, and of use beside others."""
    together = () if advice.together is None else advice.together.changes
    return [proposal for proposal in advice.useless if proposal.changes[-1] in together]


def advice_lines(advice: StepAdvice) -> list[str]:
    """What is of no use here, what could not be tried, and what the columns mean."""
    beside = _beside(advice)
    useless = [change for change in advice.useless if change not in beside]
    lines = []
    for words, changes in (
        ("of no use alone, but together", beside),
        ("of no use here", useless),
    ):
        names = [f"{c.title} ({signed(c.gain or 0.0)})" for c in changes if not c.reason]
        lines += [f"{words}: {listed(names)}"] if names else []
    lines += [f"{change.title} alone: {change.reason}" for change in beside if change.reason]
    lines += [f"{change.title}: {change.reason}" for change in useless if change.reason]
    lines += [f"{change.title} was not tried: {change.reason}" for change in advice.impossible]
    lines += [
        f"{change.title}: the host ({change.before.host.name}) holds it back; the GPU's time "
        f"changes by {signed(change.gpu_gain or 0.0)}, so that a faster host gains more"
        for change in (*advice.faster, *advice.useless)
        if change.is_held_back
    ]
    return [*lines, *loader_lines(advice), *other_lines(advice), GAIN]


def loader_lines(advice: StepAdvice) -> list[str]:
    """Whether the data loader keeps up, with the step as it is and with what is advised."""
    loader = advice.loader
    if loader is None:
        return []
    who = f"{loader.workers} workers" if loader.workers else "the training process itself"
    on = f" on {loader.cores} cores" if loader.cores else ""
    text = f"data: {who}{on} load a step's batches every {duration(loader.data_s)}"
    if loader.waits < _SLIGHT:
        text += ", so the GPU does not wait for them"
    else:
        text += f", so the GPU waits for them in {percent(loader.waits)} of the iteration"
        text += f"; {_keeping_up(loader, loader.needed, '')}"
    lines = [text]
    best = advice.best
    if best is not None and best.after is not None and best.fits is not False:
        needed = loader.needed_for(best.after.seconds * _fewer_samples(best))
        if needed > max(loader.needed, loader.workers):
            lines.append(f"data: {_keeping_up(loader, needed, f' with {best.title}')}")
    return lines


def _fewer_samples(proposal: Proposal) -> float:
    """The samples of the step as it is, for each of the changed step."""
    after = None if proposal.after is None else proposal.after.samples
    return proposal.before.samples / after if proposal.before.samples and after else 1.0


def _keeping_up(loader: LoaderAdvice, needed: int, when: str) -> str:
    """How many workers it takes, and whether there are cores for them."""
    text = f"DataLoader(..., num_workers={needed}) keeps up{when}"
    if loader.cores is None or needed <= loader.cores:
        return text
    best = duration(loader.with_workers(loader.cores))
    return f"{text}, on as many cores; {loader.cores} cores load them every {best} at best"


def other_lines(advice: StepAdvice) -> list[str]:
    """What the step takes on other GPUs, and on several."""
    return [_other_line(advice, other) for other in advice.elsewhere]


GAIN = "time: the change of the time for a sample, with its range"


_OTHER_KINDS = {
    "fastest": "the fastest other GPU",
    "cheapest": "the cheapest other GPU",
    "several": "several GPUs",
}


def _other_line(advice: StepAdvice, other: OtherGpus) -> str:
    """What the step takes elsewhere: `the cheapest other GPU: a30, 4.1 ms, $0.20 / M samples`."""
    before, step = advice.before, other.step
    times = f"{duration(step.seconds)} a step"
    if step.gpus > 1 and other.sample_s and before.samples:
        times += f", {before.seconds / before.samples / other.sample_s:.1f} times the samples"
    usd, now = other.usd_per_million, advice.usd_per_million
    if usd is not None:
        times += f", {money(usd)} / M {before.trace.unit}"
        times += "" if now is None else f" instead of {money(now)}"
    return f"{_OTHER_KINDS[other.kind]}: {step.name}, {times}"
