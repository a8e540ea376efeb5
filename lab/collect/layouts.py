"""How long do convolutional networks take in each memory layout? Measures them on this GPU.

    python -m lab.collect.layouts OUT [--seconds 600] [--infer]

Needs a GPU and torchvision. Trains torchvision's models as timm's benchmark does (SGD, cuDNN's
search for algorithms): under fp16 autocast in NCHW and in channels_last, and in fp32 with TF32.
Writes a measured trace of each step to the folder OUT, until SECONDS have passed. Steps whose trace
OUT already has are not measured again. `--infer` measures only the forward pass, in evaluation
mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from lab.collect.gpu_steps import NamedStep, folder_and_seconds, record_missing
from lab.needs import require
from lab.steps.libraries import import_torchvision

MODELS = {
    "resnet18": 128,
    "resnet50": 64,
    "mobilenet_v3_large": 128,
    "efficientnet_b0": 64,
    "densenet121": 64,
    "resnext50_32x4d": 64,
    "convnext_tiny": 64,
    "swin_t": 64,
    "regnet_y_3_2gf": 64,
    "shufflenet_v2_x1_0": 128,
    "vgg11_bn": 64,
    "mnasnet1_0": 128,
    "squeezenet1_1": 128,
    "wide_resnet50_2": 64,
}
KINDS = (("fp16", "nhwc"), ("fp16", "nchw"), ("tf32", "nchw"))


def make_step(
    name: str, batch: int, precision: str, layout: str, *, infers: bool = False
) -> Callable[[], None]:
    """The training step of a torchvision model, or its forward pass."""
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    model = import_torchvision().models.get_model(name).cuda().to(memory_format=memory_format)
    images = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def infer() -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=precision == "fp16"):
            model(images)

    def step() -> None:
        optimizer.zero_grad()
        target = torch.empty(batch, dtype=torch.long, device="cuda").random_(1000)
        with torch.autocast("cuda", torch.float16, enabled=precision == "fp16"):
            loss = F.cross_entropy(model(images), target)
        loss.backward()
        optimizer.step()

    if infers:
        model.eval()
    return infer if infers else step


def steps(*, infers: bool) -> Iterator[NamedStep]:
    """Every model in every precision and layout."""
    for precision, layout in KINDS:
        for name, batch in MODELS.items():
            title = f"{name}-b{batch}-{precision}-{layout}{'-infer' if infers else ''}"
            make = partial(make_step, name, batch, precision, layout, infers=infers)
            yield NamedStep(title, make, batch)


def main() -> None:
    """Measure the steps that the folder lacks."""
    parser = folder_and_seconds(__doc__, 600.0)
    parser.add_argument("--infer", action="store_true", help="measure only the forward pass")
    given = parser.parse_args()
    require("these networks", "torchvision")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    record_missing(given.out, given.seconds, steps(infers=given.infer), warm_up=4, repeats=5)


if __name__ == "__main__":
    main()
