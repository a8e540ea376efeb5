"""GPUs and hosts as tables in a terminal: known facts, and what a calibration measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast.hardware.device import Device, Fact
from wavecast.hardware.host_files import HostFile
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.planning.prices import price, price_book
from wavecast.report.prices import hourly, offer_text
from wavecast.report.records import nominal_facts
from wavecast.report.tables import Column, fitting, line, remarks, table, titled
from wavecast.report.units import (
    UNKNOWN,
    count,
    duration,
    fact,
    memory,
    or_unknown,
    percent,
    quantity,
    three_digits,
)

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


def devices(gpus: Sequence[Device], width: int) -> RenderableType:
    """One row for each GPU with the facts that matter most for training."""
    book = price_book()
    columns = [
        Column("name", [gpu.id for gpu in gpus], left=True),
        Column("architecture", [gpu.architecture for gpu in gpus], 2, left=True),
        Column("memory", [memory(gpu.memory_bytes) for gpu in gpus], 1),
        Column("bandwidth", [quantity(gpu.memory_bytes_per_s, "B/s") for gpu in gpus], 1),
        Column("FP32", [or_unknown(gpu.fp32_flops, quantity) for gpu in gpus], 1),
        Column("TF32", [or_unknown(gpu.tf32_tensor_flops, quantity) for gpu in gpus], 3),
        Column("FP16", [or_unknown(gpu.fp16_tensor_flops, quantity) for gpu in gpus], 2),
        Column("BF16", [or_unknown(gpu.bf16_tensor_flops, quantity) for gpu in gpus], 3),
        Column("SMs", [or_unknown(gpu.sm_count, lambda sms: f"{sms:.0f}") for gpu in gpus], 4),
        Column("TDP", [or_unknown(gpu.tdp_w, lambda watts: f"{watts:.0f} W") for gpu in gpus], 4),
        Column("$/h", [hourly(book.cheapest(gpu.id)) for gpu in gpus], 3),
    ]
    kept = fitting(columns, width)
    lines = [
        f"{count(len(gpus))} GPUs. Rates are dense FLOP/s; TF32, FP16 and BF16 on tensor cores. "
        "? is unknown or absent.",
        'All facts of one GPU, with their sources: "wavecast devices NAME".',
    ]
    if len(kept) < len(columns):
        lines.append("A wider terminal shows more columns.")
    return Group(table(kept), "", *remarks(lines))


def device_facts(gpu: Device) -> RenderableType:
    """Every number of a GPU with its source."""
    rows = [
        *((name, fact(name, value), gpu.sources.get(name)) for name, value in _nominal(gpu)),
        *((f"measured {name}", fact(name, f.value), f.source) for name, f in gpu.measured.items()),
    ]
    columns = [
        Column("fact", [name for name, _, _ in rows], left=True),
        Column("value", [value for _, value, _ in rows]),
        Column("source", [source or "not given" for _, _, source in rows], left=True, folds=True),
    ]
    lines = [f"{gpu.vendor} {gpu.architecture}"]
    if gpu.aliases:
        lines.append("also called " + ", ".join(gpu.aliases))
    if (offer := price(gpu)) is not None:
        lines.append(f"on demand: {offer_text(offer)}")
    title = line(gpu.name, "bold") + line(f" ({gpu.id})")
    return Group(title, *remarks(lines), "", table(columns))


def _nominal(gpu: Device) -> list[tuple[str, float | tuple[int, int]]]:
    return list(nominal_facts(gpu).items())


def gpu_calibration(gpu: Device, facts: Mapping[str, Fact]) -> RenderableType:
    """The measured facts of a GPU next to its nominal ones."""
    nominal = {name: getattr(gpu, name) for name in facts}
    columns = [
        Column("fact", list(facts), left=True),
        Column(
            "nominal",
            [UNKNOWN if value is None else fact(name, value) for name, value in nominal.items()],
        ),
        Column("measured", [fact(name, measured.value) for name, measured in facts.items()]),
        Column(
            "measured / nominal",
            [
                "" if nominal[name] is None else percent(measured.value / nominal[name])
                for name, measured in facts.items()
            ],
        ),
    ]
    return titled(f"{gpu.name} ({gpu.id})", table(columns), "")


def host_calibration(host: HostFile) -> RenderableType:
    """The measured costs of a host next to those of the reference host."""
    reference = {cost: getattr(REFERENCE_HOST, cost) for cost in _COSTS}
    columns = [
        Column("time of the host for", list(_COSTS.values()), left=True),
        Column("reference", [duration(seconds) for seconds in reference.values()]),
        Column("this host", [duration(host.costs[cost]) for cost in _COSTS]),
        Column(
            "ratio",
            [
                three_digits(host.costs[cost] / seconds) if seconds else UNKNOWN
                for cost, seconds in reference.items()
            ],
        ),
    ]
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


def kept_hosts(hosts: Mapping[str, HostFile], width: int) -> RenderableType:
    """One row for each calibrated host, by name."""
    if not hosts:
        return line('no host was calibrated yet: run "wavecast calibrate"')
    rows = list(hosts.values())
    columns = [
        Column("host", list(hosts), left=True),
        Column("GPU", [host.gpu or "none" for host in rows], left=True),
        Column("date", [host.date.isoformat() for host in rows], 1),
        Column("/ reference", [three_digits(host.factor) for host in rows], 1),
        Column("busy", [or_unknown(host.busy_during, percent) for host in rows], 2),
        Column("machine", [host.machine or UNKNOWN for host in rows], 3, left=True),
        Column("processor", [host.processor or host.name for host in rows], 4, left=True),
    ]
    lines = [
        "/ reference: its time for the same work, divided by the reference host's",
        "busy: the share of the CPU that other programs used while it was measured",
    ]
    return Group(table(fitting(columns, width)), "", *remarks(lines))
