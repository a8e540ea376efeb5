"""GPUs and hosts: known facts, and what a calibration measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast.analysis.evaluation import Learning
from wavecast.doctor import Finding, State
from wavecast.hardware.clusters import Cluster
from wavecast.hardware.devices import Device, Fact
from wavecast.hardware.hosts import REFERENCE_HOST, usual_hosts
from wavecast.hardware.kept_hosts import HostFile, KeptHost
from wavecast.planning.prices import Price, price
from wavecast.predictors.corrected import VARIABLE, Corrections
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.results.costs import hourly, offer_text
from wavecast.report.tables import from_rows, line, remarks, shown, table, titled
from wavecast.report.units import (
    UNKNOWN,
    count,
    duration,
    percent,
    quantity,
    text,
    three_digits,
)
from wavecast.steps.ranges import covered_hosts

_COSTS = {
    "forward_s": "an op of the forward pass",
    "autograd_s": "recording it for the backward pass",
    "backward_s": "an op of the backward pass",
    "other_s": "an optimizer op on lists of tensors",
    "tensor_s": "each tensor in these lists",
    "view_s": "a view (an op without a kernel)",
    "module_s": "entering a module",
    "convolution_s": "cuDNN's plan for a convolution",
    "kernel_s": "each further kernel of an op",
    "step_s": "a training step, apart from its ops",
    "launch_s": "delay until an idle GPU starts an op",
    "sync_s": "delay until the host sees the GPU's end",
    "graph_s": "launching a CUDA graph",
    "node_s": "each kernel of the graph",
}
"""The costs of a host, as the table of `wavecast calibrate` names them."""


FACT = output(
    "A fact with its source.",
    Field("value", kind=float | bool | str | tuple[int, int], meaning="In SI units, or a word."),
    Field("source", kind=str | None, meaning="Where it is from; null when it is not given."),
)


def nominal(gpu: Device) -> dict[str, Any]:
    """The known numbers of a GPU with their sources, in the order of its file."""
    names = dict.fromkeys((*gpu.sources, *(field.name for field in fields(gpu))))
    values = {name: getattr(gpu, name) for name in names if name not in _NOT_FACTS}
    return {
        name: {"value": value, "source": gpu.sources.get(name)}
        for name, value in values.items()
        if value is not None
    }


_NOT_FACTS = ("id", "name", "vendor", "architecture", "aliases", "sources", "measured")


def _price(gpu: Device) -> Price | None:
    return price(gpu)


describe(
    Device,
    Field("id", title="name"),
    "name",
    "vendor",
    Field("architecture", title="architecture", rank=2),
    Field("", "memory_bytes", title="memory", rank=1),
    Field("", "memory_bytes_per_s", title="bandwidth", rank=1),
    Field("", "fp32_flops", title="FP32", rank=1, text=quantity),
    Field("", "tf32_tensor_flops", title="TF32", rank=3, text=quantity),
    Field("", "fp16_tensor_flops", title="FP16", rank=2, text=quantity),
    Field("", "bf16_tensor_flops", title="BF16", rank=3, text=quantity),
    Field("", "sm_count", title="SMs", rank=4, text="{:.0f}".format),
    Field("", "tdp_w", title="TDP", rank=4, text="{:.0f} W".format),
    Field("", _price, title="$/h", rank=3, text=hourly),
    "aliases",
    Field("nominal", nominal, kind={str: FACT}),
    "measured",
)

describe(
    HostFile,
    "name",
    "date",
    "software",
    "source",
    *(Field(name, blank=True) for name in ("processor", "machine", "gpu")),
    *map(Field, ("busy_before", "busy_during", "factor", "costs", "times")),
)
describe(
    KeptHost,
    Field("", "file", inline=True),
    Field("name", title="host"),
    Field("", lambda kept: kept.file.gpu or "none", title="GPU"),
    Field("", "file.date", title="date", rank=1),
    Field("", "file.factor", title="/ reference", rank=1, text=three_digits),
    Field("", "file.busy_during", title="busy", rank=2, text=percent),
    Field("", "file.machine", title="machine", rank=3, blank=True),
    Field("", lambda kept: kept.file.processor or kept.file.name, title="processor", rank=4),
    Field("file", lambda kept: str(kept.path), kind=str, meaning="The file of the host."),
)


def devices(gpus: Sequence[Device], width: int) -> RenderableType:
    """One row for each GPU with the facts that matter most for training."""
    lines = [
        f"{count(len(gpus))} GPUs. Rates are dense FLOP/s; TF32, FP16 and BF16 on tensor cores. "
        "? is unknown or absent.",
        'All facts of one GPU, with their sources: "wavecast devices NAME".',
    ]
    return Group(*shown(columns(gpus), width, lines))


def device_facts(gpu: Device) -> RenderableType:
    """Every number of a GPU with its source."""
    rows = [
        *((name, text(name, f["value"]), f["source"]) for name, f in nominal(gpu).items()),
        *((f"measured {name}", text(name, f.value), f.source) for name, f in gpu.measured.items()),
    ]
    lines = [f"{gpu.vendor} {gpu.architecture}"]
    if gpu.aliases:
        lines.append("also called " + ", ".join(gpu.aliases))
    if (offer := price(gpu)) is not None:
        lines.append(f"on demand: {offer_text(offer)}")
    return facts_with_sources(gpu.name, gpu.id, lines, rows)


def facts_with_sources(
    name: str, identity: str, lines: Sequence[str], rows: Sequence[tuple[str, str, str | None]]
) -> RenderableType:
    """Facts of a GPU or a cluster, each with where it is from."""
    facts = [(fact, value, source or "not given") for fact, value, source in rows]
    three = from_rows(facts, "<fact", "value", "<source...")
    title = line(name, "bold") + line(f" ({identity})")
    return Group(title, *remarks(lines), "", table(three))


def gpu_calibration(gpu: Device, facts: Mapping[str, Fact]) -> RenderableType:
    """The measured facts of a GPU next to its nominal ones."""
    nominal = {name: getattr(gpu, name) for name in facts}
    rows = [
        (
            name,
            text(name, nominal[name]),
            text(name, measured.value),
            "" if nominal[name] is None else percent(measured.value / nominal[name]),
        )
        for name, measured in facts.items()
    ]
    columns = from_rows(rows, "<fact", "nominal", "measured", "measured / nominal")
    return titled(f"{gpu.name} ({gpu.id})", table(columns), "")


def host_calibration(host: HostFile) -> RenderableType:
    """The measured costs of a host next to those of the reference host."""
    reference = {cost: getattr(REFERENCE_HOST, cost) for cost in _COSTS}
    rows = [
        (
            name,
            duration(reference[cost]),
            duration(host.costs[cost]),
            three_digits(host.costs[cost] / reference[cost]) if reference[cost] else UNKNOWN,
        )
        for cost, name in _COSTS.items()
    ]
    columns = from_rows(rows, "<time of the host for", "reference", "this host", "ratio")
    lines = [
        f"{host.software}; {host.source.removeprefix('wavecast calibrate, ')}",
        f"this host takes {three_digits(host.factor)} times as long as the reference host",
        f"other programs used {_share(host.busy_before)} of the CPU before the measurement and "
        f"{_share(host.busy_during)} during it",
    ]
    title = f"{host.name} ({host.processor})" if host.processor else host.name
    return titled(title, table(columns), "", *remarks(lines), *_busy_warning(host))


def _share(share: float | None) -> str:
    return "an unknown share" if share is None else percent(share)


def _busy_warning(host: HostFile) -> list[Text]:
    if not host.is_busy:
        return []
    most = max(host.busy_before or 0.0, host.busy_during or 0.0)
    warning = (
        f"the machine was busy: other programs used up to {percent(most)} of its CPU, so these "
        "times may be too long; calibrate again when it is as busy as it will be in training"
    )
    return [line(warning, "yellow")]


def saved_host(host: HostFile, path: Path, *, elsewhere: bool) -> Text:
    """Where a calibrated host was saved, and which predictions use it.

    Args:
        host: the host.
        path: its file.
        elsewhere: whether the file is outside the user's folder, so that only its path finds it.
    """
    if elsewhere:
        use = f"predictions use it with --host {path}"
    elif host.gpu:
        use = f"predictions for {host.gpu} use it, others with --host {host.name}"
    else:
        use = f"predictions use it with --host {host.name} (or --host mine, on this machine)"
    return line(f"saved as {path}; {use}", "dim")


def kept_hosts(hosts: Sequence[KeptHost], width: int) -> RenderableType:
    """One row for each calibrated host, by name, and one for each usual host."""
    if not hosts:
        return Group(line('no host was calibrated yet: run "wavecast calibrate"'), "", _usual())
    lines = [
        "/ reference: its time for the same work, divided by the reference host's",
        "busy: the share of the CPU that other programs used while it was measured",
    ]
    return Group(*shown(columns(hosts), width, lines), "", _usual())


def _usual() -> RenderableType:
    """The usual hosts, and which of them the range of a host that was not calibrated covers."""
    covered = covered_hosts(REFERENCE_HOST)
    assert covered is not None
    rows = [
        (usual.name, usual.about, usual.processor.name, three_digits(usual.factor))
        for usual in usual_hosts().values()
    ]
    lines = [
        f"a range with the reference host covers hosts that take {three_digits(covered.low)} to "
        f"{three_digits(covered.high)} times as long: {', '.join(covered.names)}",
        "--host NAME takes another; its range covers hosts around that one",
    ]
    named = table(from_rows(rows, "<usual host", "<what it is", "<processor", "/ reference"))
    return Group(named, "", *remarks(lines))


def learned(
    learning: Learning, kept: Corrections, path: Path, *, elsewhere: bool
) -> RenderableType:
    """How well each measured step is predicted before and after, and where that is kept.

    Args:
        learning: what was learned.
        kept: what the file has now.
        path: the file that keeps it.
        elsewhere: whether the file is outside the user's folder, so that it must be named.
    """
    rows = [
        (
            step.step,
            duration(step.measured_s),
            f"{step.before:+.1%}",
            UNKNOWN if step.after is None else f"{step.after:+.1%}",
        )
        for step in learning.steps
    ]
    use = f"predictions for {learning.gpu} use it"
    if elsewhere:
        use += f" if ${VARIABLE} names the file or its folder"
    lines = [f"{kept.counted}, saved as {path}; {use}"]
    if not rows:
        return titled(learning.gpu, *remarks(lines))
    columns = from_rows(rows, "<step", "GPU time", "error", "error after learning")
    others = "the other steps and the single ops" if kept.swept else "the other steps"
    about = f"error: predicted from the ops alone, over measured; after learning from {others}"
    return titled(learning.gpu, table(columns), "", *remarks([about, *lines]))


# Clusters: their links and networks, each fact with its source.


def _of(part: str) -> Callable[[Cluster], dict[str, Any]]:
    """A function that gives the facts of the node or the network."""
    return lambda cluster: {
        name.partition(".")[2]: {"value": value, "source": cluster.sources.get(name)}
        for name, value in _facts(cluster)
        if name.startswith(part)
    }


_NETWORK = "The network between machines; null when there is none, or it is unknown."
_FACTS = {str: FACT}


def _link(cluster: Cluster) -> str:
    machines = cluster.node.domain_nodes
    return f"{cluster.node.link}, {machines} machines" if machines > 1 else str(cluster.node.link)


describe(
    Cluster,
    Field("id", title="name"),
    "name",
    Field("", lambda cluster: cluster.gpu or "any", title="GPU", rank=5),
    Field("gpu"),
    Field("", "gpus_per_node", title="GPUs"),
    Field("", _link, title="link", rank=2),
    Field("", "node.link_bytes_per_s", title="per GPU"),
    Field("", "network.kind", title="network", rank=4, left=True),
    Field("", "network.bytes_per_s", title="per machine", rank=3),
    "aliases",
    "usual_for",
    Field("node", _of("node"), kind=_FACTS, meaning="One machine and the links of its GPUs."),
    Field("network", _of("network"), blank=True, kind=_FACTS, meaning=_NETWORK),
)


def clusters(known: Sequence[Cluster], width: int) -> RenderableType:
    """One row for each cluster with its links."""
    lines = [
        f"{count(len(known))} clusters. Speeds are for one direction. {UNKNOWN} is unknown or "
        "absent.",
        'All facts of one cluster, with their sources: "wavecast clusters NAME".',
    ]
    return Group(*shown(columns(known), width, lines))


def cluster_facts(cluster: Cluster) -> RenderableType:
    """Every fact of a cluster with its source."""
    rows = [(name, text(name, value), cluster.sources.get(name)) for name, value in _facts(cluster)]
    lines = [f"GPU: {cluster.gpu}"] if cluster.gpu else []
    if cluster.aliases:
        lines.append("also called " + ", ".join(cluster.aliases))
    if cluster.usual_for:
        lines.append("the usual machine of " + ", ".join(cluster.usual_for))
    return facts_with_sources(cluster.name, cluster.id, lines, rows)


def _facts(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """The facts that a cluster's file gives, and the speeds and numbers that follow from it."""
    for part in ("node", "network"):
        links = getattr(cluster, part)
        for field in fields(links) if links is not None else ():
            value, name = getattr(links, field.name), f"{part}.{field.name}"
            if name in cluster.sources or (value is not None and value != field.default):
                yield name, value


# What the doctor found, as a table and as data.


_STYLES = {State.BROKEN: "red", State.DOUBTFUL: "yellow", State.ABSENT: "dim"}
_ORDER = (State.BROKEN, State.DOUBTFUL, State.ABSENT, State.GOOD)

describe(
    Finding,
    Field("what", title=""),
    Field("state", title=""),
    Field("found", title="", folds=True),
    Field("advice", blank=True),
)


EXAMINATION = output(
    "What was found on this machine.",
    Field("works", kind=bool, meaning="Whether nothing must be repaired before Wavecast works."),
    Field("findings", kind=Sequence[Finding], meaning="Each thing that was looked at."),
)


def examination(findings: Sequence[Finding], width: int) -> RenderableType:
    """One row for each thing, then what to do, and the verdict."""
    styles = [_STYLES.get(each.state, "") for each in findings]
    advice = [
        line(f"{each.what}: {each.advice}", _STYLES.get(each.state, ""))
        for each in sorted(findings, key=lambda each: _ORDER.index(each.state))
        if each.advice
    ]
    rows, conclusion = table(columns(findings), styles), verdict(findings)
    return titled("wavecast doctor", rows, "", *advice, "", line(conclusion, "bold"))


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one sentence."""
    counted = {state: sum(each.state is state for each in findings) for state in State}
    if counted[State.BROKEN]:
        return f"{counted[State.BROKEN]} broken: repair that first"
    if counted[State.DOUBTFUL]:
        return f"Wavecast works here; {counted[State.DOUBTFUL]} to look at"
    return "Wavecast works here"
