"""Optimizers in their three forms, clipping, accumulation, and steps with several of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step, calls_of, minimize, mlp, names, stepping, training
from torch import nn

from wavecast import ops
from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import Phase, Role, Trace

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda p, **form: torch.optim.SGD(p, lr=0.1, momentum=0.9, **form),
    "adam": lambda p, **form: torch.optim.Adam(p, **form),
    "adamw": lambda p, **form: torch.optim.AdamW(p, **form),
    "adagrad": lambda p, **form: torch.optim.Adagrad(p, **form),
}
LOOPED: dict[str, Callable[..., Any]] = {
    **OPTIMIZERS,
    "rmsprop": lambda p, **form: torch.optim.RMSprop(p, **form),
    "adadelta": lambda p, **form: torch.optim.Adadelta(p, **form),
    "nadam": lambda p, **form: torch.optim.NAdam(p, **form),
    "radam": lambda p, **form: torch.optim.RAdam(p, **form),
    "adamax": lambda p, **form: torch.optim.Adamax(p, **form),
    "asgd": lambda p, **form: torch.optim.ASGD(p, **form),
    "rprop": lambda p, **form: torch.optim.Rprop(p, **form),
}
PARAMETERS = 4


def _updates(make: Callable[..., Any], **form: Any) -> Trace:
    return capture(training(mlp, make_optimizer=lambda p: make(p, **form)))


@pytest.mark.parametrize("name", LOOPED)
def test_the_default_is_the_foreach_form(name: str) -> None:
    trace = _updates(LOOPED[name])
    updates = names(trace, Phase.OPTIMIZER)
    assert any(op.startswith("aten._foreach_") for op in updates)
    assert trace.calls == _updates(LOOPED[name], foreach=True).calls


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_host_does_not_wait(name: str) -> None:
    assert not any(call.syncs for call in _updates(OPTIMIZERS[name]))


@pytest.mark.parametrize("name", LOOPED)
def test_the_loop_updates_each_parameter_alone(name: str) -> None:
    updates = names(_updates(LOOPED[name], foreach=False), Phase.OPTIMIZER)
    assert not any(op.startswith(("aten._foreach_", "aten._fused_")) for op in updates)
    assert all(count % PARAMETERS == 0 for count in updates.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_fused_form_is_one_op(name: str) -> None:
    if name == "adagrad" and torch.__version__ < "2.10":
        pytest.skip("torch 2.9 has it for the CPU alone")
    trace = _updates(OPTIMIZERS[name], fused=True)
    updates = names(trace, Phase.OPTIMIZER)
    assert updates[f"aten._fused_{name}_"] == 1
    assert updates.total() <= 2  # it counts its steps on the GPU, in one op
    shapes = [t.shape for t in calls_of(trace, f"aten._fused_{name}_")[0].op.inputs]
    assert shapes[:PARAMETERS] == [(16, 8), (16,), (4, 16), (4,)]


class _Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020) in its usual form: a loop, a norm per layer, a ratio by `where`."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = 0, *(torch.zeros_like(p),) * 2
                state["step"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                update = state["m"] / state["v"].sqrt().add_(1e-6)
                weight_norm, update_norm = p.norm(), update.norm()
                ratio = torch.where(weight_norm > 0, weight_norm / update_norm, 1.0)
                p.add_(update * ratio, alpha=-group["lr"] / math.sqrt(state["step"]))


def test_an_optimizer_of_the_users_own_is_traced() -> None:
    trace = capture(training(mlp, make_optimizer=_Lamb))
    updates = names(trace, Phase.OPTIMIZER)
    assert updates["aten.linalg_vector_norm"] == 2 * PARAMETERS
    assert updates["aten.where"] == PARAMETERS
    states = [a for a in trace.allocations if a.role is Role.OPTIMIZER_STATE]
    assert len(states) == PARAMETERS  # m and v are one tensor here, and counted once


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_an_optimizer_of_matrices_is_traced(name: str) -> None:
    trace = capture(
        training(
            lambda: nn.Linear(8, 4, bias=False),
            make_optimizer=lambda p: getattr(torch.optim, name)(p, lr=0.1),
        )
    )
    assert Phase.OPTIMIZER in {call.phase for call in trace}
    assert not ops.totals(trace).unknown


def test_every_optimizer_of_torch_has_a_test() -> None:
    classes = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    tested = {*LOOPED, "lbfgs", "adafactor", "muon"}
    assert {name.lower() for name in classes} - tested == {"optimizer", "sparseadam"}


def test_lbfgs_calls_its_closure() -> None:
    def run(model: Any, optimizer: Any, x: Any) -> None:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    trace = capture(stepping(run, make_optimizer=lambda p: torch.optim.LBFGS(p, max_iter=2)))
    assert names(trace)["aten.addmm"] >= 2
    assert any(call.syncs for call in trace)


@pytest.mark.parametrize("foreach", [None, False])
def test_clipping_by_norm(foreach: bool | None) -> None:
    def run(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
        optimizer.step()

    trace = capture(stepping(run))
    counts = names(trace)
    assert counts["aten._foreach_norm"] == (1 if foreach is None else 0)
    assert counts["aten.linalg_vector_norm"] == (1 if foreach is None else 1 + PARAMETERS)
    assert not any(call.syncs for call in trace)


def test_clipping_by_value() -> None:
    def run(model: Any, _optimizer: Any, x: Any) -> None:
        model(x).sum().backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)

    assert names(capture(stepping(run)))["aten._foreach_clamp_min_"] == 1


def test_accumulating_gradients_adds_to_them() -> None:
    def run(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        for _ in range(3):
            (model(x).sum() / 3).backward()
        optimizer.step()

    trace = capture(stepping(run))
    assert names(trace, Phase.BACKWARD)["aten.add_"] == 2 * PARAMETERS
    assert names(trace, Phase.FORWARD)["aten.addmm"] == 6


def test_zeroing_gradients_in_place_is_an_op_of_the_optimizer() -> None:
    def run(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad(set_to_none=False)
        model(x).sum().backward()
        optimizer.step()

    assert names(capture(stepping(run)), Phase.OPTIMIZER)["aten.zero_"] == PARAMETERS


def test_a_gan_has_two_models_and_two_optimizers() -> None:
    def make_step() -> Step:
        maker, judge = nn.Linear(8, 8).cuda(), nn.Linear(8, 1).cuda()
        optimizers = [torch.optim.Adam(m.parameters()) for m in (maker, judge)]
        real, noise = torch.randn(4, 8, device="cuda"), torch.randn(4, 8, device="cuda")
        loss = nn.BCEWithLogitsLoss()
        yes, no = torch.ones(4, 1, device="cuda"), torch.zeros(4, 1, device="cuda")

        def step() -> None:
            fake = maker(noise)
            optimizers[1].zero_grad()
            (loss(judge(real), yes) + loss(judge(fake.detach()), no)).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            loss(judge(fake), yes).backward()
            optimizers[0].step()

        return step

    trace = capture(make_step)
    assert names(trace, Phase.FORWARD)["aten.addmm"] == 4
    assert {c.module for c in trace if c.op.base == "aten.addmm"} == {"Linear", "Linear#2"}
    parameters = [a for a in trace.allocations if a.role is Role.PARAMETER]
    assert sum(a.nbytes for a in parameters) == 4 * (72 + 9)


def test_a_learning_rate_schedule_runs_on_the_host() -> None:
    def make_step() -> Step:
        model, x = mlp().cuda(), torch.randn(4, 8, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        update = minimize(lambda: model(x).sum(), optimizer)

        def step() -> None:
            update()
            schedule.step()

        return step

    assert names(capture(make_step)) == names(capture(training(mlp)))


def test_averaged_weights_are_other() -> None:
    def make_step() -> Step:
        model, x = mlp().cuda(), torch.randn(4, 8, device="cuda")
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        update = minimize(lambda: model(x).sum(), torch.optim.SGD(model.parameters(), lr=0.1))

        def step() -> None:
            update()
            average.update_parameters(model)

        return step

    assert names(capture(make_step, warm_up=2), Phase.OTHER)["aten._foreach_lerp_"] == 1
