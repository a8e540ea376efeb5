"""Layers and losses: the ops CUDA runs for them, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Step, calls_of, forward, minimize, names, training
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from wavecast import ops
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Phase, Role, Trace


@pytest.mark.parametrize(
    ("make", "shape", "expected"),
    [
        (lambda: nn.Conv1d(4, 8, 3), (2, 4, 16), {"groups": 1, "transposed": False}),
        (lambda: nn.Conv2d(4, 8, 3, 2, 1), (2, 4, 16, 16), {"stride": (2, 2), "padding": (1, 1)}),
        (lambda: nn.Conv3d(4, 8, 3), (2, 4, 8, 8, 8), {"dilation": (1, 1, 1)}),
        (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 16, 16), {"groups": 4}),
        (lambda: nn.ConvTranspose2d(4, 8, 4, 2, 1), (2, 4, 8, 8), {"transposed": True}),
        (lambda: nn.ConvTranspose1d(4, 8, 4), (2, 4, 8), {"transposed": True}),
        (lambda: nn.ConvTranspose3d(4, 8, 2), (2, 4, 4, 4, 4), {"transposed": True}),
    ],
    ids=["1d", "2d", "3d", "depthwise", "transposed 2d", "transposed 1d", "transposed 3d"],
)
def test_convolutions_keep_what_decides_their_time(
    make: Callable[[], Any], shape: tuple[int, ...], expected: dict[str, Any]
) -> None:
    trace = capture(training(make, shape))
    (call,) = calls_of(trace, "aten.convolution")
    assert {name: call.op.attr(name) for name in expected} == expected
    assert names(trace, Phase.BACKWARD)["aten.convolution_backward"] == 1


def test_channels_last_is_kept_through_the_step() -> None:
    def make_step() -> Step:
        model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
        model = model.cuda().to(memory_format=torch.channels_last)
        x = torch.randn(2, 8, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        return minimize(lambda: model(x).sum(), torch.optim.SGD(model.parameters(), lr=0.1))

    trace = capture(make_step)
    (convolution,) = calls_of(trace, "aten.convolution")
    assert all(t.channels_last for t in convolution.op.inputs[:2])
    assert convolution.op.outputs[0].channels_last
    assert calls_of(trace, "aten.cudnn_batch_norm")[0].op.outputs[0].channels_last


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "op"),
    [
        (lambda: nn.BatchNorm2d(8), (2, 8, 4, 4), None, "cudnn_batch_norm"),
        (lambda: nn.BatchNorm2d(8), (2, 8, 4, 4), torch.float16, "cudnn_batch_norm"),
        (lambda: nn.BatchNorm1d(8), (4, 8), None, "native_batch_norm"),
        (lambda: nn.BatchNorm2d(8, affine=False), (2, 8, 4, 4), None, "native_batch_norm"),
        (lambda: nn.InstanceNorm2d(8, affine=True), (2, 8, 4, 4), None, "cudnn_batch_norm"),
        (lambda: nn.GroupNorm(2, 8), (2, 8, 4, 4), None, "native_group_norm"),
        (lambda: nn.LayerNorm(8), (4, 8), None, "native_layer_norm"),
        (lambda: nn.RMSNorm(8), (4, 8), None, "_fused_rms_norm"),
    ],
)
def test_normalisations(
    make: Callable[[], Any], shape: tuple[int, ...], dtype: Any, op: str
) -> None:
    trace = capture(training(lambda: nn.Sequential(nn.PReLU(), make()), shape, dtype=dtype))
    assert names(trace, Phase.FORWARD)[f"aten.{op}"] == 1
    assert names(trace, Phase.BACKWARD)[f"aten.{op}_backward"] == 1


def test_batch_norm_of_bfloat16_is_torchs_own() -> None:
    model = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)]
    trace = capture(training(lambda: nn.Sequential(*model), (2, 3, 8, 8), dtype=torch.bfloat16))
    (call,) = calls_of(trace, "aten.native_batch_norm")
    assert call.op.inputs[0].dtype == "bfloat16"
    assert call.op.outputs[1].dtype == "float32"


def test_synchronised_batch_norm_of_one_process_is_batch_norm() -> None:
    trace = capture(training(lambda: nn.SyncBatchNorm(8), (2, 8, 4, 4)))
    assert names(trace)["aten.cudnn_batch_norm"] == 1


def test_dropout_is_one_kernel_each_way() -> None:
    trace = capture(training(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))))
    assert names(trace, Phase.FORWARD)["aten.native_dropout"] == 1
    assert names(trace, Phase.BACKWARD)["aten.native_dropout_backward"] == 1


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode: str) -> None:
    def make_step() -> Step:
        bag = nn.EmbeddingBag(10, 4, mode=mode).cuda()
        tokens = torch.randint(0, 10, (6,), device="cuda")
        offsets = torch.tensor([0, 2, 3], device="cuda")
        optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
        return minimize(lambda: bag(tokens, offsets).sum(), optimizer)

    trace = capture(make_step)
    (call,) = calls_of(trace, "aten._embedding_bag")
    assert call.op.outputs[0].shape == (3, 4)
    assert any("embedding" in op for op in names(trace, Phase.BACKWARD))


def test_embeddings() -> None:
    def make_step() -> Step:
        table = nn.Embedding(10, 4, padding_idx=0).cuda()
        tokens = torch.randint(0, 10, (2, 6), device="cuda")
        return minimize(lambda: table(tokens).sum(), torch.optim.SGD(table.parameters(), lr=0.1))

    trace = capture(make_step)
    assert names(trace)["aten.embedding"] == 1
    assert names(trace)["aten.embedding_dense_backward"] == 1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("lengths", ["lists", "host tensors", "gpu tensors"])
def test_ctc_loss(reduction: str, lengths: str) -> None:
    def run(scores: Any) -> Any:
        targets = torch.randint(1, 5, (2, 6), device="cuda")
        inputs, outputs = ((20, 20), (6, 4))
        if lengths != "lists":
            device = "cuda" if lengths == "gpu tensors" else "cpu"
            inputs, outputs = (torch.tensor(n, device=device) for n in (inputs, outputs))
        return F.ctc_loss(scores.log_softmax(-1), targets, inputs, outputs, reduction=reduction)

    trace = forward(run, (20, 2, 5))
    (call,) = calls_of(trace, "aten._ctc_loss")
    assert call.op.outputs[1].shape == (2, 20, 13)
    assert names(trace, Phase.BACKWARD)["aten._ctc_loss_backward"] == 1
    assert trace.notes == ()


def test_ctc_loss_of_unknown_lengths_is_an_upper_bound() -> None:
    def run(scores: Any) -> Any:
        lengths = torch.randint(1, 6, (2,), device="cuda")
        targets = torch.randint(1, 5, (2, 6), device="cuda")
        return nn.CTCLoss(zero_infinity=True)(scores.log_softmax(-1), targets, lengths, lengths)

    trace = forward(run, (20, 2, 5))
    assert calls_of(trace, "aten._ctc_loss")[0].op.outputs[1].shape == (2, 20, 13)
    inputs, targets = trace.notes
    assert inputs.startswith("the lengths of CTC inputs at tests/")
    assert inputs.endswith("depend on data; their upper bound, 20, was assumed")
    assert targets.startswith("the lengths of CTC targets at tests/")
    assert targets.endswith("depend on data; their upper bound, 6, was assumed")


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.mse_loss(x, torch.zeros_like(x)),
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)),
        lambda x: F.cross_entropy(x, torch.zeros(8, dtype=torch.long, device="cuda")),
        lambda x: F.cross_entropy(x, x.detach().softmax(1), label_smoothing=0.1),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
        lambda x: F.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"),
        lambda x: F.triplet_margin_loss(x, x + 1, x + 2),
        lambda x: F.cosine_embedding_loss(x, x + 1, torch.ones(8, device="cuda")),
        lambda x: F.gaussian_nll_loss(x, x.detach(), torch.ones(8, 8, device="cuda")),
        lambda x: F.multi_margin_loss(x, torch.zeros(8, dtype=torch.long, device="cuda")),
    ],
)
def test_losses_have_both_passes(loss: Callable[..., Any]) -> None:
    trace = forward(loss, (8, 8))
    assert names(trace, Phase.BACKWARD)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: F.interpolate(x, size=5, mode="bicubic", antialias=True),
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_max_pool2d(x, 2),
        lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.unfold(x, 3),
        lambda x: F.grid_sample(x, torch.zeros(2, 4, 4, 2, device="cuda"), align_corners=False),
        lambda x: torch.fft.rfft2(x).abs(),
        lambda x: x.cumsum(1).roll(1, 2).flip(3),
        lambda x: torch.topk(x, 2, dim=1)[0],
        lambda x: x.sort(dim=1)[0].gather(1, torch.zeros(2, 1, 8, 8, device="cuda").long()),
        lambda x: F.prelu(F.gelu(F.silu(F.mish(x))), torch.ones(1, device="cuda")),
        lambda x: torch.linalg.norm(x.flatten(1)),
        lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
    ],
)
def test_other_functions_trace_forward_and_backward(run: Callable[..., Any]) -> None:
    trace = forward(run, (2, 4, 8, 8))
    assert names(trace, Phase.BACKWARD)
    assert trace.notes == ()


@pytest.mark.parametrize("activation", ["silu", "mish"])
def test_an_activation_goes_back_in_one_op(activation: str) -> None:
    """A CPU build of torch would split it, because it has no CUDA kernel for it."""
    trace = forward(getattr(F, activation), (2, 4, 8, 8))
    backward = names(trace, Phase.BACKWARD)
    assert f"aten.{activation}_backward" in backward
    assert "aten.sigmoid" not in backward


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.Linear(32, 8)) for _ in range(2)
        )
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        x = x + 0 * self.blocks[0][0].bias.sum()  # reentrant checkpoints want an input with grad
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_runs_the_forward_again_in_the_backward(reentrant: bool) -> None:
    plain = capture(training(lambda: _Checkpointed(None)))
    trace = capture(training(lambda: _Checkpointed(reentrant)))
    assert names(trace, Phase.FORWARD)["aten.addmm"] == 4
    # Without reentrance it stops once everything needed is computed: before the last layer.
    assert names(trace, Phase.BACKWARD)["aten.addmm"] == (4 if reentrant else 2)
    assert names(plain, Phase.BACKWARD)["aten.addmm"] == 0
    assert names(trace, Phase.BACKWARD)["aten.mm"] == names(plain, Phase.BACKWARD)["aten.mm"]
    repeated = [c for c in trace if c.phase is Phase.BACKWARD and c.op.base == "aten.addmm"]
    assert {c.module for c in repeated} >= {"_Checkpointed.blocks.1.0", "_Checkpointed.blocks.0.0"}


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.embedding(x.long().abs()))


def test_tied_weights_are_counted_once() -> None:
    trace = capture(training(_Tied, (4, 6)))
    parameters = [a.nbytes for a in trace.allocations if a.role is Role.PARAMETER]
    assert parameters == [100 * 8 * 4]
    gradients = [a.nbytes for a in trace.allocations if a.role is Role.GRADIENT]
    assert gradients
    assert set(gradients) == {100 * 8 * 4}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inference_has_no_backward_and_keeps_no_activations(context: Any) -> None:
    def make_step() -> Step:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        model = nn.Sequential(model, nn.Linear(288, 4), nn.Softmax(-1)).cuda().eval()
        x = torch.randn(2, 3, 8, 8, device="cuda")
        return lambda: context()(model)(x)

    trace = capture(make_step)
    assert {c.phase for c in trace} == {Phase.FORWARD}
    assert names(trace)["aten.convolution"] == 1
    assert names(trace)["aten.addmm"] == 1
    assert all(a.freed is not None for a in trace.allocations if a.born is not None)


def test_gradients_of_gradients() -> None:
    def run(x: Any) -> Any:
        (grad,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        return grad.pow(2)

    assert names(forward(run, (8, 8)), Phase.BACKWARD)["aten.mul"] >= 2


# LSTM, GRU and RNN layers become one cuDNN op forward and one backward.


CELLS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
SHAPE = (7, 4, 8)  # steps, batch, features


def _rnn(trace: Trace) -> Any:
    (call,) = calls_of(trace, "aten._cudnn_rnn")
    return call.op


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": True},
        {"num_layers": 3},
        {"num_layers": 2, "dropout": 0.5, "bidirectional": True},
        {"bias": False},
        {"batch_first": True},
    ],
    ids=["plain", "bidirectional", "stacked", "dropout", "without bias", "batch first"],
)
def test_a_layer_is_one_op_each_way(cell: str, options: dict[str, Any]) -> None:
    trace = capture(training(lambda: CELLS[cell](8, 16, **options), SHAPE))
    assert names(trace, Phase.FORWARD)["aten._cudnn_rnn"] == 1
    assert names(trace, Phase.BACKWARD)["aten._cudnn_rnn_backward"] == 1
    op = _rnn(trace)
    width = 32 if options.get("bidirectional") else 16
    assert op.outputs[0].shape == (*SHAPE[:2], width)
    assert op.attr("num_layers") == options.get("num_layers", 1)
    assert op.attr("dropout") == options.get("dropout", 0.0)
    assert trace.notes == ()


def test_the_gradients_of_all_weights_come_out() -> None:
    trace = capture(training(lambda: nn.LSTM(8, 16, 2), SHAPE))
    (backward,) = calls_of(trace, "aten._cudnn_rnn_backward")
    shapes = [t.shape for t in backward.op.outputs]
    assert shapes[-8:] == [(64, 8), (64, 16), (64,), (64,), (64, 16), (64, 16), (64,), (64,)]


def test_a_projected_lstm_has_narrow_output() -> None:
    op = _rnn(capture(training(lambda: nn.LSTM(8, 16, proj_size=4), SHAPE)))
    assert op.attr("proj_size") == 4
    assert op.outputs[0].shape == (7, 4, 4)
    assert op.outputs[2].shape == (1, 4, 16)


def test_autocast_runs_it_in_float16_whatever_was_asked_for() -> None:
    op = _rnn(capture(training(lambda: nn.LSTM(8, 16), SHAPE, dtype=torch.bfloat16)))
    assert op.inputs[0].dtype == "float16"


def test_evaluation_has_no_backward() -> None:
    def make_step() -> Step:
        model, x = nn.GRU(8, 16).cuda().eval(), torch.randn(SHAPE, device="cuda")

        def step() -> None:
            with torch.no_grad():
                model(x)

        return step

    trace = capture(make_step)
    assert _rnn(trace).attr("train") is False
    assert "aten._cudnn_rnn_backward" not in names(trace)


def _packed(lengths: Any, batch_first: bool = True, sort: bool = True) -> Any:
    def make_step() -> Step:
        model = nn.LSTM(8, 16, batch_first=batch_first).cuda()
        x = torch.randn(*((4, 7, 8) if batch_first else (7, 4, 8)), device="cuda")
        known = lengths() if callable(lengths) else lengths

        def step() -> None:
            packed = pack_padded_sequence(x, known, batch_first, enforce_sorted=sort)
            out, _ = pad_packed_sequence(model(packed)[0], batch_first)
            out.sum().backward()

        return step

    return make_step


@pytest.mark.parametrize("batch_first", [True, False])
def test_packed_sequences_of_known_lengths_are_exact(batch_first: bool) -> None:
    trace = capture(_packed([7, 5, 2, 1], batch_first))
    op = _rnn(trace)
    assert op.inputs[0].shape == (15, 8)
    assert op.attr("batch_sizes") == (4, 3, 2, 2, 2, 1, 1)
    assert trace.notes == ()


def test_unsorted_lengths_are_sorted() -> None:
    assert _rnn(capture(_packed([1, 7, 2, 5], sort=False))).inputs[0].shape == (15, 8)


def test_packed_sequences_of_unknown_lengths_are_an_upper_bound() -> None:
    trace = capture(_packed(lambda: torch.randint(1, 8, (4,), device="cuda").cpu(), sort=False))
    assert _rnn(trace).inputs[0].shape == (28, 8)
    (note,) = trace.notes
    assert note.startswith("the lengths of packed sequences at ")
    assert note.endswith("depend on data; their upper bound, 7, was assumed")
    assert "test_layers.py" in note


def test_a_list_of_sequences_can_be_packed() -> None:
    def make_step() -> Step:
        model = nn.GRU(8, 16).cuda()
        sequences = [torch.randn(n, 8, device="cuda") for n in (5, 3, 1)]
        return lambda: model(pack_sequence(sequences))[1].sum().backward()

    assert _rnn(capture(make_step)).inputs[0].shape == (9, 8)


def over_time(cell: Any) -> Any:
    """A step that runs a cell over seven items."""

    def make_step() -> Step:
        model, x = cell(8, 16).cuda(), torch.randn(SHAPE, device="cuda")

        def step() -> None:
            state: Any = None
            for item in x:
                state = model(item, state)
            (state[0] if isinstance(state, tuple) else state).sum().backward()

        return step

    return capture(make_step)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_cell_is_two_products_and_a_fused_kernel_each_way(cell: str) -> None:
    trace = over_time(getattr(nn, f"{cell.upper()}Cell"))
    forward, backward = names(trace, Phase.FORWARD), names(trace, Phase.BACKWARD)
    assert forward["aten.mm"] == 14
    assert forward[f"aten._thnn_fused_{cell}_cell"] == 7
    fused = {name: count for name, count in backward.items() if "thnn_fused" in name}
    assert list(fused.values()) == [7]
    assert not ops.totals(trace).unknown


def test_a_plain_cell_is_two_products_with_their_biases() -> None:
    assert names(over_time(nn.RNNCell), Phase.FORWARD)["aten.addmm"] == 14
