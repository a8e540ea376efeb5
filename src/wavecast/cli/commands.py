"""The commands, in the order of the help, and the modules that define them.

A module is loaded when one of its commands is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Predict": {
        "predict": "Predict the time of a training step on GPUs you do not have.",
        "run": "Run a training script unchanged, without a GPU, and predict its step.",
        "memory": "Show the memory that a training step needs.",
        "fits": "Show on which GPUs a training step fits.",
        "max-batch": "Find the largest batch that fits. No GPU is needed.",
        "profile": "Show where the time and memory of a step go.",
        "extrapolate": "Predict a step at a batch that is too large to measure.",
    },
    "Choose": {
        "advise": "Say what would make a step faster, smaller or cheaper on a GPU.",
        "choose": "Choose the GPUs for a training: the cheapest, the fastest, or the best of both.",
        "prices": "List what GPUs cost, or get newer prices.",
        "scale": "Predict how the speed of a training grows with the number of GPUs.",
        "parallelize": "Find the fastest way to spread a training step over a number of GPUs.",
        "serve": "Serve a web page that predicts models of the suite and uploaded traces.",
    },
    "Many jobs": {
        "plan": "Plan many jobs: the GPUs of each, how many, and when it starts.",
        "simulate": "Simulate many jobs under several policies: completion, makespan, cost and "
        "deadlines.",
        "capacity": "Find the cheapest mix of GPUs with which jobs meet their deadlines.",
        "campaign": "Measure and predict many configurations: here, on all GPUs, or on a Ray "
        "cluster.",
    },
    "Compare and check": {
        "compare": "Compare two steps: time, memory, and what was added or is gone.",
        "evaluate": "Compare predictions between your GPUs with what you measured on them.",
        "check": "Check that steps are as fast and as small as a committed baseline says.",
        "doctor": "Look whether this machine has what Wavecast needs, and say what to do.",
    },
    "Get a step": {
        "trace": "Trace a training step, without a GPU.",
        "measure": "Measure a training step on this machine's GPU.",
        "import": "Read a torch.profiler file as a measured trace.",
    },
    "Hardware": {
        "devices": "List the known GPUs, or show all facts of some.",
        "clusters": "List the known clusters, or show all facts of some.",
        "calibrate": "Measure this machine's host and GPU, for your predictions.",
    },
    "Past runs, and models of layers": {
        "runs": "Keep past runs: import logs, list and export them; predict the next run from "
        "them.",
        "design": "Choose the runs to make to learn the most within a budget.",
        "layers": "Predict a network from the timed layers of others.",
        "collect": "Measure sample layers on this machine's GPU.",
        "fit": "Fit a model to layer times or to past runs.",
    },
    "More": {
        "schema": "Print the JSON schema of what a command prints with --json.",
        "suite": "List, measure, predict or train the benchmark suite.",
    },
}
"""The commands under the headings of the help, the most used ones first, with their first lines."""
HIDDEN = ("iterate",)
"""Commands for programs, which the help does not show."""
_COMMANDS_BY_MODULE = {
    "facts.devices": ("devices", "clusters", "calibrate", "schema", "doctor"),
    "facts.prices": ("prices",),
    "facts.serve": ("serve",),
    "facts.suite": ("suite",),
    "plans.plan": ("plan", "simulate", "capacity"),
    "runs.campaign": ("campaign",),
    "runs.fit": ("fit", "collect"),
    "runs.layers": ("layers",),
    "runs.run_models": ("runs", "design"),
    "steps.advise": ("advise",),
    "steps.check": ("check",),
    "steps.choose": ("choose",),
    "steps.compare": ("compare", "evaluate"),
    "steps.memory": ("memory", "fits", "max-batch"),
    "steps.parallel": ("scale", "parallelize"),
    "steps.predict": ("predict", "extrapolate"),
    "steps.profile": ("profile",),
    "steps.run": ("run",),
    "steps.trace": ("trace", "measure", "import", "iterate"),
}
MODULES: Mapping[str, str] = {
    name: f"wavecast.cli.{module}"
    for module, names in _COMMANDS_BY_MODULE.items()
    for name in names
}
"""The module that defines a command. Others of `runs` are loaded by the one that is named."""
