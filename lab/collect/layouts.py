"""Convolutional networks in both memory layouts, measured on this machine's GPU.

    python -m lab.collect.layouts OUT [SECONDS [infer]]

trains torchvision's models as timm's benchmark does (SGD, cuDNN's own search for algorithms), under
fp16 autocast in NCHW and in channels_last and in fp32 with TF32, and writes a measured trace of
each into the folder OUT, until SECONDS have passed; what OUT has is not measured again. "infer":
the forward pass only, of models that no longer learn. Needs torchvision.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

import wavecast
from wavecast.traces.step import Trace

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
    """The training step of a torchvision model, or its inference."""
    import torchvision.models

    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    model = torchvision.models.get_model(name).cuda().to(memory_format=memory_format)
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


def traces(
    seconds: float, known: Collection[str] = (), *, infers: bool = False
) -> Iterator[tuple[str, Trace]]:
    """The traces, one model and kind after the other, until the time is over."""
    until = time.monotonic() + seconds
    for precision, layout in KINDS:
        for name, batch in MODELS.items():
            if time.monotonic() > until:
                return
            title = f"{name}-b{batch}-{precision}-{layout}{'-infer' if infers else ''}"
            if title in known:
                continue
            step = make_step(name, batch, precision, layout, infers=infers)
            trace = wavecast.measure(step, warm_up=4, repeats=5, recordings=1, samples=batch)
            yield title, trace
            del step
            torch.cuda.empty_cache()


def main(folder: Path, seconds: float, *, infers: bool = False) -> None:
    """Write a trace of each."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    folder.mkdir(parents=True, exist_ok=True)
    known = {path.name.removesuffix(".json.gz") for path in folder.glob("*.json.gz")}
    for name, trace in traces(seconds, known, infers=infers):
        trace.save(folder / f"{name}.json.gz")
        whole = trace.measurement
        assert whole is not None
        print(name, f"{whole.seconds:.5f} {whole.gpu_s:.5f} {whole.host_s:.5f}", flush=True)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        float(sys.argv[2]) if len(sys.argv) > 2 else 600.0,
        infers="infer" in sys.argv[3:],
    )
