"""Tensors on the host have real values: computed, drawn, read from files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import Step, mlp
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Trace


def run_on_host(work: Callable[[], Any]) -> Any:
    """What a function returns in the recorded step, which also runs one op on the GPU."""
    results = []

    def make_step() -> Step:
        x = torch.ones(2, device="cuda")

        def step() -> None:
            results.append(work())
            x.add(1)

        return step

    trace = capture(make_step)
    assert not trace.notes, trace.notes
    assert [call.op.base for call in trace.calls] == ["aten.add"]
    return results[-1]


def test_random_numbers_are_drawn() -> None:
    offsets = run_on_host(lambda: torch.randint(1000, (64,)).tolist())
    assert len(set(offsets)) > 1
    assert all(0 <= n < 1000 for n in offsets)
    assert sorted(run_on_host(lambda: torch.randperm(100_000).tolist())) == list(range(100_000))
    assert 3 <= run_on_host(lambda: torch.empty(1).uniform_(3.0, 4.0).item()) <= 4
    assert run_on_host(lambda: bool((torch.rand(100) < 2).all())) is True


def test_draws_follow_the_seed_and_leave_it_as_it_was() -> None:
    def draw() -> Any:
        torch.manual_seed(3)
        return torch.rand(4).tolist()

    state = torch.get_rng_state()
    assert run_on_host(draw) == run_on_host(draw)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("work", "value"),
    [
        (lambda: torch.arange(5).pow(2).sum().item(), 30),
        (lambda: torch.tensor([3, 1, 2]).sort().values.tolist(), [1, 2, 3]),
        (lambda: torch.tensor([1, 1, 2]).unique().tolist(), [1, 2]),
        (lambda: torch.tensor([0.0, 1.0, 2.0]).nonzero().flatten().tolist(), [1, 2]),
        (lambda: F.one_hot(torch.tensor([0, 2]), 3).tolist(), [[1, 0, 0], [0, 0, 1]]),
        (lambda: torch.ones(3, 3).tril().sum().item(), 6.0),
        (lambda: torch.from_numpy(np.arange(3)).add(1).numpy().tolist(), [1, 2, 3]),
        (lambda: torch.linspace(0, 1, 3)[1].item(), 0.5),
        (lambda: torch.linalg.norm(torch.tensor([3.0, 4.0])).item(), 5.0),
        (lambda: [len(part) for part in torch.arange(10).split(4)], [4, 4, 2]),
        (lambda: torch.equal(torch.ones(2), torch.ones(2)), True),
        (lambda: torch.masked_select(torch.arange(4), torch.arange(4) > 1).tolist(), [2, 3]),
        (
            lambda: torch.cat([torch.arange(2), torch.zeros(1, dtype=torch.long)]).tolist(),
            [0, 1, 0],
        ),
    ],
)
def test_ops_on_the_host_are_computed(work: Callable[[], Any], value: Any) -> None:
    assert run_on_host(work) == value


def test_memory_that_is_filled_bit_by_bit_has_its_values() -> None:
    def fill() -> Any:
        losses = torch.zeros(3)
        unset = torch.empty(2)
        for i in range(3):
            losses[i] = 2.0 * i
        unset[0], unset[1] = losses[1], 7
        return losses.mean().item(), unset.tolist()

    assert run_on_host(fill) == (2.0, [2.0, 7.0])


def test_an_array_shares_the_memory_of_its_tensor() -> None:
    def share() -> Any:
        tensor = torch.empty(3)
        tensor.numpy()[:] = [1, 2, 3]
        return tensor.tolist()

    assert run_on_host(share) == [1.0, 2.0, 3.0]


def test_samplers_and_loaders_give_real_batches() -> None:
    labels = torch.arange(100)

    def load() -> Any:
        data = TensorDataset(torch.randn(100, 4), labels)
        shuffled = [n for _, y in DataLoader(data, batch_size=10, shuffle=True) for n in y.tolist()]
        weights = [0.0] * 99 + [1.0]
        sampler = WeightedRandomSampler(weights, 20)
        drawn = [n for _, y in DataLoader(data, 10, sampler=sampler) for n in y.tolist()]
        return shuffled, drawn

    shuffled, drawn = run_on_host(load)
    assert sorted(shuffled) == list(range(100))
    assert shuffled != list(range(100))
    assert drawn == [99] * 20


def test_the_batch_of_nano_gpt_has_its_length(tmp_path: Path) -> None:
    file = tmp_path / "train.bin"
    np.arange(5000, dtype=np.uint16).tofile(file)
    block, batch = 64, 4

    def get_batch() -> tuple[Any, Any]:
        data = np.memmap(file, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - block, (batch,))
        x = torch.stack([torch.from_numpy((data[i : i + block]).astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy((data[i + 1 : i + 1 + block]).astype(np.int64)) for i in ix]
        )
        return (
            x.pin_memory().to("cuda", non_blocking=True),
            y.pin_memory().to("cuda", non_blocking=True),
        )

    def make_step() -> Step:
        model = nn.Sequential(nn.Embedding(5000, 16), nn.Linear(16, 5000)).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            x, y = get_batch()
            F.cross_entropy(model(x).view(-1, 5000), y.view(-1)).backward()
            optimizer.step()

        return step

    trace = capture(make_step)
    products = [call.op for call in trace.calls if call.op.base == "aten.addmm"]
    assert products[0].inputs[1].shape == (batch * block, 16)
    copies = [call.op for call in trace.calls if call.op.base == "aten._to_copy"]
    assert [op.outputs[0].shape for op in copies] == [(batch, block)] * 2
    assert not trace.notes


def _branching(make: Callable[[], Any]) -> Trace:
    """The trace of a step that adds if the mean of a tensor is above 10, and else multiplies."""

    def make_step() -> Step:
        x = torch.ones(2, device="cuda")
        return lambda: x + 1 if make().mean().item() > 10 else x * 2

    return capture(make_step)


def test_what_comes_from_the_gpu_is_not_known() -> None:
    def copied_into() -> Any:
        buffer = torch.full((4,), 20.0)
        buffer.copy_(torch.ones(4, device="cuda"))
        return buffer

    def partly_written() -> Any:
        buffer = torch.full((4,), 20.0)
        buffer[1] = torch.ones((), device="cuda")
        return buffer

    for make in (copied_into, partly_written):
        trace = _branching(make)
        assert trace.calls[-1].op.base == "aten.mul"  # 1.0 was assumed
        assert any("was assumed" in note for note in trace.notes)


def test_what_is_overwritten_is_known_again() -> None:
    def overwritten() -> Any:
        buffer = torch.zeros(4)
        buffer.copy_(torch.ones(4, device="cuda"))
        return buffer.fill_(20.0)

    trace = _branching(overwritten)
    assert trace.calls[-1].op.base == "aten.add"
    assert not trace.notes


def test_weights_take_no_memory_and_no_time() -> None:
    def make_step() -> Step:
        model = nn.Linear(1 << 20, 1 << 16)  # 256 GiB
        nn.init.trunc_normal_(model.weight)
        model.cuda()
        x = torch.randn(1, 1 << 20).cuda()
        return lambda: model(x)

    assert capture(make_step).calls[-1].op.base == "aten.addmm"


def test_parameters_keep_their_identity_when_a_model_moves() -> None:
    def make_step() -> Step:
        model = mlp()
        model.scale = nn.Parameter(torch.ones(4))
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        model.cuda()
        x = torch.randn(2, 8).cuda()
        assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))

        def step() -> None:
            (model(x) * model.scale).sum().backward()
            assert all(p.grad is not None and p.is_cuda for p in parameters)
            optimizer.step()

        return step

    assert capture(make_step).calls[-1].op.base.startswith("aten._foreach")


@pytest.mark.parametrize(
    "use",
    [
        lambda model, gpu: model(torch.randn(4, 8)),
        lambda model, gpu: model(torch.randn(4096, 4096)[:4, :8]),
        lambda model, gpu: gpu + torch.arange(8),
        lambda model, gpu: gpu + torch.from_numpy(np.zeros(8)),
        lambda model, gpu: gpu + gpu.cpu(),
        lambda model, gpu: torch.cat([gpu, torch.zeros(4, 8)]),
    ],
)
def test_a_host_tensor_among_gpu_tensors_fails_as_on_a_gpu(use: Callable[..., Any]) -> None:
    def make_step() -> Step:
        model, gpu = mlp().cuda(), torch.ones(4, 8, device="cuda")
        return lambda: use(model, gpu)

    with pytest.raises(CaptureError, match=r"test_host_values\.py:\d+ .* is on the host; move it"):
        capture(make_step)


def test_numbers_of_the_host_go_with_gpu_tensors() -> None:
    def make_step() -> Step:
        gpu = torch.ones(4, 8, device="cuda")
        return lambda: (gpu * torch.tensor(2.0))[torch.tensor([0, 1])]

    assert [call.op.base for call in capture(make_step).calls] == ["aten.mul", "aten.index"]


def test_a_mask_written_on_the_gpu_stays_known() -> None:
    def make_step() -> Step:
        mask = torch.ones(4, 8, dtype=torch.long, device="cuda")
        mask[:, 5:] = 0
        mask[0] = torch.zeros(8, dtype=torch.long)
        x = torch.ones(2, device="cuda")
        return lambda: x * 2 if mask.bool().all() or mask.sum().item() != 15 else x + 1

    trace = capture(make_step)
    assert trace.calls[-1].op.base == "aten.add"
    assert not trace.notes


def test_data_loaded_from_a_file_has_its_values(tmp_path: Path) -> None:
    file = tmp_path / "data.pt"
    torch.save({"lengths": torch.tensor([3, 5]), "images": torch.randn(4, 8)}, file)
    assert run_on_host(lambda: torch.load(file)["lengths"].tolist()) == [3, 5]


def test_numbers_that_python_draws_are_as_ever() -> None:
    drawn = run_on_host(lambda: [random.random() for _ in range(3)])
    assert len(set(drawn)) == 3
