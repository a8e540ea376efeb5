"""Options are used or refused: a command that would leave one out says so, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong_uses import Wrong, check_wrong

L4 = "--gpu l4"
RUN = "--batch 64 --iterations 10"
GRID = "design --batches 8,16 --iterations 100,200 --budget 60"
FROM = ("wavecast runs predict MODEL --from SOURCE",)

WRONG = [
    # Options of whole runs, which predict had once.
    Wrong("predict from runs", "predict made --from runs.csv", FROM),
    Wrong("iterations, short", f"predict good.json.gz {L4} -n 5", FROM),
    Wrong("number of GPUs of a step", f"predict good.json.gz {L4} --gpus 8", FROM),
    Wrong("depth of a step", f"predict good.json.gz {L4} --inner-modules 3", FROM),
    Wrong("phase of a step", f"predict good.json.gz {L4} --phase testing", FROM),
    Wrong("method of a step", f"predict good.json.gz {L4} --method ordinary", FROM),
    # Whole trainings, prices and choices.
    Wrong("two lengths", f"predict good.json.gz {L4} --samples 5 --tokens 5", ("--samples and",)),
    Wrong("no length", f"predict good.json.gz {L4} --checkpoint-time 5s", ("--iterations",)),
    Wrong("no epoch", f"predict good.json.gz {L4} --epochs 5", ("--dataset-samples",)),
    Wrong(
        "no time",
        f"predict good.json.gz {L4} --iterations 5 --startup-time soon",
        ("--startup-time is a time such as 48h", "'soon'"),
    ),
    Wrong("no price", f"predict good.json.gz {L4} --price l4=free", ("write GPU=USD",)),
    Wrong("price of nothing", "choose good.json.gz --price 3", ("names no GPU", "l4=0.50")),
    Wrong("negative price", f"predict good.json.gz {L4} --price -1", ("--price -1 cannot be",)),
    Wrong("unknown provider", "choose good.json.gz --providers moon", ('"moon"', "aws")),
    Wrong("no budget", "choose good.json.gz --budget -3", ("--budget is a number of USD",)),
    Wrong("no deadline", "choose good.json.gz --deadline never", ("--deadline is a time",)),
    Wrong(
        "many measured GPUs",
        "choose measured.json.gz --gpus-up-to 8",
        ("was measured on one GPU", "--gpus-up-to"),
    ),
    Wrong("setup of a trace", "choose good.json.gz --setup habitat", ("nothing to scale",)),
    Wrong("prices of nothing", "prices --gpu rtx-2070", ("no such offer is known", "aws")),
    Wrong("prices without a file", "prices update none.csv", ("none.csv", "cannot be read")),
    Wrong("prices of no day", "prices update x.csv --date soon", ("2026-11-01", "'soon'")),
    Wrong("no catalogue", "prices update --provider moon", ('"moon"', "aws")),
    Wrong("life of nothing", f"predict good.json.gz {L4} --lifetime-years 0", ("add --buy",)),
    Wrong("no life", f"choose good.json.gz {L4} --buy l4=2500 --lifetime-years 0", ("0.0 years",)),
    Wrong("no host", f"predict good.json.gz {L4} --host-factor 0", ("it is above 0",)),
    Wrong("no axis", f"predict good.json.gz {L4} --parallel ,", ("names no axis", "data=8")),
    Wrong(
        "many GPUs",
        f"predict good.json.gz {L4} --parallel data=99999999",
        ("99,999,999 GPUs", "at most 1,000,000"),
    ),
    Wrong("path of a GPU", "predict good.json.gz --gpu ../l4", ('"../l4" is a path',)),
    Wrong("long name", f"predict {'x' * 300} {L4}", ("of 300 letters is too long",)),
    # Options that scale a measurement.
    Wrong("origin of a model", f"predict resnet50 {L4} --origin t4", ("--origin", "not measured")),
    Wrong("origin of a trace", f"predict good.json.gz {L4} --origin t4", ("nothing to scale",)),
    Wrong(
        "scaled model", f"predict resnet50 {L4} --predictor wave", ("--predictor wave", "measure")
    ),
    Wrong(
        "scaled trace",
        f"predict good.json.gz {L4} --predictor habitat",
        ("--predictor habitat", "nothing to scale"),
    ),
    Wrong(
        "origin and no scaler",
        f"predict measured.json.gz {L4} --predictor roofline --origin t4",
        ("Roofline does not scale", "leave the origin out"),
    ),
    Wrong("origin in a profile", f"profile good.json.gz {L4} --origin t4", ("nothing to scale",)),
    Wrong(
        "origin of traced batches",
        f"extrapolate b8.json.gz b16.json.gz b32.json.gz --batch 64 {L4} --origin t4",
        ("--origin", "nothing to scale"),
    ),
    # Precision and batch of saved traces.
    Wrong(
        "precision of a trace",
        f"predict good.json.gz {L4} -p bf16",
        ("precision is fixed", "trace the step again"),
    ),
    Wrong(
        "precision and predictor",
        f"predict measured.json.gz {L4} -p bf16 --predictor wave",
        ("its own predictor", "leave --predictor out"),
    ),
    Wrong("trace in bf16", "trace measured.json.gz -p bf16", ("--precision bf16", "nothing here")),
    Wrong(
        "profile in bf16", "profile measured.json.gz -p bf16", ("--precision bf16", "nothing here")
    ),
    Wrong("memory in bf16", "memory measured.json.gz -p bf16", ("--precision bf16", "step itself")),
    Wrong(
        "fits in bf16",
        f"fits measured.json.gz -p bf16 {L4}",
        ("--precision bf16", "step itself"),
        code=2,
    ),
    Wrong("memory of a batch", "memory measured.json.gz -b 4", ("--batch 4", "step itself")),
    Wrong("fits a batch", f"fits measured.json.gz -b 4 {L4}", ("--batch 4", "itself"), code=2),
    # Networks of one's own.
    Wrong(
        "model, no network",
        f"predict good.json.gz {L4} --model mine.npz",
        ("--model is for --predictor mlp or habitat",),
    ),
    Wrong(
        "model, roofline",
        f"predict good.json.gz {L4} --predictor roofline --model mine.npz",
        ("--model is for --predictor mlp or habitat",),
    ),
    Wrong(
        "model missing",
        f"predict good.json.gz {L4} --predictor mlp --model mine.npz",
        ("mine.npz",),
    ),
    # Hosts and graphs.
    Wrong("host unknown", f"predict good.json.gz {L4} --host mars", ('unknown host "mars"',)),
    Wrong("host, measured", "profile measured.json.gz --host reference", ("name a GPU (--gpu)",)),
    Wrong("graph, measured", "profile measured.json.gz --cuda-graph", ("name a GPU (--gpu)",)),
    Wrong(
        "joined and predicted",
        f"profile measured.json.gz measured.json.gz {L4}",
        ("only measured traces can be joined", "leave --gpu out"),
    ),
    # A name beside "all" is looked up, too.
    Wrong("all and unknown", "predict good.json.gz --gpu all --gpu zx81", ('"zx81"',)),
    # Memory.
    Wrong("memory of all", "memory good.json.gz --gpu all", ("fits good.json.gz --gpu all",)),
    Wrong("measured elsewhere", f"memory resnet50 --measure {L4}", ("this machine's GPU", "leave")),
    Wrong(
        "measured in segments",
        "memory resnet50 --measure --expandable-segments",
        ("PYTORCH_ALLOC_CONF", "leave"),
    ),
    # Past runs.
    Wrong(
        "time of a law",
        f"runs predict made --from runs.csv {RUN} --gpus 4 --time total",
        ("with --gpus a law", "leave --time out"),
    ),
    Wrong("time of layers", "fit layers.csv -o m.npz --time total", ("--time is for past runs",)),
    Wrong(
        "method of a law",
        f"runs predict made --from runs.csv {RUN} --gpus 4 --method ordinary",
        ("with --gpus the law", "leave --method out"),
    ),
    Wrong(
        "guess and runs", f"{GRID} --from runs.csv --sample 0.1", ("--sample would change nothing",)
    ),
    Wrong("start-up and runs", f"{GRID} --from runs.csv --startup 1", ("--startup would", "leave")),
    Wrong("model of no runs", f"{GRID} --sample 0.1 --model made", ("--model", "(--from)")),
    Wrong(
        "dry run of a store", "runs add runs.csv --dry-run --store s.db", ("--store would", "leave")
    ),
    # Two kinds of fits.
    Wrong("fit both", "fit runs.csv --runs runs.csv", ("--runs fits past runs", "no other files")),
    Wrong("width of runs", "fit --runs runs.csv --width 64", ("--width is for layer times",)),
    Wrong("epochs of runs", "fit --runs runs.csv --epochs 9", ("--epochs is for layer times",)),
    Wrong("pass of runs", "fit --runs runs.csv --target forward", ("--target is for layer times",)),
    Wrong("device of runs", "fit --runs runs.csv --device cuda", ("--device is for layer times",)),
    Wrong("model of layers", "fit layers.csv -o m.npz -m made", ("--model is for past runs",)),
    Wrong("plot of layers", "fit layers.csv -o m.npz --plot p.svg", ("--plot is for past runs",)),
    Wrong("phase of layers", "fit layers.csv -o m.npz --phase testing", ("--phase is for past",)),
    Wrong("method of layers", "fit layers.csv -o m.npz --method relative", ("--method is for",)),
    # Calibration without a GPU.
    Wrong("seconds, no GPU", "calibrate --seconds 2", ("has no GPU", "--seconds")),
    Wrong("listed for seconds", "calibrate --list --seconds 2", ("leave out --seconds",)),
    Wrong("listed elsewhere", "calibrate --list --host-out h.toml", ("leave out --host-out",)),
    Wrong("folder, no GPU", "calibrate --out mine", ("has no GPU", "--out")),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.about.replace(" ", "-"))
def test_an_option_without_an_effect_is_refused(folder: Path, wrong: Wrong) -> None:
    check_wrong(wrong)


def test_each_wrong_use_is_there_once() -> None:
    assert len({wrong.about for wrong in WRONG}) == len({wrong.command for wrong in WRONG})
    assert len({wrong.about for wrong in WRONG}) == len(WRONG)
