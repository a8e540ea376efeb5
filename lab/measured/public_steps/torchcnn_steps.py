"""Classifiers of torchvision, 12 images, each iteration timed between two synchronisations.

Training is zero_grad, forward, loss and backward, without an optimizer. From 2019 on, the timed
region includes the copy of the batch to the GPU. "half" is the whole model in float16, without
autocast.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from lab.measured.public_steps.case import Case, era_of
from lab.measured.tables import read_rows

GPUS = {
    "GTX 1080 Ti": "gtx-1080-ti",
    "RTX 2080 Ti": "rtx-2080-ti",
    "Radeon RX 6800": "rx-6800",
    "Radeon RX 7700S": "rx-7700s",
    "Tesla V100 DGXS 16GB": "v100-dgxs-16gb",
}
PRECISIONS = {"float": "fp32", "half": "fp16"}
BAD = ("noisy", "order_violation")
"""Flags of rows that are left out. "above_peak" is not among them: such rows are VGGs in float32,
steady to 1%, whose 3x3 convolutions do fewer multiplications than are counted (Winograd)."""
OLDER = ("no_opt",)
"""Runs that are left out: one on the RX 7700S with an older torch."""


def cases(folder: Path) -> Iterator[Case]:
    """The steps on one GPU: the median over runs of the same protocol, without doubtful rows."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in read_rows(folder / "steps.parquet"):
        usable = row["n_gpu"] == 1 and row["gpu"] in GPUS and row["precision"] in PRECISIONS
        doubted = any(flag in (row["qc"] or "") for flag in BAD)
        if usable and not doubted and row["run"] not in OLDER:
            columns = ("gpu", "model", "mode", "precision", "batch", "img_size", "h2d_in_timing")
            groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    for (gpu, model, mode, precision, batch, image, copied), rows in groups.items():
        modern, autograd = rows[0]["vendor"] == "AMD", bool(rows[0]["grad_enabled"])
        kinds = (mode, PRECISIONS[precision], int(batch), int(image), bool(copied))
        yield Case(
            set=f"torchcnn {mode}",
            gpu=GPUS[gpu],
            model=model,
            family=_family(model),
            precision=PRECISIONS[precision],
            batch=int(batch),
            layout="nchw",
            measured_s=statistics.median(row["median_ms"] or row["mean_ms"] for row in rows) * 1e-3,
            make_step=partial(make_step, model, *kinds, modern=modern, autograd=autograd),
            options=(
                ("copied", bool(copied)),
                ("image", int(image)),
                ("modern", modern),
                ("autograd", autograd),
                ("tuned", 1),
            ),
            software=", ".join(sorted({f"{row['run']}" for row in rows})),
            old=not modern,  # from 2018 to January 2020
            era="" if modern else era_of((1, 4)),
        )


def make_step(
    model: str,
    mode: str,
    precision: str,
    batch: int,
    image: int,
    copied: bool,
    *,
    modern: bool,
    autograd: bool,
) -> Callable[[], None]:
    """One iteration. `modern` is torch 2, which drops gradients instead of zeroing them."""
    import torch
    import torch.nn.functional as F

    torch.backends.cudnn.benchmark = True
    dtype = torch.float16 if precision == "fp16" else torch.float32
    network = build(model).cuda().to(dtype).train(mode == "train")
    place = "cpu" if copied else "cuda"
    images = torch.randn(batch, 3, image, image, device=place).to(dtype)
    labels = torch.randint(1000, (batch,), device=place)

    def train() -> None:
        network.zero_grad(set_to_none=modern)
        out = network(images.to("cuda"))
        F.cross_entropy(out, labels.to("cuda")).backward()
        torch.cuda.synchronize()

    def infer() -> None:
        with torch.set_grad_enabled(autograd):
            network(images.to("cuda"))
        torch.cuda.synchronize()

    return train if mode == "train" else infer


def build(model: str) -> Any:
    """The model of torchvision, with random weights."""
    return getattr(_models(), model)(weights=None)


@cache
def _models() -> Any:
    from lab.steps.libraries import import_torchvision

    return import_torchvision().models


def _family(model: str) -> str:
    """ "resnext101_32x8d" -> "resnext", "shufflenet_v2_x0_5" -> "shufflenet"."""
    name = model.removeprefix("wide_").partition("_")[0]
    return name.rstrip("0123456789")
