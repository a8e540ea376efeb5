"""Scripts of kinds that are common: each works, or fails with what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wavecast
from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.scripts import batches
from wavecast.traces.graphs import eager_code

MakeScript = Callable[..., Path]

UPDATES = "\nwhile True:\n    update()\n"


def linears(run: wavecast.ScriptRun) -> int:
    return [call.op.base for call in run.trace].count("aten.addmm")


def test_parameters_may_be_copied_by_their_class_and_attributes(script: MakeScript) -> None:
    body = """
p = model.weight
copy = type(p)(torch.randn(8, 32, device="cuda"), requires_grad=True, **p.__dict__)
assert isinstance(copy, nn.Parameter) and copy.is_cuda
"""
    assert linears(wavecast.run_script(script(body + UPDATES))) == 1


def test_checkpoints_are_read_in_every_way(script: MakeScript) -> None:
    body = """
import io
from pathlib import Path
reader = torch._C.PyTorchFileReader("real.pt")  # as litgpt's lazy_load does
storage = reader.get_storage_from_record("data/0", 32 * 8, torch.float32)._typed_storage()
weight = torch._utils._rebuild_tensor_v2(storage, 0, (8, 32), (32, 1), False, {})
with torch.no_grad():
    model.weight.copy_(weight)
for state in (
    torch.load("real.pt", mmap=True, map_location="cpu"),
    torch.load(io.BytesIO(Path("real.pt").read_bytes()), map_location=torch.device("cuda:0")),
    torch.load("real.pt", map_location=lambda storage, _: storage),
):
    model.load_state_dict(state)
with torch.device("meta"):
    empty = nn.Linear(32, 8)
    assert empty.weight.is_meta and torch.tensor([1.0]).is_meta
empty.load_state_dict(torch.load("real.pt", mmap=True), assign=True)
assert not empty.weight.is_meta
"""
    path = script(body + UPDATES)
    torch.save(torch.nn.Linear(32, 8).state_dict(), "real.pt")
    assert linears(wavecast.run_script(path)) == 1


def test_safetensors_are_read_to_the_gpu(script: MakeScript) -> None:
    pytest.importorskip("safetensors")
    body = """
from safetensors import safe_open
from safetensors.torch import load_file
state = load_file("real.safetensors", device="cuda:0")
assert state["weight"].is_cuda
model.load_state_dict(state)
with safe_open("real.safetensors", framework="pt", device="cuda") as file:
    assert set(file.keys()) == {"weight", "bias"}
    model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})
    assert file.get_slice("weight")[:4].shape == (4, 32)
"""
    path = script(body + UPDATES)
    from safetensors.torch import save_file

    save_file(torch.nn.Linear(32, 8).state_dict(), "real.safetensors")
    assert linears(wavecast.run_script(path)) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_local_model_is_fine_tuned_by_the_trainer(script: MakeScript) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    body = """
import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
model = AutoModelForSequenceClassification.from_pretrained("tiny", num_labels=2)
row = {"input_ids": torch.arange(16), "attention_mask": torch.ones(16).long(), "labels": 1}
arguments = TrainingArguments("out", per_device_train_batch_size=8, report_to=[])
Trainer(model, arguments, train_dataset=[row] * 64).train()
"""
    path = script(body, head="")
    sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=64, max_position_embeddings=64)
    transformers.BertForSequenceClassification(config).save_pretrained("tiny")
    assert wavecast.run_script(path).trace.samples == 8


SPAWN = """
import torch.distributed as dist, torch.multiprocessing as mp
def work(rank, ranks):
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    torch.cuda.set_device(rank)
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    while True:
        optimizer.zero_grad()
        parallel(torch.randn(4, 32).to(rank)).sum().backward()
        optimizer.step()
gpus = torch.cuda.device_count()
"""


def test_the_first_of_spawned_ranks_is_followed(script: MakeScript) -> None:
    path = script(SPAWN + "mp.spawn(work, args=(gpus,), nprocs=gpus)\n")
    trace = wavecast.run_script(path, ranks=8).trace
    assert {call.op.attr("ranks") for call in trace if call.op.name == "nccl.all_reduce"} == {8}


LIGHTNING = """
import pytorch_lightning
pytorch_lightning.Trainer(devices=8, accelerator="gpu", strategy="ddp", logger=False)
"""


@pytest.mark.parametrize(
    "ending",
    [
        "mp.spawn(work, args=(4,), nprocs=4)",
        "assert gpus > 1, f'needs 2 GPUs, found {gpus}'",
        "sys.exit(0 if gpus < 2 else 1)",
        "torch.accelerator.device_count() < 2 and exit()",
        "import os; os.environ['LOCAL_RANK']",
        pytest.param(LIGHTNING, marks=pytest.mark.slow),
    ],
)
def test_a_script_for_several_gpus_is_told_of_ranks(ending: str, script: MakeScript) -> None:
    start = SPAWN if "gpus" in ending or "work" in ending else ""
    with pytest.raises(CaptureError, match=r"--ranks [48]"):
        wavecast.run_script(script(start + ending + "\n"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_accelerate_runs_as_the_first_of_eight_ranks(script: MakeScript) -> None:
    pytest.importorskip("accelerate")
    body = """
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator()
data = DataLoader(TensorDataset(torch.randn(960, 32)), batch_size=8, shuffle=True)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for (x,) in data:
    optimizer.zero_grad()
    accelerator.backward(model(x).sum())
    optimizer.step()
"""
    trace = wavecast.run_script(script(body), ranks=8).trace
    assert trace.samples == 8


@pytest.mark.parametrize(
    "update",
    [
        "torch._foreach_add_([p.data for p in weights], [p.grad for p in weights], alpha=-0.1)",
        "[p.data.add_(p.grad, alpha=-0.1) for p in weights]",
    ],
)
def test_a_loop_without_optimizer_and_modules_is_found(update: str, script: MakeScript) -> None:
    body = f"""
import torch
weights = [torch.nn.Parameter(torch.randn(32, 32, device="cuda")) for _ in range(2)]
while True:
    for p in weights:
        p.grad = None
    (torch.randn(4, 32).cuda() @ weights[0] @ weights[1]).sum().backward()
    {update}
"""
    run = wavecast.run_script(script(body, head=""))
    names = [call.op.base for call in run.trace]
    assert names.count("aten.mm") == 5
    assert any("add_" in name for name in names)


def test_many_backward_passes_without_an_update_name_a_line(script: MakeScript) -> None:
    body = "del optimizer\nwhile True:\n    model(torch.ones(4, 32).cuda()).sum().backward()\n"
    with pytest.raises(CaptureError, match=r"--until train.py:13"):
        wavecast.run_script(script(body.replace("del optimizer", "optimizer = None")))


def test_an_assertion_on_an_assumed_value_says_what_was_assumed(script: MakeScript) -> None:
    body = """
while True:
    update()
    mask = torch.zeros(4, 512, 512, dtype=torch.long).cuda()
    assert mask.max() < 2, "mask indices should be in [0, n_classes["
"""
    path = script(body)
    with pytest.raises(CaptureError, match=r"False was assumed.*--assume train.py:15=1"):
        wavecast.run_script(path)
    assert linears(wavecast.run_script(path, assume={"train.py:15": 1})) == 1


def test_losses_are_assumed_to_be_finite(script: MakeScript) -> None:
    body = """
while True:
    loss = model(torch.randn(4, 32).cuda()).sum()
    if not torch.isfinite(loss) or not loss.isfinite() or torch.isnan(loss) or loss.isinf():
        continue  # the update would be left out
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    run = wavecast.run_script(script(body))
    assert linears(run) == 1
    assert any("train.py:14; True was assumed" in note for note in run.trace.notes)


def test_the_reason_of_an_exit_is_told(script: MakeScript) -> None:
    body = """
try:
    raise KeyError("no such override")
except KeyError:
    sys.exit(1)
"""
    with pytest.raises(CaptureError, match=r"sys.exit\(1\).*KeyError.*no such override") as error:
        wavecast.run_script(script(body))
    assert error.value.script_code == 1


def test_processes_that_share_a_model_of_the_gpu_run_here(script: MakeScript) -> None:
    body = """
import torch.multiprocessing as mp
def work(model):
    while True:
        update()
if __name__ == "__main__":
    model.share_memory()
    processes = [mp.Process(target=work, args=(model,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""
    assert linears(wavecast.run_script(script(body))) == 1


def test_kernels_that_are_built_at_run_time_are_refused_with_the_reason(script: MakeScript) -> None:
    body = "torch.cuda._compile_kernel('__global__ void f() {}', 'f')\n"
    with pytest.raises(CaptureError, match=r"builds a CUDA kernel from source at train.py:11"):
        wavecast.run_script(script(body))


def test_slow_batches_are_not_loaded_for_ever(
    script: MakeScript,
    run_here: Callable[..., wavecast.ScriptRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "LONGEST_LOADING_S", 0.0)
    body = """
import time
from torch.utils.data import DataLoader, Dataset
loaded = []
class Slow(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        loaded.append(i)
        assert len(loaded) <= 4
        time.sleep(0.01)
        return torch.zeros(32)
while True:
    for x in DataLoader(Slow(), batch_size=4):
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()
"""
    run = run_here(script(body))  # in this process
    assert run.trace.samples == 4
    assert any("slow batches" in text for text in run.left_out)
    assert run.loading is not None
    assert run.loading.seconds >= 0.04  # of the batch that was loaded


@pytest.mark.parametrize(
    ("framework", "message"),
    [("jax", "jitted function.*trace_jax"), ("tensorflow", "TensorFlow.*KERAS_BACKEND=jax")],
)
def test_a_script_of_another_framework_is_told_the_way(
    framework: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    stand_in = f"import sys, types\nsys.modules[{framework!r}] = types.ModuleType({framework!r})\n"
    path.write_text(f"{stand_in}import {framework}\nfor step in range(3):\n    pass\n")
    with pytest.raises(CaptureError, match=message):
        wavecast.run_script(path)


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_library_that_compiles_is_imported_once_in_a_process(
    is_followed: bool, script: MakeScript
) -> None:
    """Libraries register ops with torch, and C++ modules crash when they are imported again."""
    library = """
import torch
assert not hasattr(torch, "registered"), "imported again"
torch.registered = True
def prepare(model):
    return torch.compile(model)
"""
    Path("library.py").write_text(library)
    body = "import library\nmodel = library.prepare(model)\nwhile True:\n    update()\n"
    if not is_followed:
        body = (
            """
from wavecast.frameworks.pytorch.compiled import compiling
result = compiling.GraphRun._result
compiling.GraphRun._result = lambda run, *about: (
    result(run, *about) if run._is_forward else {}["buf7"]
)
"""
            + body
        )
    run = wavecast.run_script(script(body))
    assert ("not compiled" not in run.holds) == is_followed
    notes = [note for note in run.trace.notes if "could not be followed (KeyError: 'buf7')" in note]
    assert len(notes) == (not is_followed)


def test_a_speedrun_is_compiled_and_its_window_closes_blocks() -> None:
    """Muon's compiled function meets matrices of several shapes; the mask reads documents."""
    length, width, layers, window = 2048, 256, 2, 384
    script = Path(__file__).parents[3] / "scripts" / "speedrun.py"
    run = wavecast.run_script(script, [str(n) for n in (length, width, layers, window)])
    assert run.holds == "1 backward pass, mostly bfloat16, compiled"
    # The function around the blocks, since flex_attention breaks the graph in their loop.
    assert eager_code(run.trace) == "1 part could not be compiled: see the notes"
    assert any("torch.compile leaves forward at" in note for note in run.trace.notes)
    matrices = Counter(c.op.inputs[0].shape for c in run.trace if c.op.name == "aten.mm")
    assert all(matrices[width, factor * width] >= 5 * layers for factor in (1, 3, 4))
    blocks, wide = length // 128, window // 128
    open_blocks = sum(min(row + 1, wide + 1) for row in range(blocks))
    pairs = {c.op.attr("attended_pairs") for c in run.trace if c.op.base == "flex_attention"}
    assert pairs == {open_blocks * 128 * 128}


def test_a_whole_module_may_be_asked_to_be_one_graph(script: MakeScript) -> None:
    body = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 8)
    def forward(self, x):
        y = self.linear(x)
        return torch.where(torch.isfinite(y) & y.isfinite(), y, 0.0)
net = Net().cuda()
model = torch.compile(net, fullgraph=True)
optimizer = torch.optim.Adam(net.parameters())
"""
    run = wavecast.run_script(script(body + UPDATES))
    assert "not compiled" not in run.holds
    assert not any("graph break" in note for note in run.trace.notes)


def test_a_script_that_only_has_the_word_compile_gets_no_note_about_it(script: MakeScript) -> None:
    body = """
import re
pattern = re.compile("a")  # this does not compile a model
if len(sys.argv) > 1:
    model = torch.compile(model)
"""
    run = wavecast.run_script(script(body + UPDATES))
    assert not any("compile" in note for note in run.trace.notes)


def test_what_scripts_do_beside_training_works(script: MakeScript) -> None:
    body = """
import pickle
accelerator = torch.accelerator
accelerator.set_device_index(0)
with accelerator.device_index(0):
    accelerator.empty_cache()
assert accelerator.memory_allocated() == accelerator.max_memory_reserved() == 0
assert accelerator.device_count() == 1
model.share_memory()
copied = pickle.loads(pickle.dumps(model))
assert copied.weight.is_cuda and isinstance(copied.weight, nn.Parameter)
pickle.dumps(optimizer.state_dict())
torch.cuda.initial_seed()
torch.cuda.memory._record_memory_history(max_entries=10)
torch.cuda.memory._dump_snapshot("snapshot.pickle")
chance = torch.distributions.Bernoulli(torch.tensor([0.7]))
torch.equal(chance.sample(), torch.ones(1))  # as a network of stochastic depth asks
x = torch.randn(4, 32).cuda()
torch.equal(model(x), model(x)), torch.allclose(x, x), x[x > 0], torch.unique(x.long())
"""
    assert linears(wavecast.run_script(script(body + UPDATES))) == 1


def test_a_convolutional_network_may_be_traced_to_torchscript(script: MakeScript) -> None:
    body = """
images = torch.randn(1, 3, 32, 32).cuda()
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(2), nn.Flatten())
model = nn.Sequential(net, model).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
traced = torch.jit.trace(model, images, strict=True)
graph = traced.graph  # as TensorBoard's add_graph reads it
torch._C._jit_pass_inline(graph)
assert not [*graph.inputs(), *graph.nodes(), *graph.outputs()]
assert traced.state_dict().keys() == model.state_dict().keys()
traced.save("model.pt")
assert torch.jit.script(net)[0].weight is net[0].weight and isinstance(traced, nn.Sequential)
assert torch.jit.trace(torch.add, (images, images)) is torch.add
while True:
    optimizer.zero_grad()
    traced(torch.randn(4, 3, 32, 32).cuda()).sum().backward()
    optimizer.step()
"""
    run = wavecast.run_script(script(body))
    assert "aten.convolution" in {call.op.base for call in run.trace}
    assert linears(run) == 1


def test_looking_for_the_length_keeps_no_tensor_alive(script: MakeScript) -> None:
    body = """
def main():
    NAME = 3
    for epoch in range(NAME):
        for _ in range(5):
            optimizer.zero_grad()
            big = model(torch.randn(4096, 32).cuda())
            big.sum().backward()
            optimizer.step()
            del big
main()
"""
    named = wavecast.run_script(script(body.replace("NAME", "epochs")))
    other = wavecast.run_script(script(body.replace("NAME", "rounds"), name="other.py"))
    assert named.length is not None
    assert (named.length.epochs, named.length.steps) == (3, None)  # no loader counts its batches
    assert other.length is None
    peaks = {wavecast.memory(run.largest or run.trace).peak_bytes for run in (named, other)}
    assert len(peaks) == 1


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_graph_network_with_a_sparse_matrix_is_answered(layout: str, script: MakeScript) -> None:
    run = wavecast.run_script(
        script(
            f"""
import torch

edges = torch.randint(0, 50, (2, 200))
graph = torch.sparse_coo_tensor(edges, torch.ones(200), (50, 50)).coalesce()
degrees = torch.sparse.sum(graph, dim=1).to_dense().clamp(min=1)
weights = graph.values() / degrees[graph.indices()[0]]
graph = torch.sparse_coo_tensor(graph.indices(), weights, graph.shape)
graph = graph.to_sparse_{layout}().cuda()
layer = torch.nn.Linear(8, 4).cuda()
features = torch.randn(50, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    torch.spmm(graph, layer(features)).sum().backward()
    optimizer.step()
"""
        )
    )
    matmuls = [call.op for call in run.trace.calls if call.op.base == "wavecast.sparse_mm"]
    assert [op.attr("layout") for op in matmuls] == [layout, {"coo": "coo", "csr": "csc"}[layout]]


def test_a_file_is_mapped_also_one_that_the_script_has_written(script: MakeScript) -> None:
    body = """
import numpy as np
np.arange(100, dtype=np.int32).tofile("new.bin")
for name in ("real.bin", "new.bin"):
    tokens = torch.from_file(name, size=100, dtype=torch.int32)
    assert tokens[7].item() == 7 and tokens[:8].cuda().is_cuda
assert torch.hann_window(4)[2].item() == 1.0
"""
    path = script(body + UPDATES)
    Path("real.bin").write_bytes(torch.arange(100, dtype=torch.int32).numpy().tobytes())
    assert linears(wavecast.run_script(path)) == 1
    assert not Path("new.bin").exists()


def test_tf32_of_the_trainer_is_taken(script: MakeScript) -> None:
    pytest.importorskip("transformers")
    body = """
from transformers import TrainingArguments
TrainingArguments(output_dir="out", tf32=True, report_to="none")
"""
    run = wavecast.run_script(script(body + UPDATES))
    [linear] = [call.op for call in run.trace if call.op.base == "aten.addmm"]
    assert ("precision", "tf32") in linear.attrs
