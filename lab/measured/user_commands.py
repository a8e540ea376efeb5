"""The command with which a user predicts a published step."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lab.measured.distributed_steps import MeasuredStep, Sizes
from wavecast.hardware.clusters import usual_cluster
from wavecast.parallel.strategy import Parallel


def command_of(step: MeasuredStep) -> str | None:
    """The command, in one line; None if the row's cluster is not the GPU's usual machine."""
    if step.cluster != usual_cluster(step.device):
        return None
    options = " ".join(_options(step.sizes))
    name = "mixtral" if _options_of(step.sizes).get("experts") else _plain_name(step.sizes)
    return (
        f"wavecast predict {name} {options} --gpu {step.device.id} "
        f"--parallel {strategy_text(step.strategy)}"
    )


def strategy_text(strategy: Parallel) -> str:
    """A strategy as `--parallel` takes it."""
    given = []
    for field in fields(Parallel):
        value = getattr(strategy, field.name)
        if value != field.default:
            given.append(field.name if value is True else f"{field.name}={value}")
    return ",".join(given)


def _plain_name(sizes: Sizes) -> str:
    return "llama" if sizes.gated else "gpt"


def _options_of(sizes: Sizes) -> dict[str, Any]:
    return dict(sizes.options)


def _options(sizes: Sizes) -> list[str]:
    more = _options_of(sizes)
    given: dict[str, Any] = {
        "batch": sizes.micro_batch,
        "precision": sizes.precision,
        "weights": sizes.weights,
        "layers": sizes.layers,
        "hidden": sizes.hidden,
        "heads": sizes.heads,
        "kv-heads": sizes.kv_heads,
        "ffn": sizes.ffn,
        "vocab": sizes.vocab,
        "seq": sizes.seq,
    }
    if more.get("lora"):
        given |= {"lora": f"r={more.pop('lora')}", "targets": ",".join(more.pop("adapted"))}
    given |= {name.replace("_", "-"): value for name, value in more.items() if value}
    if sizes.recompute != "none":
        given["recompute"] = sizes.recompute
    switches = ["--unfused-attention"] * (not sizes.fused_attention)
    switches += ["--joint"] * sizes.joint
    switches += ["--untied"] * (sizes.gated and not more.get("experts"))
    return [*(f"--{name} {value}" for name, value in given.items()), *switches]
