"""timm's own training times on an RTX 3090: fp16 autocast without a scaler, plain SGD.

`step_ms` is the time until the GPU is done, without zero_grad; gradients were filled with zeros
then (torch 1.10 to 1.12), so that each backward pass adds to them. Attention had no fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.public_steps.case import Case
from benchmarks.public_steps.tables import read_rows, version

LARGE_FAMILY = 8
"""From so many models on a family and layout is asked for two."""


def cases(folder: Path) -> Iterator[Case]:
    """The model of median size of each family and layout, of large families the smallest too."""
    for row in chosen(read_rows(folder / "timm_train.csv")):
        model, batch, image = row["model"], int(row["batch"]), int(row["img_size"])
        yield Case(
            set="timm train",
            gpu="rtx-3090",
            model=model,
            family=row["family"],
            precision="amp_fp16",
            batch=batch,
            layout=row["layout"],
            measured_s=row["step_ms"] * 1e-3,
            make_step=partial(make_step, model, batch, image, row["layout"]),
            options=(("image", image),),
            software=f"torch {row['torch']}",
        )


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By size alone, never by what we would predict; each model with its newest torch."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: version(str(row["torch"]))):
        if row["precision"] == "amp_fp16" and not row["compiled"]:
            newest[row["layout"], row["model"]] = row
    families: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in newest.values():
        families.setdefault((row["layout"], row["family"]), []).append(row)
    found = []
    for _, group in sorted(families.items()):
        group.sort(key=lambda row: (row["params_m"], row["model"]))
        found.append(group[len(group) // 2])
        if len(group) >= LARGE_FAMILY:
            found.append(group[0])
    return found


def make_step(model: str, batch: int, image: int, layout: str) -> Callable[[], None]:
    """Forward, loss, backward and update, then a wait."""
    import torch
    import torch.nn.functional as F

    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    torch.backends.cuda.matmul.allow_tf32 = True
    network = build(model, image).cuda().to(memory_format=form).train()
    images = torch.randn(batch, 3, image, image, device="cuda").contiguous(memory_format=form)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            out = network(images)
            target = torch.empty(batch, dtype=torch.long, device="cuda").random_(1000)
            loss = F.cross_entropy(out[0] if isinstance(out, tuple) else out, target)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def build(model: str, image: int) -> Any:
    """The model with random weights; those that are built for a size get it."""
    timm = library()
    try:
        network = timm.create_model(model, img_size=image)
    except TypeError:  # convolutions take any
        network = timm.create_model(model)
    return network


@cache
def library() -> Any:
    """Timm, with attention as it was before torch had a fused kernel for it."""
    from benchmarks.zoo import import_timm

    timm = import_timm()
    timm.layers.set_fused_attn(enable=False)
    return timm
