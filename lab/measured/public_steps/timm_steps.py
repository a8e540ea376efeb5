"""timm's own times on an RTX 3090, under fp16 autocast, with cuDNN's search for algorithms.

Training uses plain SGD without a gradient scaler. `step_ms` is the time until the GPU is done,
without zero_grad. Gradients were filled with zeros at that time (torch 1.10 to 1.12), so each
backward pass adds to them. Attention had no fused kernel. Inference ran with torch 2, which has
one.

The tables do not say whether inference ran with timm's "fast norm", which keeps layer and group
norms in half precision under autocast. We infer that it did. Without it, resnetv2_101x1_bit would
need 1.4 times the measured time even at the card's full bandwidth and rate, and predictions of
networks with such norms would be up to 70% too long. Networks with batch norm are not affected.
Attention without a fused kernel stays in half precision, as in torch 2.4; later releases use
float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from lab.measured.public_steps.case import Case, era_of
from lab.measured.tables import read_rows, version

LARGE_FAMILY = 8
"""Two models are chosen of a family and layout with at least this many models."""
TIMED_AS = {"ecaresnext50t_32x4d": "ecaresnext26t_32x4d"}
"""Models that timm has corrected since. The table's ecaresnext50t_32x4d has 15.4 million parameters
and takes as long as that of 26 layers, which it was; today's has 25.0 million. No other model that
is chosen has other parameters today."""


def cases(folder: Path) -> Iterator[Case]:
    """The model of median size of each family and layout; of large families also the smallest."""
    yield from _cases("train", read_rows(folder / "timm_train.csv"))
    inferred = read_rows(folder / "timm_infer.parquet")
    yield from _cases("infer", [row for row in inferred if version(str(row["torch"])) >= (2,)])


def _cases(mode: str, rows: list[dict[str, Any]]) -> Iterator[Case]:
    for row in chosen(rows):
        model, batch, image = row["model"], int(row["batch"]), int(row["img_size"])
        make, built = make_step if mode == "train" else make_inference, TIMED_AS.get(model, model)
        yield Case(
            set=f"timm {mode}",
            gpu="rtx-3090",
            model=model,
            family=row["family"],
            precision="amp_fp16",
            batch=batch,
            layout=row["layout"],
            measured_s=row["step_ms"] * 1e-3,
            make_step=partial(make, built, batch, image, row["layout"]),
            options=(("image", image), ("tuned", 1), *_switches(mode), *_renamed(model)),
            software=f"torch {row['torch']}",
            era=era_of(version(str(row["torch"]))),
        )


def _switches(mode: str) -> tuple[tuple[str, int], ...]:
    return (("fast_norm", 1),) if mode == "infer" else ()


def _renamed(model: str) -> tuple[tuple[str, str], ...]:
    return (("built", TIMED_AS[model]),) if model in TIMED_AS else ()


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows to use: chosen by model size and never by our predictions, with the newest torch."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: version(str(row["torch"]))):
        if row["precision"] == "amp_fp16" and not row["compiled"]:
            newest[row["layout"], row["model"]] = row
    families: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in newest.values():
        families.setdefault((row["layout"], row["family"]), []).append(row)
    rows_to_use = []
    for _, group in sorted(families.items()):
        group.sort(key=lambda row: (row["params_m"], row["model"]))
        rows_to_use.append(group[len(group) // 2])
        if len(group) >= LARGE_FAMILY:
            rows_to_use.append(group[0])
    return rows_to_use


def make_step(
    model: str,
    batch: int,
    image: int,
    layout: str,
    precision: str = "amp_fp16",
    compiled: bool = False,
) -> Callable[[], None]:
    """Forward, loss, backward and update, then a synchronisation.

    Compiled steps ran with torch 2, which has a fused kernel of attention.
    """
    import torch
    import torch.nn.functional as F

    network, images = _prepared(model, batch, image, layout, precision, compiled, fused=compiled)
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, foreach=compiled)

    def step() -> None:
        with _autocast(precision):
            out = network(images)
            target = torch.empty(batch, dtype=torch.long, device="cuda").random_(1000)
            loss = F.cross_entropy(out[0] if isinstance(out, tuple) else out, target)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def make_inference(
    model: str,
    batch: int,
    image: int,
    layout: str,
    precision: str = "amp_fp16",
    compiled: bool = False,
) -> Callable[[], None]:
    """The forward pass, then a synchronisation."""
    import torch

    network, images = _prepared(model, batch, image, layout, precision, compiled, fused=True)
    network.eval()

    def step() -> None:
        with torch.no_grad(), _autocast(precision):
            network(images)
        torch.cuda.synchronize()

    return step


def _autocast(precision: str) -> Any:
    """The context of a table's precision: autocast, or none where the weights are cast."""
    import torch

    dtypes = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
    if precision not in dtypes:
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtypes[precision])


def _prepared(
    model: str, batch: int, image: int, layout: str, precision: str, compiled: bool, *, fused: bool
) -> tuple[Any, Any]:
    """The model and its images, with the settings of timm's benchmark script."""
    import torch

    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    network = build(model, image, fused=fused).cuda().to(memory_format=form)
    images = torch.randn(batch, 3, image, image, device="cuda").contiguous(memory_format=form)
    if precision == "bf16":
        network, images = network.bfloat16(), images.bfloat16()
    if compiled:
        network.compile()
    return network, images


def build(model: str, image: int, *, fused: bool = False) -> Any:
    """The model with random weights, for this image size if its architecture depends on it.

    `fused` uses torch's fused attention kernel, and norms in half precision.
    """
    import torch

    timm = library()
    timm.layers.set_fused_attn(enable=fused)
    timm.layers.set_fast_norm(enable=fused)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(fused)
    try:
        network = timm.create_model(model, img_size=image)
    except TypeError:  # convolutional networks take any size
        network = timm.create_model(model)
    return network


@cache
def library() -> Any:
    """The timm library."""
    from lab.steps.libraries import import_timm

    return import_timm()
