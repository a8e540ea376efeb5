"""NVIDIA's own tables of its examples: training with PyTorch on one V100.

Classifiers in mixed precision and SSD300 are NHWC. Tables that do not state the unit of their
throughput are left out, except SSD300's, which agrees with Lambda's images per second on the same
GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lab.measured.public_steps.case import Case, Options, bert_options
from lab.measured.tables import read_rows

GPUS = {
    ("DGX-1", "16GB"): "v100-sxm-16gb",
    ("DGX-1", "32GB"): "v100-sxm-32gb",
    ("DGX-2", "32GB"): "v100-sxm3-32gb",
}
EXAMPLES = (
    "resnet50v1.5",
    "resnext101-32x4d",
    "se-resnext101-32x4d",
    "efficientnet",
    "SSD",
    "BERT",
    "GNMT",
    "NCF",
)


def cases(folder: Path) -> Iterator[Case]:
    """The rows that can be rebuilt and are not in doubt."""
    for row in read_rows(folder / "nvidia_perf.csv"):
        example = row["example"].rpartition("/")[2]
        on_one_gpu = (
            row["framework"] == "PyTorch" and row["kind"] == "training" and row["n_gpu"] == 1
        )
        place = (row["system"], row["gpu_mem"])
        if on_one_gpu and example in EXAMPLES and place in GPUS:
            case = _case(example, GPUS[place], row)
            if case is not None:
                yield case


def _case(example: str, gpu: str, row: dict[str, Any]) -> Case | None:
    config = str(row["config"] or "")
    precision = _precision(row)
    batch = int(row["batch_per_gpu"])
    model = example
    options: Options = ()
    if example == "efficientnet":
        # The tables contradict each other: on the same V100, B4 runs at 83 images/s in one and at
        # 36 in another, and the variants with wide SE are as fast as those without, or less than
        # half as fast. Only B0 is consistent.
        if '"efficientnet-b0"' not in config:
            return None
        model = "efficientnet-b0"
    if example == "BERT":
        model, batch, sequence = _bert(config, batch, precision)
        # 19 sequences/s of 512 tokens in fp32 would be 19 TFLOP/s; the GPU has 15.7.
        if sequence == 512:
            return None
        squad = model == "bert_large_squad"
        # Measured in containers of 2019 to 2021, with torch before 1.10.
        options = bert_options(sequence, old=True, looped=squad and precision != "amp_fp16")
    if example == "GNMT":
        options = (("padded", 28),)
    image = example not in ("BERT", "GNMT", "NCF")
    if image:
        options = (("tuned", 1),)
    layout = ("nhwc" if precision == "amp_fp16" or example == "SSD" else "nchw") if image else ""
    return Case(
        set="nvidia",
        gpu=gpu,
        model=model,
        family=example,
        precision=precision,
        batch=batch,
        layout=layout,
        measured_s=batch * _units(example) / row["throughput"],
        make_step=partial(make_step, model, dict(options), batch, precision, layout),
        options=options,
        software=row["system"],
    )


def _precision(row: dict[str, Any]) -> str:
    """The precision by the column's heading; for NCF's "FP32" the table says amp_fp16, too."""
    return "fp32" if "FP32" in row["column"] else str(row["precision"])


def _bert(config: str, batch: int, precision: str) -> tuple[str, int, int]:
    """The name, the batch of one pass and the sequence length.

    The batches of pre-training in the table are those of many accumulated passes.
    """
    if "Sequence length" not in config:
        return "bert_large_squad", batch, 384
    settings = json.loads(config)
    passes = settings["Accumulation steps (FP32 and FP16)"].split(" and ")
    batch //= int(passes[precision == "amp_fp16"])
    return "bert_large_pretraining", batch, int(settings["Sequence length"])


def _units(example: str) -> float:
    from lab.measured.public_steps import examples

    return examples.SOURCE_TOKENS + examples.TARGET_TOKENS if example == "GNMT" else 1.0


def make_step(model: str, options: dict[str, Any], batch: int, precision: str, layout: str) -> Any:
    """The step of a row."""
    from lab.measured.public_steps import examples

    if model == "bert_large_squad":
        return examples.bert_squad("large", batch, precision, old=True)
    if model == "bert_large_pretraining":
        return examples.bert_pretraining(options["sequence"], batch, precision, layout)
    makes: dict[str, Callable[[int, str, str], Any]] = {
        "resnet50v1.5": examples.resnet50,
        "resnext101-32x4d": _timm("resnext101_32x4d"),
        "se-resnext101-32x4d": _timm("seresnext101_32x4d"),
        "efficientnet-b0": _timm("efficientnet_b0"),
        "SSD": examples.ssd300,
        "GNMT": examples.gnmt,
        "NCF": examples.ncf,
    }
    return makes[model](batch, precision, layout)


def _timm(name: str) -> Callable[[int, str, str], Any]:
    from lab.measured.public_steps import examples

    return partial(examples.classifier, partial(examples.timm, name), 224)
