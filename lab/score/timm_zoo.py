"""Which models of timm can be traced? Traces a training step of models from every family.

    python -m lab score timm_zoo                          prints the table as it grows
    python -m lab score timm_zoo resnet50 swin*           only models whose names match
    python -m lab score timm_zoo --markdown docs/zoo.md   also writes a table by kind to a page

Needs timm and torchvision, no GPU.
"""

from __future__ import annotations

import datetime
import fnmatch
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from lab import needs
from lab.pages import heading
from lab.steps.libraries import import_timm
from wavecast import ops
from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture

BATCH = 4

# Convolutional networks, trained in channels_last as their authors advise.
CONVOLUTIONAL = """
    resnet18 resnet50 resnet50d resnet101 ecaresnet50t seresnet50 resnetrs50 resnetaa50
    resnetblur50 resnext50_32x4d seresnext50_32x4d skresnet18 skresnext50_32x4d resnest14d
    resnest50d res2net50_26w_4s res2next50 resnetv2_50 resnetv2_50d_gn resnetv2_50x1_bit
    resnetv2_50d_evos legacy_seresnet50 wide_resnet50_2 tresnet_m gcresnet50t bat_resnext26ts
    eca_botnext26ts_256 halonet26t sebotnet33ts_256 densenet121 densenetblur121d
    dla34 dla60_res2net dpn68 dpn92 vgg16 vgg16_bn hrnet_w18 hrnet_w18_small inception_v3
    inception_v4 inception_resnet_v2 inception_next_tiny legacy_xception xception41 xception65p
    nasnetalarge pnasnet5large regnetx_008 regnety_008 regnety_032 regnetz_c16 regnetv_040
    dm_nfnet_f0 nf_resnet50 nf_regnet_b1 eca_nfnet_l0 repvgg_a0 repvgg_b0 mobileone_s1 gernet_s
    cspresnet50 cspdarknet53 cs3darknet_m vovnet39a ese_vovnet19b_dw selecsls42b hardcorenas_a
    efficientnet_b0 efficientnet_b3 efficientnet_lite0 efficientnet_es tf_efficientnet_b0
    efficientnetv2_s tf_efficientnetv2_b0 efficientnet_b0_gn mixnet_s mnasnet_100 spnasnet_100
    fbnetc_100 fbnetv3_b tinynet_a lcnet_100 lcnetv2_small mobilenetv1_100 mobilenetv2_100
    mobilenetv3_large_100 mobilenetv3_small_050 mobilenetv4_conv_small mobilenetv4_hybrid_medium
    mobilenetv5_base rexnet_100 rexnetr_100 ghostnet_100 ghostnetv2_100 ghostnetv3_100
    repghostnet_100 repvit_m1 hgnet_tiny hgnetv2_b0 starnet_s1 fasternet_t0 rdnet_tiny
    convnext_tiny convnext_atto convnextv2_nano convmixer_768_32 focalnet_tiny_srf mambaout_tiny
    edgenext_small poolformer_s12 poolformerv2_s12 convformer_s18 fastvit_t8 fastvit_sa12
    efficientvit_b0 efficientvit_m0 shvit_s1 cpubone_nano csatv2
""".split()

ATTENTION = """
    lambda_resnet26t vit_tiny_patch16_224 vit_base_patch16_224 vit_base_patch32_clip_224
    vit_small_patch14_dinov2
    vit_base_patch16_siglip_224 vit_little_patch16_reg4_gap_256 vit_relpos_small_patch16_224
    vit_srelpos_small_patch16_224 vit_small_r26_s32_224 vit_small_resnet26d_224
    deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 deit3_small_patch16_224
    beit_base_patch16_224 beitv2_base_patch16_224 eva02_tiny_patch14_224 eva02_small_patch14_224
    flexivit_small swin_tiny_patch4_window7_224 swin_s3_tiny_224 swinv2_tiny_window8_256
    swinv2_cr_tiny_224 mixer_s16_224 gmixer_12_224 gmlp_s16_224 resmlp_12_224 coatnet_0_rw_224
    coatnet_nano_cc_224 coatnext_nano_rw_224 maxvit_tiny_rw_224 maxxvit_rmlp_nano_rw_256
    maxvit_tiny_tf_224 coat_tiny coat_lite_tiny cait_xxs24_224 convit_tiny crossvit_9_240
    crossvit_9_dagger_240 davit_tiny efficientformer_l1 efficientformerv2_s0 caformer_s18
    gcvit_xxtiny hiera_tiny_224 sam2_hiera_tiny samvit_base_patch16_224 levit_128s levit_conv_128s
    levit_256d mobilevit_s mobilevitv2_050 mvitv2_tiny nest_tiny nest_base nest_tiny_jx
    nextvit_small pit_ti_224 pit_ti_distilled_224 pvt_v2_b0 pvt_v2_b2_li sequencer2d_s
    swiftformer_xs tiny_vit_5m_224 tnt_s_patch16_224 twins_pcpvt_small twins_svt_small
    visformer_tiny visformer_small vitamin_small_224 volo_d1_224 xcit_nano_12_p16_224
    xcit_tiny_12_p8_224 naflexvit_base_patch16_gap efficientvim_m1 iformer_t lowformer_b0
    qwen3_vit_88m gemma4_vit_167m aimv2_large_patch14_224
""".split()


@dataclass(frozen=True)
class ZooResult:
    """The result of tracing one model."""

    model: str
    calls: int
    seconds: float
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    failure: str = ""


def make_step(timm: Any, name: str, channels_last: bool) -> Callable[[], None]:
    """A training step: bf16 autocast, cross entropy, SGD with momentum."""
    model = timm.create_model(name).cuda().train()
    images = torch.randn(BATCH, *model.default_cfg["input_size"], device="cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    labels = torch.randint(0, 1000, (BATCH,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = sum(_loss(out, labels) for out in _outputs(model(images)))
        loss.backward()
        optimizer.step()

    return step


def _outputs(out: Any) -> Iterable[Any]:
    """The outputs of a model as an iterable; distilled models have two heads."""
    return out if isinstance(out, list | tuple) else (out,)


def _loss(out: Any, labels: Any) -> Any:
    # Encoders without a head return features. Their mean has a backward pass, too.
    return F.cross_entropy(out, labels) if out.dim() == 2 else out.float().mean()


def sweep(timm: Any, names: list[str]) -> list[ZooResult]:
    """Trace each model and print a line about it."""
    results = []
    for name in names:
        result = _trace(timm, name)
        results.append(result)
        remark = result.failure or "; ".join((*result.unknown, *result.notes))
        print(f"{name:36} {result.calls:6} ops {result.seconds:6.2f} s  {remark}", flush=True)
    return results


def _trace(timm: Any, name: str) -> ZooResult:
    start = time.perf_counter()
    try:
        trace = capture(lambda: make_step(timm, name, name in CONVOLUTIONAL), samples=BATCH)
    except CaptureError as error:
        return ZooResult(name, 0, time.perf_counter() - start, (), (), str(error))
    seconds = time.perf_counter() - start
    unknown = tuple(sorted(ops.totals(trace).unknown))
    return ZooResult(name, len(trace), seconds, trace.notes, unknown)


def summary(results: list[ZooResult]) -> str:
    """One sentence: how many models were traced, and how fast."""
    traced = [r for r in results if not r.failure]
    complete = sum(not r.unknown for r in traced)
    seconds = sorted(r.seconds for r in traced) or [0.0]
    return (
        f"{len(traced)} of {len(results)} models traced ({len(traced) / len(results):.1%}), "
        f"{complete} of them with no op of unknown cost; "
        f"median {seconds[len(seconds) // 2]:.1f} s, slowest {seconds[-1]:.1f} s"
    )


def markdown(results: list[ZooResult], timm_version: str) -> str:
    """The results as a page in Markdown."""
    lines = [
        "# Which models were traced?",
        "",
        "Training steps of timm models traced without a GPU: batch 4, bf16 autocast, SGD with",
        "momentum, channels_last for convolutional networks. Generated by",
        "`python -m lab score timm_zoo --markdown docs/appendix/zoo-models.md` on "
        f"{datetime.date.today()} with",
        f"torch {torch.__version__} and timm {timm_version}. [The summary](../zoo.md).",
        "",
        f"**{summary(results)}.**",
        "",
        *by_kind(
            [("convolution" if r.model in CONVOLUTIONAL else "attention", r) for r in results]
        ),
    ]
    return "\n".join(lines) + "\n"


def by_kind(results: Sequence[tuple[str, ZooResult]]) -> Iterator[str]:
    """A line for each kind of model, then a line for each that failed."""
    yield from heading("kind | models | traced | ops, median | seconds, median | with assumptions")
    for kind in dict.fromkeys(kind for kind, _ in results):
        own = [result for other, result in results if other == kind]
        traced = [result for result in own if not result.failure]
        ops_median = statistics.median(result.calls for result in traced)
        seconds = statistics.median(result.seconds for result in traced)
        assumed = sum(bool(result.notes) for result in traced)
        yield (
            f"| {kind} | {len(own)} | {len(traced)} | {ops_median:.0f} | {seconds:.1f} "
            f"| {assumed or ''} |"
        )
    failed = [f"- {result.model}: {result.failure}" for _, result in results if result.failure]
    yield from ["", *failed] if failed else []


def main(given: Sequence[str] = ()) -> None:
    """Trace the models named on the command line, or all."""
    parser = needs.parser(__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    args = parser.parse_args(given)
    timm = import_timm()
    names = [
        name
        for name in (*CONVOLUTIONAL, *ATTENTION)
        if any(fnmatch.fnmatch(name, pattern) for pattern in args.patterns)
    ]
    results = sweep(timm, names)
    if args.markdown:
        args.markdown.write_text(markdown(results, timm.__version__))
    print(summary(results))
