"""User code that puts tensors on the GPU, asks for their device, and copies to and fro."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import Step, calls_of, minimize, mlp, names, on_gpu
from torch import nn

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import TensorSpec


def _cuda() -> tuple[Any, Any]:
    return mlp().cuda(), torch.randn(4, 8).cuda()


def _to_other() -> tuple[Any, Any]:
    model = mlp().cuda()
    return model, torch.randn(4, 8).to(next(model.parameters()))


def _factory() -> tuple[Any, Any]:
    layers = nn.Linear(8, 16, device="cuda"), nn.ReLU(), nn.Linear(16, 4, device="cuda")
    return nn.Sequential(*layers), torch.randn(4, 8, device="cuda")


def _context() -> tuple[Any, Any]:
    with torch.device("cuda"):
        return mlp(), torch.randn(4, 8)


def _default_device() -> tuple[Any, Any]:
    torch.set_default_device("cuda")
    return mlp(), torch.randn(4, 8)


def _chosen_if_available() -> tuple[Any, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return mlp().to(device), torch.randn(4, 8, device=device)


def _zeros() -> Any:
    return np.zeros((4, 8), "float32")


WAYS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "cuda": _cuda,
    "to a string": lambda: (mlp().to("cuda"), torch.randn(4, 8).to("cuda:0")),
    "to a device": lambda: (
        mlp().to(device="cuda"),
        torch.randn(4, 8).to(device=torch.device("cuda", 0)),
    ),
    "to another tensor's": _to_other,
    "factory": _factory,
    "context": _context,
    "default device": _default_device,
    "from data": lambda: (mlp().cuda(), torch.tensor([[0.0] * 8] * 4, device="cuda")),
    "from numpy": lambda: (mlp().cuda(), torch.from_numpy(_zeros()).cuda()),
    "as tensor": lambda: (mlp().cuda(), torch.as_tensor(_zeros(), device="cuda")),
    "like": lambda: (mlp().cuda(), torch.zeros_like(torch.empty(4, 8, device="cuda"))),
    "legacy": lambda: (mlp().cuda(), torch.cuda.FloatTensor(4, 8).fill_(1.0)),
    "chosen if available": _chosen_if_available,
}


def _step_of(build: Callable[[], tuple[Any, Any]]) -> Callable[[], Step]:
    def make_step() -> Step:
        model, x = build()
        assert x.is_cuda
        assert not x.is_cpu
        assert x.device == torch.device("cuda", 0)
        assert x.get_device() == 0
        assert all(p.is_cuda for p in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return minimize(lambda: model(x).sum(), optimizer)

    return make_step


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_the_gpu_gives_the_same_trace(way: str) -> None:
    trace = capture(_step_of(WAYS[way]))
    assert trace.calls == capture(_step_of(_cuda)).calls
    assert {t.device for c in trace for t in c.op.inputs} == {"cuda"}


@pytest.mark.parametrize("fill", [torch.ones, torch.zeros, torch.empty])
def test_a_model_made_smaller_on_the_host_is_small_on_the_gpu(fill: Callable[..., Any]) -> None:
    def build() -> Step:
        net = nn.Linear(16, 16, bias=False)
        net.scale = nn.Parameter(fill(16))  # small, and its values are known
        net = net.to(torch.bfloat16).cuda()
        assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
        source = torch.randn(4, 16, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(net.parameters())
        return minimize(lambda: (net(source) * net.scale).sum(), optimizer)

    (scaled, *_) = calls_of(capture(build), "aten.mul")
    assert {t.dtype for t in (*scaled.op.inputs, *scaled.op.outputs)} == {"bfloat16"}


def test_copies_to_the_gpu_are_recorded_with_what_they_copy() -> None:
    def make_step() -> Step:
        model, batch = mlp().cuda(), torch.randn(4, 8).pin_memory()
        return lambda: model(batch.cuda(non_blocking=True)).sum().backward()

    copy = capture(make_step).calls[0]
    assert copy.op.name == "aten._to_copy"
    assert copy.op.inputs == (TensorSpec((4, 8), "float32", device="cpu"),)
    assert copy.op.outputs == (TensorSpec((4, 8), "float32"),)
    assert copy.op.attr("pin_memory")
    assert not copy.syncs


def test_a_copy_of_memory_that_is_not_pinned_waits_even_if_it_should_not() -> None:
    def make_step() -> Step:
        model, batch = mlp().cuda(), torch.randn(4, 8)
        return lambda: model(batch.cuda(non_blocking=True)).sum().backward()

    copy = capture(make_step).calls[0]
    assert not copy.op.attr("pin_memory")
    assert copy.syncs


def test_a_copy_to_the_host_need_not_wait() -> None:
    def make_step() -> Step:
        model, batch = mlp().cuda(), torch.randn(4, 8, device="cuda")
        return lambda: model(batch).to("cpu", non_blocking=True)

    *_, last = capture(make_step).calls
    assert last.op.outputs[0].device == "cpu"
    assert not last.syncs


def test_a_blocking_copy_waits() -> None:
    def make_step() -> Step:
        model, batch = mlp().cuda(), torch.randn(4, 8)
        return lambda: model(batch.to("cuda")).sum().cpu()

    first, *_, last = capture(make_step).calls
    assert first.syncs
    assert last.op.name == "aten._to_copy"
    assert last.syncs


def test_what_the_host_computes_is_left_out() -> None:
    def make_step() -> Step:
        weight, batch = torch.ones(8, device="cuda"), torch.randn(4, 8)
        return lambda: (batch * 2 + 1).cuda() @ weight

    assert names(capture(make_step)) == {"aten._to_copy": 1, "aten.mv": 1}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"pin_memory": True}], ids=str)
def test_a_data_loader_inside_the_step_works(options: dict[str, Any]) -> None:
    def make_step() -> Step:
        data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.zeros(16).long())
        loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, **options)
        model = mlp().cuda()

        def step() -> None:
            for x, y in loader:
                nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()

        return step

    assert names(capture(make_step))["aten._to_copy"] == 8


def test_a_model_built_before_tracing_is_traced_and_left_as_it_was() -> None:
    model = mlp()
    weights = list(model.parameters())
    values = [w.detach().clone() for w in weights]

    def make_step() -> Step:
        model.cuda()
        x = torch.randn(4, 8, device="cuda")
        return minimize(lambda: model(x).sum(), torch.optim.SGD(model.parameters(), lr=0.1))

    assert capture(make_step).calls == capture(_step_of(_cuda)).calls
    assert all(a is b for a, b in zip(weights, model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(weights, values, strict=True))
    assert all(w.grad is None and not w.__dict__ for w in weights)
    model(torch.randn(4, 8)).sum().backward()


def test_an_optimizer_built_before_tracing_updates_the_model_that_is_traced() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def make_step() -> Step:
        model.to("cuda")
        x = torch.randn(4, 8, device="cuda")
        return minimize(lambda: model(x).sum(), optimizer)

    assert capture(make_step).calls == capture(_step_of(_cuda)).calls
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    assert not optimizer.state


def test_tied_weights_built_before_tracing_stay_tied() -> None:
    embedding, head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    tied = nn.Sequential(embedding, head)

    def make_step() -> Step:
        tied.cuda()
        assert head.weight is embedding.weight
        tokens = torch.zeros(4, dtype=torch.long, device="cuda")
        return lambda: tied(tokens).sum().backward()

    capture(make_step)
    assert head.weight is embedding.weight


def test_tensors_made_before_tracing_can_be_put_on_the_gpu() -> None:
    data, mean = torch.randn(4, 8), torch.tensor(0.5)

    def make_step() -> Step:
        model = mlp().cuda()
        return lambda: model(data.cuda() - mean).sum().backward()

    assert names(capture(make_step))["aten._to_copy"] == 1
    assert type(data) is torch.Tensor


def test_a_model_built_on_no_device_can_be_put_on_the_gpu() -> None:
    def build() -> tuple[Any, Any]:
        with torch.device("meta"):
            model = mlp()
        return model.to_empty(device="cuda"), torch.randn(4, 8, device="cuda")

    assert capture(_step_of(build)) == capture(_step_of(_cuda))


def test_weights_loaded_from_a_file_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    torch.save(mlp().state_dict(), file)

    def build() -> tuple[Any, Any]:
        model = mlp().cuda()
        model.load_state_dict(torch.load(file, map_location="cuda"))
        return model, torch.randn(4, 8, device="cuda")

    assert capture(_step_of(build)).calls == capture(_step_of(_cuda)).calls


def test_a_copy_of_a_model_is_where_the_model_is() -> None:
    def build() -> tuple[Any, Any]:
        return copy.deepcopy(mlp().cuda()), torch.randn(4, 8, device="cuda")

    assert capture(_step_of(build)).calls == capture(_step_of(_cuda)).calls


def test_a_model_left_on_the_host_is_an_error_that_says_so() -> None:
    def make_step() -> Step:
        model, x = mlp(), torch.randn(4, 8, device="cuda")
        return lambda: model(x).sum().backward()

    with pytest.raises(CaptureError, match=r"test_placement\.py:\d+.*is on the host"):
        capture(make_step)


def test_an_optimizer_of_a_model_that_never_moved_is_an_error() -> None:
    model, other = mlp(), mlp()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)

    def make_step() -> Step:
        model.cuda()
        x = torch.randn(4, 8, device="cuda")
        return minimize(lambda: model(x).sum(), optimizer)

    with pytest.raises(CaptureError, match="never moved to the GPU"):
        capture(make_step)


def test_reading_arrays_back_waits_and_assumes_values() -> None:
    def make_step() -> Step:
        model, x = mlp().cuda(), torch.randn(4, 8, device="cuda")

        def step() -> None:
            out = model(x).detach().cpu()
            assert out.numpy().shape == (4, 4)
            assert np.asarray(out).dtype == np.float32
            assert len(model(x).tolist()) == 4

        return step

    trace = capture(make_step)
    assert [c.syncs for c in calls_of(trace, "aten._to_copy")] == [True, True]
    assert any(note.startswith("the step reads a GPU value at ") for note in trace.notes)


def test_a_number_shown_is_read_back() -> None:
    trace = capture(on_gpu(lambda x: f"loss {x.sum():.3f}"))
    assert [c.op.base for c in trace if c.syncs] == ["aten._local_scalar_dense"]


def test_known_values_are_used_not_assumed() -> None:
    def make_step() -> Step:
        x = torch.randn(4, 8, device="cuda")
        rates = [r.item() for r in torch.linspace(0, 0.2, 3)]
        widths = (torch.arange(3, dtype=torch.float32) * 8 + 8).int().tolist()
        assert rates == pytest.approx([0.0, 0.1, 0.2])
        assert widths == [8, 16, 24]
        lengths = torch.tensor([3, 1, 2], device="cuda")

        def step() -> None:
            for length in lengths.tolist():
                (x[:length] + 1).sum()

        return step

    trace = capture(make_step)
    assert [c.op.outputs[0].shape[0] for c in calls_of(trace, "aten.add")] == [3, 1, 2]
    assert trace.notes == ()


def _zeros_layer() -> Any:
    """A layer whose bias has known values: zeros, as GPT-2's at the start."""
    layer = nn.Linear(8, 4)
    layer.bias = nn.Parameter(torch.zeros(4))
    return layer


def _change_module(layer: Any) -> Any:
    return layer.to(torch.bfloat16).cuda()


def _change_each(layer: Any) -> Any:
    for parameter in layer.parameters():
        parameter.data = parameter.data.bfloat16()
        parameter.data = parameter.data.cuda()
    return layer


@pytest.mark.parametrize("change", [_change_module, _change_each])
def test_a_parameter_whose_dtype_changed_keeps_the_new_one(change: Callable[[Any], Any]) -> None:
    def make_step() -> Step:
        layer = change(_zeros_layer())
        x = torch.randn(2, 8, device="cuda", dtype=torch.bfloat16)
        return lambda: layer(x).sum().backward()

    [product] = calls_of(capture(make_step), "aten.addmm")
    assert {each.dtype for each in (*product.op.inputs, *product.op.outputs)} == {"bfloat16"}


@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: a @ b.bfloat16(),
        lambda a, b: torch.addmm(torch.zeros(4, device="cuda").half(), a, b),
        lambda a, b: torch.bmm(a[None], b[None].half()),
        lambda a, b: nn.functional.conv1d(a[None], torch.ones(3, 4, 1, device="cuda").half()),
    ],
)
def test_products_of_mixed_dtypes_are_refused_as_a_gpu_does(product: Callable[..., Any]) -> None:
    def make_step() -> Step:
        a, b = torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda")
        return lambda: product(a, b)

    with pytest.raises(CaptureError, match="which a GPU refuses"):
        capture(make_step)


# GPUs that are named by a number alone.


NUMBERS: dict[str, Callable[[], Any]] = {
    "a device": lambda: torch.randn(2, 8, device=torch.device(0)),
    "a factory": lambda: torch.randn(2, 8, device=0),
    "like another tensor": lambda: torch.zeros_like(torch.randn(2, 8), device=0),
    "a tensor that is moved": lambda: torch.randn(2, 8).to(0),
    "a tensor that is moved by keyword": lambda: torch.randn(2, 8).to(
        device=0, dtype=torch.float32
    ),
    "a fake tensor that is moved": lambda: torch.randn(2, 8, device="cuda").to(0),
    "from data": lambda: torch.tensor([[1.0] * 8] * 2, device=0),
}


@pytest.mark.parametrize("way", NUMBERS)
def test_a_number_is_the_gpu(way: str) -> None:
    def make_step() -> Step:
        layer = torch.nn.Linear(8, 4).to(0)
        inputs = NUMBERS[way]()
        assert inputs.device == torch.device("cuda", 0)
        return lambda: layer(inputs).sum().backward()

    assert len(capture(make_step))


def test_devices_are_still_devices() -> None:
    def make_step() -> Step:
        for device in (torch.device(0), torch.device("cuda:0"), torch.device("cuda", 0)):
            assert isinstance(device, torch.device)
            assert device == torch.randn(1, device="cuda").device
        assert not isinstance("cuda", torch.device)
        with torch.device(0):
            layer = torch.nn.Linear(8, 4)
        return lambda: layer(torch.randn(2, 8, device=0))

    assert len(capture(make_step))


def test_another_number_is_another_gpu() -> None:
    with pytest.raises(CaptureError, match="cuda:1"):
        capture(lambda: torch.nn.Linear(8, 4).to(1))
