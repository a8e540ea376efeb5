"""Wrong uses of the commands beside predict, each with its message and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong_uses import Wrong, check_wrong

L4 = "--gpu l4"
RUN = "--batch 64 --iterations 10"
BATCHES = "extrapolate b8.json.gz b16.json.gz"
GRID = "design --batches 8,16,32 --iterations 100,200,400"
GUESS = "--budget 600 --sample 0.1"
NO_ALLOCATIONS = ("no allocations", "trace the step itself")
NO_GPU = ("needs a GPU", "torch sees none here")
NO_DEVICE = ('unknown device "zx81"', "wavecast devices")

WRONG = [
    # memory
    Wrong("memory, no file", "memory gone.json.gz", ("no trace file gone.json.gz",)),
    Wrong("memory, no allocations", "memory measured.json.gz", NO_ALLOCATIONS),
    Wrong("memory, no GPU", "memory good.json.gz --gpu zx81", NO_DEVICE),
    Wrong("memory, no folder", "memory good.json.gz --html gone/p.html", ("gone/p.html", "choose")),
    Wrong("memory, trace", "memory good.json.gz --measure", ("is a trace", "name the step itself")),
    Wrong("memory, nothing here", "memory steps.py:fine --measure", ("leave out --measure",)),
    Wrong("memory, step raises", "memory steps.py:raises", ("RuntimeError", "steps.py:22")),
    # fits
    Wrong("fits, where", "fits good.json.gz", ("Missing option '--gpu'",), code=2),
    Wrong("fits, no GPU", "fits good.json.gz --gpu zx81", NO_DEVICE, code=2),
    Wrong("fits, no file", f"fits gone.json.gz {L4}", ("no trace file gone.json.gz",), code=2),
    Wrong("fits, no allocations", f"fits measured.json.gz {L4}", NO_ALLOCATIONS, code=2),
    Wrong("fits, step raises", f"fits steps.py:raises {L4}", ("RuntimeError",), code=2),
    Wrong(
        "fits, no batch",
        f"fits steps.py:no_batch {L4} --batch 4",
        ("no parameter 'batch'", "leave out --batch"),
        code=2,
    ),
    # max-batch
    Wrong("max-batch, trace", f"max-batch good.json.gz {L4}", ("batch is fixed", "again")),
    Wrong("max-batch, where", "max-batch steps.py:fine", ("Missing option '--gpu'",), code=2),
    Wrong("max-batch, no GPU", "max-batch steps.py:fine --gpu zx81", NO_DEVICE),
    Wrong("max-batch, no batch", f"max-batch steps.py:no_batch {L4}", ("'batch'; add one",)),
    Wrong("max-batch, from 0", f"max-batch steps.py:fine {L4} --start 0", ("at least 1, not 0",)),
    Wrong("max-batch, a batch", f"max-batch resnet50 {L4} --batch 4", ("No such option",), code=2),
    Wrong(
        "max-batch, no memory",
        f"max-batch steps.py:fine {L4} --limit-gib 0",
        ("--limit-gib", "above 0, not 0"),
    ),
    Wrong(
        "max-batch, less than none",
        f"max-batch steps.py:fine {L4} --limit-gib -1",
        ("--limit-gib", "above 0, not -1"),
    ),
    Wrong(
        "max-batch, no number",
        f"max-batch steps.py:fine {L4} --limit-gib nan",
        ("--limit-gib", "above 0, not nan"),
    ),
    # profile
    Wrong("profile, traced", "profile good.json.gz", ("traced, not measured", "(--gpu)")),
    Wrong("profile, nothing here", "profile steps.py:fine", NO_GPU),
    Wrong("profile, no file", "profile gone.json.gz", ("no trace file gone.json.gz",)),
    Wrong("profile, joined", "profile measured.json.gz good.json.gz", ("only measured traces",)),
    Wrong("profile, kernels", "profile measured.json.gz --kernels -1", ("--kernels",), code=2),
    Wrong("profile, all", "profile good.json.gz --gpu all", ("predict good.json.gz --gpu all",)),
    # extrapolate
    Wrong("extrapolate, two", f"{BATCHES} --batch 64 {L4}", ("2 batch sizes are too few",)),
    Wrong("extrapolate, twice", f"{BATCHES} b16.json.gz --batch 64 {L4}", ("two of these traces",)),
    Wrong("extrapolate, to 0", f"{BATCHES} b32.json.gz --batch 0 {L4}", ("at least one sample",)),
    Wrong("extrapolate, to what", f"{BATCHES} b32.json.gz {L4}", ("'--batch'",), code=2),
    Wrong("extrapolate, what", f"extrapolate --batch 64 {L4}", ("'TRACE...'",), code=2),
    Wrong(
        "extrapolate, no samples",
        f"{BATCHES} measured.json.gz --batch 64 {L4}",
        ("measured.json.gz does not say how many samples", "--batch"),
    ),
    # trace, measure and import
    Wrong("trace, what", "trace", ("Missing argument 'TARGET'",), code=2),
    Wrong("trace, no GPU", "trace steps.py:fine --gpu zx81", NO_DEVICE),
    Wrong("measure, nothing here", "measure steps.py:fine", NO_GPU),
    Wrong("measure, trace", "measure good.json.gz", ("is a trace", "measure the step itself")),
    Wrong("measure, never", "measure steps.py:fine --repeats 0", ("--repeats",), code=2),
    Wrong("measure, warm-up", "measure steps.py:fine --warm-up -1", ("--warm-up",), code=2),
    Wrong("measure, no folder", "measure steps.py:fine -o gone/m.json.gz", ("no directory gone",)),
    Wrong("import, no file", "import gone.json", ("no profiler file gone.json",)),
    Wrong("import, no profile", "import notes.json", ("no traceEvents", "torch.profiler wrote")),
    Wrong("import, directory", "import a_directory", ("it is a folder",)),
    Wrong("import, no batch", "import notes.json --batch 0", ("at least 1, not 0",)),
    # devices, calibrate and suite
    Wrong("devices, unknown", "devices zx81", NO_DEVICE),
    Wrong("devices, ambiguous", "devices a100", ("fits several devices", "say which")),
    Wrong("devices, option", "devices --gpu l4", ("No such option: --gpu",), code=2),
    Wrong("calibrate, no TOML", "calibrate --host-out host.json", ("FILE.toml, not host.json",)),
    Wrong("suite, nothing here", "suite run -o suite.csv", NO_GPU),
    Wrong("suite, where", "suite predict", ("Missing option '--gpu'",), code=2),
    Wrong("suite, no GPU", "suite predict --gpu zx81", NO_DEVICE),
    Wrong("suite, no model", f"suite predict {L4} -m resnet5O", ("did you mean resnet50",)),
    Wrong("suite, no precision", f"suite predict {L4} -p int4", ("'int4'", "known: fp32")),
    Wrong("suite, no share", f"suite predict {L4} --scale 0", ("must be above 0, not 0",)),
    Wrong("suite, no file", "suite show gone.csv", ("cannot read gone.csv",)),
    Wrong("suite, no results", "suite show runs.csv", ("runs.csv has no suite results",)),
    # runs
    Wrong("add, no file", "runs add gone.log", ("gone.log: there is no such file",)),
    Wrong("add, no logs", "runs add a_directory", ("a_directory: no file", "Caffe logs")),
    Wrong("add, no format", "runs add runs.csv -f magic", ('no format "magic"', "caffe")),
    Wrong("add, no batch", "runs add runs.csv --batch 0", ("batch must be a whole number",)),
    Wrong("add, no precision", "runs add runs.csv -p int4", ("'int4'", "fp32, tf32")),
    Wrong("list, no phase", "runs list --phase tests", ('training or testing, not "tests"',)),
    Wrong("list, none", "runs list --last 0", ("--last",), code=2),
    Wrong("list, no store", "runs list --store gone.db", ("no run store gone.db", "runs add")),
    Wrong("list, other file", "runs list --store notes.json", ("notes.json: is not a run store",)),
    Wrong("export, no table", "runs export out.txt", ("FILE.csv or FILE.jsonl, not out.txt",)),
    Wrong("export, no phase", "runs export out.csv --phase tests", ('not "tests"',)),
    Wrong("export, no store", "runs export out.csv -s gone.db", ("no run store gone.db",)),
    Wrong("next, no file", f"runs predict made --from gone.csv {RUN}", ("gone.csv: there is no",)),
    Wrong(
        "next, no runs", f"runs predict made --from no_runs.csv {RUN}", ("does not say iterations",)
    ),
    Wrong("next, no model", f"runs predict vgg --from runs.csv {RUN}", ("it has made",)),
    Wrong("next, how long", "runs predict made --from runs.csv -b 64", ("give the iterations",)),
    Wrong("next, which batch", "runs predict made --from runs.csv -n 9", ("give the batch",)),
    Wrong("next, phase", f"runs predict made --from runs.csv {RUN} --phase x", ('not "x"',)),
    Wrong("next, method", f"runs predict made --from runs.csv {RUN} --method x", ('not "x"',)),
    Wrong("next, GPUs", f"runs predict made --from runs.csv {RUN} --gpus 4", ("every run has",)),
    Wrong("runs, unknown command", "runs forecast", ("No such command 'forecast'",), code=2),
    # design
    Wrong("design, no times", f"{GRID} --budget 600", ("say how long a run takes", "--from")),
    Wrong("design, little budget", f"{GRID} --budget 1 --sample 0.1", ("need 5 runs", "1 GPU-s")),
    Wrong("design, no criterion", f"{GRID} {GUESS} --criterion Z", ('D, A, I, not "Z"',)),
    Wrong("design, no number", f"{GRID} {GUESS} --gpus one", ('such as 8,16,32, not "one"',)),
    Wrong("design, negative", f"{GRID} --budget 600 --sample -1", ("must not be negative",)),
    Wrong("design, no file", f"{GRID} --budget 600 --from gone.csv", ("gone.csv: there is no",)),
    Wrong("design, one", f"design --batches 8 --iterations 9 {GUESS}", ("give two batches",)),
    Wrong("design, 0", f"design --batches 0,8 --iterations 9 {GUESS}", ("must be at least 1",)),
    # fit and collect
    Wrong("fit, what", "fit", ("FILE... and --out, or --runs",), code=2),
    Wrong("fit, to what", "fit layers.csv", ("FILE... and --out, or --runs",), code=2),
    Wrong("fit, no layers", "fit layers.csv -o m.npz", ("has no measured layers", "collect")),
    Wrong("fit, no file", "fit gone.csv -o m.npz", ("cannot read gone.csv",)),
    Wrong("fit, suffix", "fit layers.csv -o m.txt", ("FILE.npz", "not m.txt")),
    Wrong(
        "fit, no device", "fit layers.csv -o m.npz --device tpu", ('"cpu" or "cuda", not "tpu"',)
    ),
    Wrong("fit, no runs", "fit --runs gone.csv", ("gone.csv: there is no such file",)),
    Wrong("fit, no model", "fit --runs runs.csv -m vgg", ("no run of vgg", "it has made")),
    Wrong("fit, no method", "fit --runs runs.csv --method best", ('not "best"',)),
    Wrong("fit, no picture", "fit --runs runs.csv --plot p.png", ("FILE.svg", "not p.png")),
    Wrong("collect, no kind", "collect attention -o a.csv --device cpu", ("kinds are conv2d",)),
    Wrong("collect, nothing here", "collect linear -o a.csv", NO_GPU),
    Wrong("collect, to what", "collect linear", ("Missing option '--out'",), code=2),
    Wrong("collect, no device", "collect linear -o a.csv --device tpu", ('not "tpu"',)),
    Wrong("collect, none", "collect linear -o a.csv --count 0", ("--count",), code=2),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.about.replace(" ", "-"))
def test_a_wrong_command_says_what_why_and_what_to_do(folder: Path, wrong: Wrong) -> None:
    check_wrong(wrong)


def test_there_are_many_wrong_uses_of_every_command_and_each_is_there_once() -> None:
    assert len(WRONG) >= 60
    assert len({wrong.about for wrong in WRONG}) == len({wrong.command for wrong in WRONG})
    assert len({wrong.about for wrong in WRONG}) == len(WRONG)
