"""Every question that can be asked of a trace: functions, commands, pages, exports, the server.

The inputs are traces that load (`bending`). The rule: a checked result, or an error of
`wavecast.errors` in one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from fuzz import bending
from fuzz.mutation import HOSTILE
from fuzz.readers import GPUS, BadResult, Reader, finite
from fuzz.seeds import Seed, one
from fuzz.traced_steps import CORPUS, STEPS
from shell import run

import wavecast
from wavecast.errors import InvalidInput, UnknownName
from wavecast.report.fields import plain
from wavecast.traces.step import Trace

Ask = Callable[[Trace, Random, Path], object]
"""Takes a trace, random numbers by which it chooses options, and a folder in which it may write."""
_MAY_BE_NEGATIVE = ("delta", "saved", "slack", "per_sample", "fixed")
"""Differences, and the slope of a line and where it begins."""


def sound(value: Any, where: str) -> None:
    """Raise BadResult for a number of a record that cannot be.

    This is written apart from `wavecast.results`, so that an error there is found here.
    """
    finite(value, where)
    if isinstance(value, Mapping):
        _sound_range(value, where)
        for key, inner in value.items():
            sound(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            sound(inner, where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        name = where.rpartition(".")[2]
        measures = name.endswith(("_s", "seconds", "_bytes"))
        if measures and value < 0 and not name.startswith(_MAY_BE_NEGATIVE):
            raise BadResult(f"{where} is negative: {value!r}")
        if name.endswith("share") and not -1e-9 <= value <= 1 + 1e-6:
            raise BadResult(f"{where} is no share: {value!r}")


def _sound_range(value: Mapping[str, Any], where: str) -> None:
    low, middle, high = (value.get(name, 0.0) for name in ("low_s", "seconds", "high_s"))
    if None not in (low, middle) and high and not 0 <= low <= middle <= high:
        raise BadResult(f"{where} is outside its range: {low}, {middle}, {high}")
    peak, reserved = value.get("peak_bytes"), value.get("reserved_bytes")
    if peak is not None and reserved is not None and peak > reserved:
        raise BadResult(f"{where} reserves less than its peak: {peak}, {reserved}")


def _told(result: Any, what: str) -> None:
    """Check a result as plain data, as JSON and as a notebook shows it."""
    record = plain(result)
    sound(record, what)
    json.dumps(record, allow_nan=False)
    if hasattr(result, "_repr_html_"):
        result._repr_html_()
    repr(result)


def _gpu(random: Random) -> str:
    return random.choice(GPUS)


def _predicted(trace: Trace, random: Random, **more: Any) -> wavecast.Prediction:
    gpu = _gpu(random)
    if trace.measurement is not None and "parallel" not in more:
        try:
            return wavecast.predict(trace, gpu, **more)
        except UnknownName:
            more["origin"] = "t4"
    return wavecast.predict(trace, gpu, **more)


def ask_predict(trace: Trace, random: Random, folder: Path) -> None:
    """The time on one GPU, and all its parts."""
    graphed = random.random() < 0.15
    step = _predicted(trace, random, graphed=graphed, host_factor=random.choice((1.0, 1.0, 2.0)))
    _told(step, "prediction")
    _sum_of((share.gpu_s for share in step.by_op()), step.gpu_s, "ops")
    _sum_of((share.gpu_s for share in step.by_module(1)), step.gpu_s, "modules")
    _sum_of(step.by_phase().values(), step.gpu_s, "phases")
    if not 0 <= step.unpredicted_share <= 1 + 1e-9:
        raise BadResult(f"unpredicted_share is no share: {step.unpredicted_share!r}")
    finite([step.host_s, step.throughput or 0.0, *step.gpu_spread], "prediction")


def _sum_of(parts: Any, whole: float, what: str) -> None:
    total = sum(parts)
    if abs(total - whole) > 1e-6 * max(whole, 1e-12):
        raise BadResult(f"the {what} are not the whole: {total!r}, {whole!r}")


def strategy(random: Random) -> wavecast.Parallel:
    """A strategy with one to three axes, and habits."""
    few = (1, 1, 2, 2, 3, 4, 8)
    made: dict[str, Any] = {"data": random.choice((1, 2, 4, 8, 64)), "shard": random.randrange(4)}
    axes = {
        "tensor": few,
        "pipeline": few,
        "context": few,
        "microbatches": (1, 2, 4, 8),
        "virtual": (1, 2),
        "expert": (1, 2, 4),
        "sequence": (True, False),
        "schedule": ("1f1b", "gpipe", "zero-bubble"),
        "reshard": (True, False),
        **dict.fromkeys(("fp8", "fused_rotary", "fused_gates", "fused_experts"), (True, False)),
        **dict.fromkeys(("sequence_first", "flash_attention", "dispatch_once"), (True, False)),
        **dict.fromkeys(("fused_accumulation", "triton_functions"), (True, False)),
        **dict.fromkeys(("first_flash_attention", "direct_lists"), (True, False)),
        "waits_each_step": (True, False),
    }
    for name in random.sample(list(axes), random.choice((0, 1, 2, 2, 3))):
        made[name] = random.choice(axes[name])
    if made.get("pipeline", 1) > 1 and "microbatches" not in made:
        made["microbatches"] = 2 * made["pipeline"]
    return wavecast.Parallel(**made)


def ask_parallel(trace: Trace, random: Random, folder: Path) -> None:
    """The time on several GPUs, and all its parts."""
    step = wavecast.predict(trace, _gpu(random), parallel=strategy(random))
    _told(step, "prediction")
    finite([step.efficiency, step.exposed_s, step.idle_s, step.waiting_s, step.single_s], "ranks")
    for stage in step.stages:
        sound(plain(stage), "stage")


def ask_memory(trace: Trace, random: Random, folder: Path) -> None:
    """The memory on one or several GPUs, by kind and module."""
    spread = strategy(random) if random.random() < 0.4 else None
    needed = wavecast.memory(
        trace,
        random.choice((None, *GPUS)),
        expandable_segments=random.random() < 0.3,
        parallel=spread,
    )
    _told(needed, "memory")
    if not 0 <= needed.peak_bytes <= needed.reserved_bytes <= needed.needed_bytes:
        raise BadResult(f"memory is less than its parts: {needed.peak_bytes}")
    if any(size < 0 for size in needed.by_module(2).values()):
        raise BadResult("a module has less than no memory")
    needed.held()


def ask_profile(trace: Trace, random: Random, folder: Path) -> None:
    """Where the time of a measured or predicted step goes."""
    from wavecast.analysis.profile import profile_measured, profile_predicted

    if trace.measurement is not None and random.random() < 0.7:
        profile = profile_measured("step", trace, wavecast.device("t4"))
    else:
        profile = profile_predicted("step", _predicted(trace, random))
    _told(profile, "profile")
    sound(dict(profile.idle_s), "idle_s")
    sound([plain(kernel) for kernel in profile.kernels], "kernels")
    finite([*profile.utilisation.values(), profile.gpu_utilisation], "utilisation")
    profile.wasteful()


def ask_comparison(trace: Trace, random: Random, folder: Path) -> None:
    """A step beside another."""
    other = bending.bent(trace, random)
    gpu = _gpu(random)
    origin = "t4" if trace.measurement is not None and random.random() < 0.5 else None
    before, after = (wavecast.predict(one, gpu, origin=origin) for one in (trace, other))
    change = wavecast.compare(before, after)
    _told(change, "comparison")
    finite([change.time_ratio, change.memory_ratio or 0.0], "ratios")
    for part in (*change.ops, *change.kinds, *change.types, *change.modules):
        finite(plain(part), "change")


def ask_larger_batch(trace: Trace, random: Random, folder: Path) -> None:
    """The step at a batch that was not traced."""
    gpu = _gpu(random)
    known = {
        batch: wavecast.predict(bending.bent(trace, random) if batch == 8 else trace, gpu)
        for batch in (2, 4, 8)
    }
    _told(wavecast.extrapolate_batch(known, random.choice((16, 64, 10**6))), "larger batch")


def ask_layers(trace: Trace, random: Random, folder: Path) -> None:
    """The layers of a step, their times and a line through them."""
    from wavecast.runs.regression.complexities import network_of_trace
    from wavecast.runs.regression.layer_times import times_of_trace
    from wavecast.runs.regression.per_layer import PerLayer, published

    batch = random.choice((None, 2, 4))
    network = network_of_trace(trace, batch=batch, name="net")
    finite([float(network.ops(batch=64)), float(network.weights)], "network")
    time = published("quadro-m6000-12gb").predict(network, random.choice((1, 64)))
    _told(time, "network time")
    if trace.measurement is not None:
        times = times_of_trace(trace, network, batch or trace.samples or 2)
        _told(PerLayer("ordinary").fit(times).predict(network, 8), "network time")


def ask_advice(trace: Trace, random: Random, folder: Path) -> None:
    """What would make the step faster."""
    _told(wavecast.advise(trace, _gpu(random)), "advice")


def ask_memory_advice(trace: Trace, random: Random, folder: Path) -> None:
    """What would make the step smaller."""
    from wavecast.footprint.advice import advise

    for advice in advise(wavecast.memory(trace, _gpu(random))):
        _told(advice, "advice")


def ask_cost(trace: Trace, random: Random, folder: Path) -> None:
    """What a whole training takes."""
    step = _predicted(trace, random)
    amount = random.choice((1.0, 1e6, 1e18))
    plan = wavecast.TrainingPlan(
        **{random.choice(("iterations", "samples", "tokens")): amount}  # type: ignore[arg-type]
    )
    _told(wavecast.training_cost(step, plan, wavecast.price(step.device)), "cost")


def ask_exports(trace: Trace, random: Random, folder: Path) -> None:
    """The page, the table of pandas, the timetable and the file of a result."""
    choice = random.randrange(4)
    if choice == 0:
        trace._repr_html_()
        trace.save(folder / "again.json.gz")
        if wavecast.load_trace(folder / "again.json.gz") != trace:
            raise BadResult("a trace is another one after it was written and read")
        trace.to_pandas()
        return
    more: dict[str, Any] = {"parallel": strategy(random)} if random.random() < 0.3 else {}
    step = _predicted(trace, random, **more)
    if choice == 1:
        step.to_html(folder / "step.html")
        harmless(folder / "step.html")
        if trace.allocations:
            wavecast.memory(trace, step.device).to_html(folder / "memory.html")
    elif choice == 2:
        step.to_pandas()
        step.to_dict()
    else:
        step.to_chrome_trace(folder / "step.json")
        events = json.loads((folder / "step.json").read_bytes())["traceEvents"]
        finite(events, "timetable")


def ask_server(trace: Trace, random: Random, folder: Path) -> None:
    """What the web page asks of an uploaded file."""
    from wavecast.server.answers import ANSWERS

    path = folder / f"{random.randrange(1 << 60):x}.json.gz"
    path.write_bytes(bending.written(trace))
    try:
        spread = {"data": random.choice((1, 2, 8)), "shard": random.randrange(4)}
        question: dict[str, Any] = {"trace": path.name[:1] * 64, "gpus": ["l4", _gpu(random)]}
        if random.random() < 0.3:
            question["parallel"] = spread
        if random.random() < 0.3:
            question["training"] = {"iterations": 1e5}
        if trace.measurement is not None and not question.get("parallel"):
            question["origin"] = random.choice((None, "t4"))
        asked = {"question": question, "file": str(path), "traces": None, "gpu": "l4"}
        name = random.choice(("inspect", "predict", "predict", "details", "report"))
        answer = ANSWERS[name](asked)
        sound({key: value for key, value in answer.items() if key != "data"}, name)
        json.dumps(answer, allow_nan=False)
    finally:
        path.unlink()


_AXES = ("data=2", "data=8,shard=3", "tensor=2", "pipeline=2,microbatches=4", "context=2")
_COMMANDS: dict[str, Callable[[Random], list[str]]] = {
    "predict": lambda r: [*_named(r), *_some(r, ["--by", r.choice(("op", "module"))])],
    "predict on several": lambda r: ["predict", *_named(r), "--parallel", r.choice(_AXES)],
    "predict a training": lambda r: ["predict", *_named(r), "--iterations", "1e5"],
    "memory": lambda r: [*_named(r), *_some(r, ["--advice"])],
    "fits": lambda r: [*_named(r), *_some(r, ["--parallel", r.choice(_AXES)])],
    "profile": lambda r: [*_named(r, 0.4), *_some(r, ["--origin", "t4"])],
    "choose": lambda r: [*_named(r), "--iterations", "1e5", *_some(r, ["--gpus-up-to", "4"])],
    "advise": lambda r: _named(r)[:2],
    "scale": lambda r: [*_named(r)[:2], "--up-to", "8", *_some(r, ["--tokens", "1e9"])],
    "parallelize": lambda r: [*_named(r)[:2], "--gpus", "4", "--global-batch", "64"],
    "trace": lambda r: [],
    "layers predict": lambda r: ["--from", "quadro-m6000-12gb"],
    "max-batch": lambda r: _named(r)[:2],
}
"""The options of commands that take a step. A name of several words begins with the command."""


def _named(random: Random, never: float = 0.0) -> list[str]:
    if random.random() < never:
        return []
    return ["--gpu", _gpu(random), "--gpu", "l4"]


def _some(random: Random, words: list[str]) -> list[str]:
    return words if random.random() < 0.4 else []


def _ask_command(name: str) -> Ask:
    """A question that runs a command in this process, on a file."""

    def ask(trace: Trace, random: Random, folder: Path) -> None:
        (folder / "step.json.gz").write_bytes(bending.written(trace))
        words = _COMMANDS[name](random)
        command = name.split() if name.startswith("layers") else name.split()[:1]
        if words[:1] == command:
            words = words[1:]
        form = random.choice(("text", "--json", "--html"))
        options = {"text": [], "--json": ["--json"], "--html": ["--html", str(folder / "a.html")]}
        if form == "--html" and command[0] not in _WITH_PAGES:
            form = "text"
        line = [*command, str(folder / "step.json.gz"), *words, *options[form]]
        _outcome(line, form == "--json")
        if form == "--html":
            harmless(folder / "a.html")

    return ask


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_INJECTED = tuple(text for text in HOSTILE if "alert(1)" in text)
_WITH_PAGES = ("predict", "memory", "profile", "choose", "advise", "scale", "parallelize")
_ANSWERED = {"fits": (0, 1), "plan": (0, 1), "capacity": (0, 1), "check": (0, 1, 2)}


def harmless(page: Path) -> None:
    """Raise BadResult for a page in which a name of a file is code."""
    text = page.read_text(encoding="utf-8")
    for injected in _INJECTED:
        if injected in text:
            raise BadResult(f"a page has {injected!r} as it is")


def _outcome(line: list[str], as_json: bool) -> None:
    """Check what a command printed; raise InvalidInput if it refused in one line."""
    done = run(*line, env={"NO_COLOR": "1"})
    if (control := _CONTROL.search(done.out + done.err)) is not None:
        raise BadResult(f"{line[0]} prints the character {control[0]!r}")
    if "Traceback" in done.err:
        raise RuntimeError(f"a traceback from {' '.join(line)}: {done.err[-200:]}")
    refused = done.code == 2 and not done.out  # where 1 is an answer, 2 is a refusal
    if done.code in _ANSWERED.get(line[0], (0, 3)) and not refused:
        if as_json:
            sound(json.loads(done.out), line[0])
        return
    if not done.err.rpartition("error: ")[1] or done.out:
        raise BadResult(f"{line[0]} exits with {done.code}, and says: {done.err[-200:]}")
    raise InvalidInput(done.err.rpartition("error: ")[2].strip())


def ask_compare_command(trace: Trace, random: Random, folder: Path) -> None:
    """`wavecast compare` of a step with another."""
    for name, step in (("a", trace), ("b", bending.bent(trace, random))):
        (folder / f"{name}.json.gz").write_bytes(bending.written(step))
    options = random.choice(([], ["--json"], ["--html", str(folder / "a.html")]))
    both = [str(folder / f"{name}.json.gz") for name in "ab"]
    _outcome(["compare", *both, "--gpu", _gpu(random), *options], "--json" in options)


def ask_check_command(trace: Trace, random: Random, folder: Path) -> None:
    """`wavecast check` of a step, against a baseline of it, and of another."""
    (folder / "checked.json.gz").write_bytes(bending.written(trace))
    config = folder / "wavecast.toml"
    target = f'target = "{folder}/checked.json.gz"\ngpus = ["l4", "h100-sxm-80gb"]\n'
    config.write_text(f'baseline = "{folder}/baseline.toml"\n[targets.step]\n{target}')
    _outcome(["check", "--config", str(config), "--update"], as_json=False)
    if random.random() < 0.5:
        other = bending.bent(trace, random)
        (folder / "checked.json.gz").write_bytes(bending.written(other))
    options = random.choice(([], ["--json"], ["--markdown", str(folder / "a.md")], ["--annotate"]))
    _outcome(["check", "--config", str(config), *options], "--json" in options)


def ask_evaluate_command(trace: Trace, random: Random, folder: Path) -> None:
    """`wavecast evaluate` of a step that was measured on two GPUs."""
    for gpu in ("t4", "l4"):
        step = trace if gpu == "t4" else bending.bent(trace, random)
        if step.measurement is not None:
            step = replace(step, measurement=replace(step.measurement, gpu=gpu))
        (folder / f"{gpu}.json.gz").write_bytes(bending.written(step))
    options = random.choice(([], ["--json"], ["--html", str(folder / "a.html")]))
    named = [f"net={folder}/{gpu}.json.gz" for gpu in ("t4", "l4")]
    _outcome(["evaluate", *named, *options], "--json" in options)


def ask_extrapolate_command(trace: Trace, random: Random, folder: Path) -> None:
    """`wavecast extrapolate` of a step at three batches, one of them bent."""
    bent = random.choice((2, 4, 8))
    for batch in (2, 4, 8):
        step = bending.bent(trace, random) if batch == bent else trace
        (folder / f"b{batch}.json.gz").write_bytes(bending.written(replace(step, samples=batch)))
    named = [str(folder / f"b{batch}.json.gz") for batch in (2, 4, 8)]
    options = random.choice(([], ["--json"]))
    wanted = ["--batch", random.choice(("16", "4096")), "--gpu", _gpu(random)]
    _outcome(["extrapolate", *named, *wanted, *options], "--json" in options)


def ask_jobs_commands(trace: Trace, random: Random, folder: Path) -> None:
    """`wavecast plan`, `simulate` and `capacity` of jobs that train a step."""
    (folder / "step.json.gz").write_bytes(bending.written(trace))
    command = random.choice(("plan", "plan", "simulate", "capacity"))
    pool = random.choice(("", 'available = [["0h", "30h"]]', "power_limit_kw = 0.3", "spot = true"))
    rate = "runs_per_week = 9" if command == "capacity" else "runs = 3"
    jobs = folder / "jobs.toml"
    jobs.write_text(
        f'[[jobs]]\nname = "a"\ntarget = "{folder}/step.json.gz"\niterations = 1e6\n{rate}\n'
        f"counts = [1, {random.choice((2, 8))}]\ndue_in = {random.choice((60, 36_000, 10**7))}\n"
        f'[[cluster.pools]]\ngpu = "{_gpu(random)}"\ngpus = 8\nusd_per_hour = 1\n{pool}\n'
    )
    more = {
        "plan": [["--time-limit", "0"], ["--time-limit", "0.2s", "--workers", "1", "--robust"]],
        "simulate": [["--policy", "fifo"], ["--policy", "ours", "--stops"]],
        "capacity": [["--draws", "2", "--weeks", "1"]],
    }
    options = random.choice(([], ["--json"], ["--html", str(folder / "a.html")]))
    chosen = random.choice(more[command])
    _outcome([command, str(jobs), *chosen, *options], "--json" in options)


def _reader(name: str, ask: Ask, weight: int = 1) -> Reader:
    def use(path: Path, number: int) -> None:
        trace = wavecast.load_trace(path)
        with TemporaryDirectory(dir=path.parent) as folder:
            ask(trace, Random(f"{name}/{number}"), Path(folder))

    return Reader(f"{name} of a step", steps, use, weight)


@cache
def steps() -> list[Seed]:
    """The traced steps, and inputs that were faults once."""
    files = [*sorted(STEPS.glob("*.json.gz")), *sorted(CORPUS.glob("*.json.gz"))]
    return [one("step.json.gz", path.read_bytes(), bending.bent_file) for path in files]


QUESTIONS = (
    _reader("prediction", ask_predict, 12),
    _reader("spread prediction", ask_parallel, 24),
    _reader("memory", ask_memory, 10),
    _reader("profile", ask_profile, 10),
    _reader("comparison", ask_comparison, 8),
    _reader("larger batch", ask_larger_batch, 4),
    _reader("layers", ask_layers, 8),
    _reader("advice", ask_advice, 2),
    _reader("memory advice", ask_memory_advice, 4),
    _reader("cost", ask_cost, 4),
    _reader("export", ask_exports, 8),
    _reader("server's answer", ask_server, 6),
    *(_reader(f"wavecast {name}", _ask_command(name), 2) for name in _COMMANDS),
    _reader("wavecast compare", ask_compare_command, 2),
    _reader("wavecast check", ask_check_command, 2),
    _reader("wavecast evaluate", ask_evaluate_command, 2),
    _reader("wavecast extrapolate", ask_extrapolate_command, 2),
    _reader("wavecast plan", ask_jobs_commands, 2),
)
