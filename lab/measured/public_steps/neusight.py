"""NeuSight's whole models: transformers of Hugging Face in float32, on one GPU.

Each pass is timed by itself between two synchronisations, and the allocator's cache is emptied
before each pass. The published time therefore includes the cudaMallocs of all activations; ours
does not. Training is a forward and a backward pass without an optimizer, and gradients accumulate.
The loss is not in the published time; it is about 0.3% of our step. The attention of transformers 5
has other elementwise ops than that of 2023, but as many and as large: a mask that is added instead
of one that selects (GPT-2), a scaling of the scores instead of a lower bound (OPT).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.measured.public_steps.case import Case
from lab.measured.tables import NEUSIGHT, read_rows


@dataclass(frozen=True)
class Size:
    """The shape of a transformer, as the recorded ops of NeuSight show it."""

    kind: str
    layers: int
    width: int
    heads: int
    context: int


MODELS = {
    "bert_large": Size("bert", 24, 1024, 16, 512),
    "gpt2_large": Size("gpt", 36, 1280, 20, 1024),
    # In NeuSight, GPT-3 XL has 24 heads of 128, so 3072 and not the 2048 of GPT-3's paper.
    "gpt3_xl": Size("gpt", 24, 3072, 24, 2048),
    "gpt3_27": Size("gpt", 32, 2560, 32, 2048),
    "opt_13": Size("opt", 24, 2048, 32, 2048),
}
"""switchxl4 is left out: its ops were not recorded, and the work of its experts depends on its
router."""


def cases(folder: Path) -> Iterator[Case]:
    """The steps on one GPU. Compiled rows are a separate set, and are traced as eager here."""
    for row in measured_rows(folder):
        mode = "infer" if row["mode"] == "inf" else "train"
        training, batch, sequence = mode == "train", int(row["batch"]), int(row["seq_len"])
        yield Case(
            set=f"neusight {'compiled' if row['fused'] else mode}",
            gpu=NEUSIGHT[row["gpu"]],
            model=row["model"],
            family=MODELS[row["model"]].kind,
            precision="fp32",
            batch=batch,
            layout="",
            measured_s=row["e2e_ms"] * 1e-3,
            make_step=partial(make_named, row["model"], batch, sequence, training),
            options=(("sequence", sequence), ("mode", mode)),
            software="torch 2.4" if row["gpu"] == "MI100" else "torch 2.1",
        )


def measured_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of one GPU whose model can be rebuilt."""
    for row in read_rows(folder / "end_to_end.parquet"):
        if row["parallelism"] == "none" and row["model"] in MODELS:
            yield row


def make_named(
    model: str, batch: int, sequence: int, training: bool, compiled: bool = False
) -> Callable[[], None]:
    """The step of one of `MODELS`."""
    return make_step(MODELS[model], batch, sequence, training, compiled)


def make_step(
    size: Size, batch: int, sequence: int, training: bool, compiled: bool = False
) -> Callable[[], None]:
    """A forward pass and, in training, a backward pass, each followed by a synchronisation."""
    import torch
    import torch.nn.functional as F

    model = build(size, training).cuda().train(training)
    if compiled:
        model.compile()
    tokens = torch.ones(batch, sequence, dtype=torch.long, device="cuda")
    given = {"input_ids": tokens} if size.kind == "bert" else {"input_ids": tokens, **_NO_CACHE}

    def infer() -> None:
        with torch.no_grad():
            model(**given)
        torch.cuda.synchronize()

    def train() -> None:
        logits = model(**given)[0]
        torch.cuda.synchronize()
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        torch.cuda.synchronize()

    return train if training else infer


_NO_CACHE = {"use_cache": False}


def build(size: Size, training: bool) -> Any:
    """The model with random weights. BERT has pre-training heads; in inference a classifier."""
    import transformers as hf

    if size.kind == "bert":
        config = hf.BertConfig(
            num_hidden_layers=size.layers,
            hidden_size=size.width,
            num_attention_heads=size.heads,
            intermediate_size=4 * size.width,
        )
        kind = hf.BertForPreTraining if training else hf.BertForSequenceClassification
    elif size.kind == "gpt":
        config = hf.GPT2Config(
            n_layer=size.layers, n_embd=size.width, n_head=size.heads, n_positions=size.context
        )
        kind = hf.GPT2LMHeadModel
    else:
        config = hf.OPTConfig(
            num_hidden_layers=size.layers,
            hidden_size=size.width,
            num_attention_heads=size.heads,
            ffn_dim=4 * size.width,
            max_position_embeddings=size.context,
            word_embed_proj_dim=size.width,
        )
        kind = hf.OPTForCausalLM
    return kind._from_config(config, attn_implementation="eager")
