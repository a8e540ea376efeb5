"""Rows with mixtures of experts or adapters: options of their decoders, and what rows leave out.

What a row does not state is filled in where its framework has a default, and the rest is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lab.measured.model_facts import TOLERANCE, facts_of, has_other_layers, parameters_of

NEMO = re.compile(r"nemo|megatron-bridge", re.IGNORECASE)
"""Frameworks whose recipes have micro-batches of one sequence unless they say otherwise."""
RANK = 8
"""The rank of adapters in NeMo's recipes for benchmarks."""
_ADAPTED = ("query", "key", "value")
"""The layers with adapters in NeMo's recipes for benchmarks (`linear_qkv`)."""
_ACCUMULATED = re.compile(r"gradient_accumulation_steps=(\d+)")


class NotExpressible(Exception):
    """A model that the suite's decoders cannot be; the message says why."""


def completed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with its micro-batches, where they follow from a log or from NeMo's recipes.

    MLPerf's logs state the micro-batches of a step. NeMo's recipes for fine-tuning have
    micro-batches of one sequence.
    """
    if row["micro_batch"] is not None or None in (row["dp"], row["global_batch"]):
        return row
    logged = _ACCUMULATED.search(str(row.get("notes") or ""))
    if logged is not None:
        count = int(logged[1])
    elif NEMO.search(str(row["framework"])):
        count = int(row["global_batch"]) // int(row["dp"])
    else:
        return row
    samples, rest = divmod(int(row["global_batch"]), int(row["dp"]) * count)
    return {**row, "micro_batch": samples, "grad_accum": count} if samples and not rest else row


def is_mixture(row: Mapping[str, Any]) -> bool:
    """Whether a row's model has experts."""
    return (row["n_experts"] or 1) > 1


def kind_of(row: Mapping[str, Any]) -> str:
    """What kind of training a row is, for tables."""
    if is_mixture(row):
        return "mixture of experts"
    return "LoRA" if row["task"] == "lora" else "dense"


def decoder_options(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a row's decoder, beside its plain sizes.

    Raises:
        NotExpressible: the model has other layers, or misses the stated number of parameters.
    """
    options: dict[str, Any] = {}
    if row["task"] == "lora":
        options |= {"lora": RANK, "adapted": _ADAPTED}
    if not is_mixture(row):
        return tuple(options.items())
    model = str(row["model"])
    facts = facts_of(model)
    if has_other_layers(model):
        raise NotExpressible("a mixture of experts with layers other than attention")
    if row["top_k"] is None:
        raise NotExpressible("a mixture of experts whose experts of a word are not stated")
    if facts.head_size is None and int(row["hidden"]) % int(row["heads"]):
        raise NotExpressible("a mixture of experts whose heads have a size that is not stated")
    if row["params_b"] is not None:
        found = parameters_of(row, facts)
        if abs(found / (1e9 * row["params_b"]) - 1) > TOLERANCE:
            raise NotExpressible("a mixture of experts whose sizes miss its parameters")
    options |= facts.options()
    # The middle one of three traced blocks is repeated, so at most the first one is dense.
    options["dense_layers"] = min(facts.dense_layers, 1)
    return tuple({**options, "experts": int(row["n_experts"]), "top_k": int(row["top_k"])}.items())
