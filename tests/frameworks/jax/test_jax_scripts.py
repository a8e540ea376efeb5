"""Scripts of JAX run until their jitted step repeats; what cannot be followed says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wavecast
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.jax.driver import CompiledModule
from wavecast.frameworks.jax.script_calls import JittedCalls, JoinedCalls
from wavecast.frameworks.jax.tracing import trace_of
from wavecast.frameworks.pytorch.scripts import jax_runner
from wavecast.frameworks.pytorch.scripts.program import Program
from wavecast.frameworks.pytorch.scripts.watching import Watcher
from wavecast.frameworks.script_results import RunOptions
from wavecast.hardware.devices import device
from wavecast.traces.graphs import XLA_CALL
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Phase, Trace

jax = pytest.importorskip("jax")

NO_OPTIONS = RunOptions()

HEAD = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np

def loss_fn(params, x):
    return jnp.square(x @ params["w"]).mean()

def data():
    for _ in range(1000):
        yield np.ones((32, 512), "float32")

params = {"w": jnp.ones((512, 512))}
"""
PLAIN = """
@partial(jax.jit, donate_argnums=0)
def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

@jax.jit
def evaluate(params, x):
    return loss_fn(params, x)

evaluate(params, next(data()))
for x in data():
    params, loss = train_step(params, x)
    print(float(loss))
"""
TWO = """
gradients = jax.jit(jax.value_and_grad(loss_fn))

@jax.jit
def update(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

for x in data():
    loss, grads = gradients(params, 2 * jnp.asarray(x))
    params = update(params, grads)
"""
IN_PARTS = """
gradients = jax.jit(jax.grad(loss_fn))
add = jax.jit(lambda one, other: jax.tree.map(jnp.add, one, other))
update = jax.jit(lambda params, grads: jax.tree.map(lambda p, g: p - g, params, grads))

while True:
    total = None
    for x, _ in zip(data(), range(4)):
        grads = gradients(params, x)
        total = grads if total is None else add(total, grads)
    params = update(params, total)
"""
UNJITTED = """
@jax.jit
def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

for x in data():
    params, loss = train_step(params, x)
    average = jax.tree.map(lambda p: 0.9 * p, params)
"""
PMAP = """
step = jax.pmap(lambda x: x - 1)
step(jnp.ones((1, 8)))
"""
ONLY_GRADIENTS = """
gradients = jax.jit(jax.value_and_grad(loss_fn))
for x in data():
    loss, grads = gradients(params, x)
    params = {"w": params["w"] - 0.1 * grads["w"]}
"""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step be compiled: each is that of a file."""
    text = (Path(__file__).parent / "step.hlo").read_text(encoding="utf-8")
    sizes = dict.fromkeys(("argument", "output", "temp", "alias"), 0)

    def made(_: object, gpus: list[wavecast.Device], *, samples: int | None) -> list[Trace]:
        return [trace_of(CompiledModule(text, sizes), gpu, samples=samples) for gpu in gpus]

    monkeypatch.setattr(jax_runner, "traces_for", made)


def _run(tmp_path: Path, body: str, options: RunOptions = NO_OPTIONS) -> ScriptRun:
    path = tmp_path / "train.py"
    path.write_text(HEAD + body, encoding="utf-8")
    watcher = Watcher("train.py", None, _nothing, _nothing, _nothing)
    return jax_runner.run_jax(Program(str(path)), watcher, device("l4"), options)


def _nothing(*_: object) -> None:
    pass


@pytest.mark.usefixtures("compiled")
def test_the_step_is_the_function_that_gets_what_it_returned(tmp_path: Path) -> None:
    done = _run(tmp_path, PLAIN)
    assert "jitted function train_step" in done.choice
    assert "train.py:" in done.line
    assert done.trace.samples == 32
    assert any("copies of the batch" in text for text in done.left_out)


@pytest.mark.usefixtures("compiled")
def test_several_jitted_functions_make_a_step(tmp_path: Path) -> None:
    done = _run(tmp_path, TWO)
    assert done.holds == "one call of loss_fn and of update"
    assert done.trace.samples == 32
    dispatches = [call.op for call in done.trace if call.op.name == XLA_CALL]
    assert [op.attr("inputs") for op in dispatches] == [2, 2]
    assert any("preparation of the batch" in text and "mul" in text for text in done.left_out)


@pytest.mark.usefixtures("compiled")
def test_a_sum_of_gradients_is_no_step(tmp_path: Path) -> None:
    done = _run(tmp_path, IN_PARTS)
    names = [call.op.name for call in done.trace]
    assert names.count(XLA_CALL) == 4 + 3 + 1
    assert "loss_fn, 4 times" in done.holds


def test_joined_calls_hand_on_what_they_return_and_are_given_each_array_once() -> None:
    calls = JittedCalls(lambda: "train.py:1")
    with calls.watched():
        halved = jax.jit(lambda x, scale: {"y": x / 2 * scale})
        added = jax.jit(lambda parts, x: parts["y"] + x, donate_argnums=1)
        x, scale = jax.numpy.arange(8.0), np.full(8, 3.0)
        added(halved(x, scale), x)
    joined = JoinedCalls(calls.calls)
    assert (len(joined.given), joined.counts) == (2, [2, 2])
    assert joined.donated == [True, False]
    expected = np.arange(8.0) * 1.5 + np.arange(8.0)
    taken, kept = joined.arguments()
    assert np.array_equal(joined.step()(jax.tree.map(np.asarray, taken), kept)[1][0], expected)


def test_a_step_of_two_functions_needs_the_memory_of_one_state(tmp_path: Path) -> None:
    done = _run(tmp_path, TWO)
    weights = 512 * 512 * 4
    assert "params.w" in [value.parameter for value in done.trace.values]
    large = [memory for memory in done.trace.allocations if memory.nbytes == weights]
    assert len(large) == 3  # parameters, gradients, new parameters
    assert [memory.born is None for memory in large].count(True) == 1
    assert [c.phase for c in done.trace if c.op.name != XLA_CALL][-1] is Phase.OPTIMIZER


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (UNJITTED, r"return that are not jitted \(.*mul.*\), which would be missing.*trace_jax"),
        (ONLY_GRADIENTS, r"but none 3 times with what it had returned.*make_step"),
        (PMAP, r"jax.pmap at .*train.py:15, .*mesh.*--ranks"),
        ("print(params)", r"ended without a call of a jitted function.*trace_jax"),
        ("raise ValueError('no data')", r"no data"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_way_to_go(
    tmp_path: Path, body: str, message: str
) -> None:
    with pytest.raises(CaptureError, match=message):
        _run(tmp_path, body)


def test_tensorflow_is_told_to_run_on_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    with pytest.raises(CaptureError, match=r"TensorFlow, .*KERAS_BACKEND=jax"):
        _run(tmp_path, "")


def test_options_of_torch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="leave out --until"):
        _run(tmp_path, PLAIN, RunOptions(until="train.py:3"))


@pytest.mark.slow
def test_a_script_is_run_confined_and_compiled_for_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + PLAIN, encoding="utf-8")
    done = wavecast.run_script(path, gpu="l4")
    assert done.trace.framework.startswith("jax ")
    assert wavecast.predict(done.trace, "l4").seconds > 0


def test_scripts_of_jax_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    (tmp_path / "train.py").write_text(HEAD + PLAIN)
    (tmp_path / "of_torch.py").write_text("import torch\n")
    (tmp_path / "of_others.py").write_text("import jax, not_installed\n")
    body = """
import wavecast
print(wavecast.run_script("train.py", gpu="l4").trace.samples)
for script in ("of_torch.py", "of_others.py"):
    try:
        wavecast.run_script(script)
    except wavecast.WavecastError as error:
        print(error)
"""
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}"}
    command = [sys.executable, "-c", body]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "32",
        "running of_torch.py needs torch: pip install 'wavecast[torch]'",
        "the script raised ModuleNotFoundError at of_others.py:1: No module named 'not_installed'",
    ]
