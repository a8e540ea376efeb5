"""Logs as the programs write them, of a made-up training: warm-up at half the speed, then steady.

Those of TensorBoard, MLflow, Lightning and Hugging Face were compared with files that tensorboard
2.21, mlflow 3.17, pytorch-lightning 2.6 and transformers 5.22 wrote; `tests/samples` keeps three of
them. Those of Caffe and dllogger follow what their sources print: no real file was at hand.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import wavecast
from wavecast.runs.readers.tensorboard import masked_crc32c
from wavecast.runs.run import Run

STEADY_S = 0.25
"""One iteration, after warm-up."""
WARM_UP = 60
"""Iterations at half the speed."""


def read(file: Path, **given: Any) -> tuple[tuple[Run, ...], list[str]]:
    """The runs of a log, and the doubts about it."""
    doubts: list[str] = []
    return wavecast.read_runs(file, told=doubts.append, **given), doubts


def moments(iterations: int, every: int) -> Iterator[tuple[int, float]]:
    """The logged iterations and their times, with some jitter that is always the same."""
    at_s = 0.0
    for iteration in range(iterations + 1):
        if iteration % every == 0:
            yield iteration, at_s
        at_s += STEADY_S * (2 if iteration < WARM_UP else 1) * (1 + 0.01 * (iteration % 3 - 1))


CAFFE_HEAD = """\
Log file created at: 2016/11/02 10:00:00
Running on machine: node7
Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg
I1102 10:00:00.000000  4242 caffe.cpp:217] Using GPUs 0
I1102 10:00:00.100000  4242 caffe.cpp:222] GPU 0: Quadro M6000
I1102 10:00:00.200000  4242 solver.cpp:48] Initializing solver from parameters:
test_iter: 100
test_interval: 500
base_lr: 0.01
display: 20
max_iter: 1500
snapshot: 1000
I1102 10:00:00.300000  4242 solver.cpp:91] Creating training net from net file: train_val.prototxt
I1102 10:00:00.400000  4242 net.cpp:58] Initializing net from parameters:
name: "AlexNet"
state {
  phase: TRAIN
}
layer {
  name: "data"
  type: "Data"
  data_param {
    source: "ilsvrc12_train_lmdb"
    batch_size: 256
  }
}
I1102 10:00:00.500000  4242 layer_factory.hpp:77] Creating layer data
I1102 10:00:00.600000  4242 solver.cpp:181] Creating test net (#0) specified by net file
I1102 10:00:00.700000  4242 net.cpp:58] Initializing net from parameters:
name: "AlexNet"
state {
  phase: TEST
}
layer {
  name: "data"
  type: "Data"
  data_param {
    source: "ilsvrc12_val_lmdb"
    batch_size: 50
  }
}
I1102 10:00:00.800000  4242 solver.cpp:60] Solver scaffolding done.
I1102 10:00:00.900000  4242 solver.cpp:279] Solving AlexNet
"""


def caffe_log(iterations: int = 1500, test_s: float = 12.5) -> str:
    """A training of `caffe train` with a test of 100 iterations every 500 of them."""
    start = datetime(2016, 11, 2, 10, 0, 1)
    tested_s = 0.0
    lines = [CAFFE_HEAD]

    def say(at_s: float, place: str, message: str) -> None:
        at = start + timedelta(seconds=at_s)
        lines.append(f"I{at:%m%d %H:%M:%S.%f}  4242 {place}] {message}\n")

    for iteration, at_s in moments(iterations, 20):
        if iteration % 500 == 0:
            say(at_s + tested_s, "solver.cpp:337", f"Iteration {iteration}, Testing net (#0)")
            tested_s += test_s + iteration / 1e5
            done = at_s + tested_s
            say(done, "solver.cpp:404", "    Test net output #0: accuracy = 0.31")
            say(done, "solver.cpp:404", "    Test net output #1: loss = 3.1 (* 1 = 3.1 loss)")
        if iteration == 1000:
            say(at_s + tested_s, "solver.cpp:454", "Snapshotting to binary proto file a.caffemodel")
            tested_s += 3.0
        say(at_s + tested_s, "solver.cpp:228", f"Iteration {iteration}, loss = 6.9")
        say(at_s + tested_s, "sgd_solver.cpp:106", f"Iteration {iteration}, lr = 0.01")
    say(at_s + tested_s, "caffe.cpp:254", "Optimization Done.")
    return "".join(lines)


def dllogger_log(epochs: int = 3, length: int = 200) -> str:
    """A training as NVIDIA's ConvNets scripts log it, an epoch's validation in between."""
    lines = []

    def say(at_s: float, step: object, **data: object) -> None:
        entry = {
            "timestamp": str(1.6e9 + at_s),
            "datetime": str(datetime(2020, 9, 13) + timedelta(seconds=at_s)),
            "elapsedtime": str(at_s),
            "type": "LOG",
            "step": step,
            "data": data,
        }
        lines.append(f"DLLL {json.dumps(entry)}\n")

    say(0, "PARAMETER", arch="resnet50", batch_size=256, world_size=1, amp=True, epochs=epochs)
    lines.append('DLLL {"type": "METADATA", "metric": "train.total_ips", "metadata": {}}\n')
    lines.append("=> creating model 'resnet50'\n")
    tested_s = 1.0
    for iteration, at_s in moments(epochs * length - 1, 1):
        epoch, within = divmod(iteration, length)
        if within == 0 and epoch:
            tested_s += 20
            say(at_s + tested_s, [epoch - 1, within], **{"val.loss": 3.0, "val.top1": 40.0})
            say(at_s + tested_s, [epoch - 1], **{"train.total_ips": 1000.0})
        say(at_s + tested_s, [epoch, within], **{"train.loss": 6.9, "train.total_ips": 1024.0})
    say(at_s + tested_s, [], **{"train.total_ips": 1023.0})
    return "".join(lines)


def tensorboard_events(steps: int = 1200) -> bytes:
    """Scalars of a training every 10 steps, of a validation every 400, and hyperparameters."""
    written = record(event(1.6e9, 0, field(3, b"brain.Event:2")))
    plugin = field(1, field(1, b"hparams") + field(2, field(3, hparam("batch_size", 32.0))))
    named = field(1, field(1, b"hparams") + field(2, field(3, hparam("model", "resnet50"))))
    for metadata in (plugin, named):
        value = field(1, b"_hparams_/session_start_info") + field(9, metadata)
        written += record(event(1.6e9, 0, field(5, field(1, value))))
    tested_s = 0.0
    for step, at_s in moments(steps, 10):
        if step % 400 == 0 and step:
            tested_s += 9.0
            value = field(1, b"val/accuracy") + b"\x15" + struct.pack("<f", 0.5)
            at = 1.6e9 + at_s + tested_s
            written += record(event(at, step, field(5, field(1, value))))
        value = field(1, b"train/loss") + b"\x15" + struct.pack("<f", 1.0)
        written += record(event(1.6e9 + at_s + tested_s, step, field(5, field(1, value))))
    return written


def record(data: bytes) -> bytes:
    """A record with its checksums."""
    length = struct.pack("<Q", len(data))
    checks = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return length + next(checks) + data + next(checks)


def event(wall_time: float, step: int, rest: bytes) -> bytes:
    """An event of TensorBoard."""
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + varint(step) + rest


def hparam(name: str, value: float | str) -> bytes:
    """A hyperparameter: an entry of a map, from its name to a `google.protobuf.Value`."""
    held = (
        field(3, value.encode()) if isinstance(value, str) else b"\x11" + struct.pack("<d", value)
    )
    return field(1, field(1, name.encode()) + field(2, held))


def field(number: int, data: bytes) -> bytes:
    """A field of a message that is bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A whole number as protocol buffers have it."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def trainer_state(steps: int = 400, batch: int = 16) -> str:
    """What Hugging Face's Trainer saves, evaluations within."""
    seconds = 120.0
    history: list[dict[str, object]] = [
        {"epoch": n / 200, "grad_norm": 0.8, "learning_rate": 1e-5, "loss": 0.69, "step": n}
        for n in range(100, steps + 1, 100)
    ]
    evaluated = {"eval_loss": 0.7, "eval_runtime": 5.0, "eval_steps_per_second": 40.0}
    history.append({"epoch": 2.0, **evaluated, "eval_samples_per_second": 320.0, "step": steps})
    history.append(
        {
            **{"epoch": 2.0, "step": steps, "total_flos": 1e12, "train_loss": 0.6},
            "train_runtime": seconds,
            "train_samples_per_second": round(steps * batch / seconds, 3),
            "train_steps_per_second": round(steps / seconds, 3),
        }
    )
    state: dict[str, object] = {"epoch": 2.0, "global_step": steps, "is_world_process_zero": True}
    state |= {"log_history": history, "max_steps": steps, "train_batch_size": batch // 2}
    return json.dumps(state, indent=2) + "\n"


def lightning_metrics(steps: int = 900) -> str:
    """What CSVLogger and ThroughputMonitor write, with a validation every 300 steps."""
    lines = ["epoch,step,train/batches,train/samples,train/time,train_loss,val_loss\n"]
    for step, at_s in moments(steps, 10):
        if step:
            lines.append(f"0,{step - 1},{step},{step * 8},{at_s:.12f},,\n")
            lines.append(f"0,{step - 1},,,,0.693,\n")
        if step and step % 300 == 0:
            lines.append(f"0,{step - 1},,,,,0.71\n")
    return "".join(lines)


def mlflow_metric(steps: int = 900) -> str:
    """The file of an MLflow metric."""
    return "".join(
        f"{round(1.6e12 + at_s * 1000)} {1 / (step + 1)} {step}\n"
        for step, at_s in moments(steps, 10)
    )


def write_mlflow(folder: Path, metric: str | None = None) -> Path:
    """A run of an MLflow file store."""
    for name, text in {
        "meta.yaml": "artifact_uri: file:///mlruns/1/abc/artifacts\nend_time: 1600000300000\n"
        "experiment_id: '1'\nlifecycle_stage: active\nrun_id: abc\nrun_name: r1\n"
        "start_time: 1600000000000\nstatus: 3\ntags: []\nuser_id: me\n",
        "params/batch_size": "32",
        "params/model": "resnet50",
        "params/precision": "bf16",
        "tags/mlflow.runName": "r1",
        "metrics/train/loss": mlflow_metric() if metric is None else metric,
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / "meta.yaml"


TABLE = """\
model,batch,iterations,seconds,phase,gpu,gpus,precision,framework,inner_modules,source
AlexNet,32,100,2.5,training,m6000,1,fp32,caffe,,
AlexNet,64,100,4.5,training,m6000,1,fp32,caffe,,
AlexNet,64,200,9.25,testing,m6000,2,fp32,caffe,5,old.csv:7
"""


@dataclass(frozen=True)
class Sample:
    """A log: what its file is called, what is in it, and what the user must add."""

    name: str
    content: Callable[[], bytes]
    given: dict[str, object]
    batch: int
    after_warm_up: int
    """Iterations after warm-up, less those with something else in between."""

    def write(self, folder: Path, content: bytes | None = None) -> Path:
        """Write it, or something else under its name."""
        file = folder / self.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.content() if content is None else content)
        return file


LOGS = {
    "caffe": Sample("train.log", lambda: caffe_log().encode(), {}, 256, 1380),
    "dllogger": Sample("log.json", lambda: dllogger_log().encode(), {}, 256, 538),
    "tensorboard": Sample("events.out.tfevents.1.host", tensorboard_events, {}, 32, 1110),
    "lightning": Sample(
        "metrics.csv", lambda: lightning_metrics().encode(), {"model": "net"}, 8, 840
    ),
}
