"""Drafts of JSON schemas from what commands print: python -m tests.cli.draft_schemas [COMMAND]...

Run it after a command got new keys, then look at the difference. What a sample cannot show is
written here: which keys may be null, which objects are tables with any keys, and what keys mean.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
from cli.json_samples import COMMANDS, pretend_a_machine, write_sample_files
from shell import run

FOLDER = Path(__file__).parents[2] / "src" / "wavecast" / "data" / "schemas"
VERSIONS: dict[str, int] = {}
"""The versions of schemas that are not the first."""

TABLES = set(
    "by_phase by_kind unknown_ops by_phase_s unpredicted memory_bytes baseline now by_module "
    "idle_s utilisation costs times cpu cuda nominal measured points ranges node network".split()
)
"""Keys whose objects have any keys, with values of one kind."""
MAYBE = set(
    "low_s high_s throughput_per_s usd_per_hour price throughput_per_usd peak_bytes needed_bytes "
    "fits samples capability measurement context_bytes process_bytes memory_ratio renamed_to cause "
    "problem comparison tolerance before after utilisation cpu_utilisation gpu_utilisation "
    "fp32_utilisation tensor_utilisation host issued_by source resumed_at training_s testing_s "
    "total_s total_iterations inner_modules precision framework gpu gpus error mape longest_mape "
    "low high measured_forward_s measured_backward_s intensity attained bound_by advice processor "
    "machine busy_before busy_during factor recorded_s cpu_s cores weights_bytes reserved_bytes "
    "weight_gradients_bytes feature_maps_bytes workspace_bytes dynamic_bytes warm_up iterations "
    "settled tokens_per_s tokens_per_sample prediction memory_bytes knee cluster shard_group "
    "tensor_plan efficiency too_large network throughput nodes line configuration_error "
    "known_share counted_share reason micro_batch mean_error batch published_parameters layers "
    "tbd dataset spread gpu_s host_s measured_s".split()
)
"""Keys that may be null, wherever they are numbers, texts or objects."""
NEVER = {
    ("predict", "gpu"),
    ("predict", "gpu_s"),
    ("predict", "host_s"),
    ("predict", "bound_by"),
    ("compare", "gpu"),
    ("compare", "gpu_s"),
    ("compare", "host_s"),
    ("fits", "gpu"),
}
"""Keys that are never null in the output of a command, though others of the name may be."""
MAYBE_IN = {("suite", "seconds"), ("measure", "seconds"), ("import", "seconds")}
"""Keys that may be null in the output of a command or group only."""

MEANINGS = {
    "gpu": "The id of the GPU.",
    "seconds": "The time of one step, in seconds.",
    "low_s": "The low end of the range, in seconds; null where there is no range.",
    "high_s": "The high end of the range, in seconds; null where there is no range.",
    "gpu_s": "The time in which the GPU is busy, in seconds.",
    "host_s": "The time that the host needs to issue the step, in seconds.",
    "bound_by": "What limits the step: gpu, host or both.",
    "throughput_per_s": "Samples, or what `unit` names, in a second.",
    "unit": "What is counted as samples.",
    "usd_per_hour": "The price of the cheapest offer known, in USD for an hour.",
    "peak_bytes": "The peak of allocated memory, in bytes.",
    "needed_bytes": "The memory that the GPU must have, in bytes.",
    "reserved_bytes": "The memory that torch's allocator reserves, in bytes.",
    "fits": "Whether the step fits in the GPU's memory.",
    "unpredicted_share": "How much of the step could not be predicted, from 0 to 1.",
    "unpredicted": "The calls of ops that could not be predicted, by name.",
    "comparable": "Whether enough was predicted to compare GPUs.",
    "notes": "What a reader should know, in whole sentences.",
    "remarks": "What a reader should know, in whole sentences.",
    "target": "What was predicted.",
    "calls": "How many calls of ops there are.",
    "kernels": "Kernels: their number, or a list of them.",
    "outcome": "The verdict: within tolerance, better, worse, changed, or cannot say.",
    "exit_code": "0 within tolerance, 1 something got worse, 2 nobody can say.",
    "fingerprint": "A hash of the ops, shapes and waits of the step.",
    "delta_s": "The GPU time that was added, in seconds.",
}
ABOUT = {
    "check": "The verdict on checked steps, or what an update of their baseline wrote.",
    "calibrate": "A calibrated host, with the facts of the GPU; with --list, the hosts kept.",
    "fit": "A model of past runs (--runs), or the card of a fitted network.",
    "run": "The step of a script, and its prediction or its memory (--memory).",
    "predict": "The prediction of a step on each GPU, or on several GPUs (--parallel).",
}


def draft(name: str, outputs: Sequence[Any]) -> dict[str, Any]:
    """The draft of a schema from outputs of a command."""
    title = f"wavecast/{'-'.join(name.split())}/{VERSIONS.get(name, 1)}"
    forms = [_form(group, name, title) for group in _groups(outputs)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": ABOUT.get(name, f"What `wavecast {name} --json` prints."),
        **(forms[0] if len(forms) == 1 else {"oneOf": forms}),
    }


def _groups(outputs: Sequence[Any]) -> list[list[Any]]:
    """The outputs by their form: lists apart from objects, and objects with other keys apart."""
    groups: list[list[Any]] = []
    for output in outputs:
        for group in groups:
            if isinstance(group[0], list) == isinstance(output, list) and _alike(group[0], output):
                group.append(output)
                break
        else:
            groups.append([output])
    return groups


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return True
    keys, more = set(one) - {"schema"}, set(other) - {"schema"}
    return len(keys & more) > 0.6 * len(keys | more)


def _form(group: Sequence[Any], name: str, title: str) -> dict[str, Any]:
    mark = {"const": title}
    if isinstance(group[0], list):
        rows = [{"schema": title, **row} for output in group for row in output]
        items = _described(rows, name)
        items["properties"]["schema"] = mark
        return {"type": "array", "items": items}
    whole = _described([{"schema": title, **output} for output in group], name)
    whole["properties"]["schema"] = mark
    return whole


def _described(values: Sequence[Any], command: str, key: str = "") -> dict[str, Any]:
    """The schema of values that stand at the same place."""
    known = [value for value in values if value is not None]
    can_be_null = len(known) < len(values) or _may_be_null(command, key)
    options = [_of_kind(kind, known, command, key) for kind in _kinds(known)]
    if not options:
        return {}  # only null was seen, so nothing is said about other values
    if can_be_null:
        options.append({"type": "null"})
    if all(set(option) == {"type"} for option in options):
        names = [option["type"] for option in options]
        schema: dict[str, Any] = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = options[0] if len(options) == 1 else {"anyOf": options}
    return {"description": MEANINGS[key], **schema} if key in MEANINGS else schema


def _may_be_null(command: str, key: str) -> bool:
    if (command, key) in NEVER:
        return False
    return key in MAYBE or (command, key) in MAYBE_IN or (command.split()[0], key) in MAYBE_IN


def _kinds(values: Iterable[Any]) -> list[str]:
    """The JSON types of values; whole numbers are numbers where others are not whole."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    found = {names.get(type(v), "object" if isinstance(v, dict) else "array") for v in values}
    if "number" in found:
        found.discard("integer")
    return sorted(found)


def _of_kind(kind: str, values: Sequence[Any], command: str, key: str) -> dict[str, Any]:
    if kind == "array":
        inner = [each for value in values if isinstance(value, list) for each in value]
        return {"type": "array", **({"items": _described(inner, command)} if inner else {})}
    if kind != "object":
        return {"type": kind}
    objects = [value for value in values if isinstance(value, dict)]
    names = list(dict.fromkeys(name for value in objects for name in value))
    if key in TABLES:
        inner = [each for value in objects for each in value.values()]
        each = _described(inner, command)
        return {"type": "object", **({"additionalProperties": each} if each else {})}
    parts = {
        name: _described([value[name] for value in objects if name in value], command, name)
        for name in names
    }
    required = [name for name in names if all(name in value for value in objects)]
    return {"type": "object", "required": required, "properties": parts}


def outputs_of(names: Iterable[str], folder: Path) -> dict[str, list[Any]]:
    """What the samples of commands print."""
    patch = pytest.MonkeyPatch()
    write_sample_files(folder)
    for kind in ("CONFIG", "DATA"):
        patch.setenv(f"XDG_{kind}_HOME", str(folder / kind))
    patch.chdir(folder)
    pretend_a_machine(patch)
    printed = {
        name: [json.loads(run(*name.split(), "--json", *a.split()).out) for a in COMMANDS[name]]
        for name in names
    }
    patch.undo()
    return printed


def main() -> None:
    """Write the drafts of some schemas, or of all."""
    sys.modules["torchvision"] = None  # type: ignore[assignment]
    wanted = " ".join(sys.argv[1:])
    names = [wanted] if wanted else list(COMMANDS)
    with tempfile.TemporaryDirectory() as folder:
        outputs = outputs_of(names, Path(folder))
    for name, values in outputs.items():
        path = FOLDER / f"{'-'.join(name.split())}.schema.json"
        path.write_text(json.dumps(draft(name, values), indent=1) + os.linesep, encoding="utf-8")


if __name__ == "__main__":
    main()
