"""Sparse matrices: what is traced of them, and that their values are right on the host."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from wavecast import ops
from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture
from wavecast.frameworks.pytorch.capture.values.sparse_tensors import COO, CSC, CSR, OPS
from wavecast.traces.step import Phase, Trace

NODES, EDGES, WIDTH = 300, 2000, 16


def _edges() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, NODES, (2, EDGES), generator=generator)


def _traced(multiply: Any, layout: str, learned: bool = False) -> Trace:
    """A step that multiplies with a sparse matrix, whose values may be learned."""

    def make_step() -> Any:
        edges = _edges().cuda()
        values = torch.nn.Parameter(torch.ones(EDGES, device="cuda"), learned)
        layer = torch.nn.Linear(WIDTH, WIDTH).cuda()
        features = torch.randn(NODES, WIDTH, device="cuda")

        def step() -> None:
            matrix: Any = torch.sparse_coo_tensor(edges, values, (NODES, NODES))
            if layout != COO:
                matrix = matrix.to_sparse_csr()
            multiply(matrix, layer(features)).sum().backward()

        return step

    return capture(make_step)


def _named(trace: Trace, name: str, phase: Phase | None = None) -> list[Any]:
    calls = [call for call in trace.calls if call.op.base == f"wavecast.{name}"]
    return [call for call in calls if phase in (None, call.phase)]


MULTIPLIED = {
    "mm": torch.mm,
    "sparse.mm": torch.sparse.mm,
    "matmul": lambda matrix, dense: matrix @ dense,
    "spmm": torch.spmm,
    "addmm": lambda matrix, dense: torch.addmm(dense, matrix, dense),
    "of the right": lambda matrix, dense: (dense.t() @ matrix).t(),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_a_matmul_is_an_op_whose_flops_count_the_elements(name: str) -> None:
    trace = _traced(MULTIPLIED[name], COO)
    calls = _named(trace, "sparse_mm")
    assert [call.phase is Phase.BACKWARD for call in calls] == [False, True]
    for call in calls:
        assert (ops.cost_of(call.op) or ops.Cost()).flops == 2 * EDGES * WIDTH
        assert call.op.outputs[0].shape == (NODES, WIDTH)
    # The indices are not known to be sorted, and those of the transposed matrix never are.
    assert len(_named(trace, "sparse_coalesce")) == 2


def test_csr_needs_no_sorting_in_the_backward_pass() -> None:
    trace = _traced(torch.mm, CSR)
    assert not _named(trace, "sparse_coalesce", Phase.BACKWARD)
    assert _named(trace, "sparse_mm", Phase.BACKWARD)[0].op.attr("layout") == CSC


def test_the_gradient_of_values_in_coo_is_computed_for_all_elements_as_torch_does() -> None:
    trace = _traced(torch.mm, COO, learned=True)
    dense = [c.op for c in trace.calls if c.op.base == "aten.mm" and c.phase is Phase.BACKWARD]
    assert (NODES, NODES) in [op.outputs[0].shape for op in dense]
    assert _named(trace, "sparse_mask", Phase.BACKWARD)
    assert _named(_traced(torch.mm, CSR, learned=True), "sparse_sampled_mm", Phase.BACKWARD)


def test_softmax_and_the_dense_form_are_ops() -> None:
    trace = _traced(lambda m, x: torch.sparse.mm(torch.sparse.softmax(m, 1), x), COO, learned=True)
    assert (
        len(_named(trace, "sparse_softmax")) == len(_named(trace, "sparse_softmax_backward")) == 1
    )
    dense = _traced(lambda m, x: m.to_dense() @ x, COO)
    (call,) = _named(dense, "sparse_to_dense")
    assert (ops.cost_of(call.op) or ops.Cost()).written_bytes >= 4 * NODES * NODES


def test_what_is_not_known_of_sparse_tensors_is_refused_with_its_line() -> None:
    with pytest.raises(CaptureError, match=r"calls matmul on a sparse tensor at .*test_sparse"):
        _traced(lambda m, x: (m @ m) @ x, COO)
    with pytest.raises(CaptureError, match="sparse tensor of blocks"):
        _traced(lambda m, x: x.to_sparse_bsr((2, 2)), COO)


def test_a_matrix_of_the_host_has_its_values() -> None:
    def make_step() -> Any:
        edges = _edges()
        matrix = torch.sparse_coo_tensor(edges, torch.ones(EDGES), (NODES, NODES)).coalesce()
        seen.append(matrix._nnz())
        seen.append(float(torch.sparse.sum(matrix, 1).to_dense().sum()))
        seen.append(float(matrix.to_sparse_csr().to_dense().sum()))
        moved = matrix.cuda()
        assert (moved.device.type, moved.layout) == ("cuda", torch.sparse_coo)
        layer = torch.nn.Linear(4, 4).cuda()
        source = torch.ones(NODES, 4, device="cuda")
        return lambda: (moved @ layer(source)).sum().backward()

    seen: list[float] = []
    capture(make_step)
    unique = torch.unique(_edges()[0] * NODES + _edges()[1]).numel()
    assert seen == [unique, EDGES, EDGES]


@pytest.mark.parametrize("layout", [COO, CSR, CSC])
def test_the_ops_compute_what_torch_computes(layout: str) -> None:
    warnings.simplefilter("ignore")
    real = torch.sparse_coo_tensor(_edges(), torch.rand(EDGES), (NODES, NODES)).coalesce()
    indices = {
        COO: lambda: [real.indices()],
        CSR: lambda: [real.to_sparse_csr().crow_indices(), real.to_sparse_csr().col_indices()],
        CSC: lambda: [real.to_sparse_csc().ccol_indices(), real.to_sparse_csc().row_indices()],
    }[layout]()
    values = real.to_sparse_csc().values() if layout == CSC else real.values()
    matrix = (indices, values, [NODES, NODES], layout)
    whole, dense = real.to_dense(), torch.rand(NODES, 5)
    torch.testing.assert_close(OPS.sparse_mm(*matrix, dense), whole @ dense)
    torch.testing.assert_close(OPS.sparse_to_dense(*matrix), whole)
    torch.testing.assert_close(OPS.sparse_mask(*matrix, whole), values)
    product = (dense @ dense.t())[tuple(OPS.sparse_places(*matrix))]
    torch.testing.assert_close(OPS.sparse_sampled_mm(*matrix, dense, dense.t()), product)
    for is_log, torchs in ((False, torch.sparse.softmax), (True, torch.sparse.log_softmax)):
        out = OPS.sparse_softmax(*matrix, 1, is_log)
        asked = real.clone().requires_grad_()
        expected = torchs(asked, 1)
        torch.testing.assert_close(
            OPS.sparse_to_dense(indices, out, [NODES, NODES], layout), expected.to_dense()
        )
        gradient = torch.rand_like(real.values())
        expected.backward(torch.sparse_coo_tensor(real.indices(), gradient, real.shape))
        if layout != CSC:  # which has another order of values
            done = OPS.sparse_softmax_backward(
                indices, out, [NODES, NODES], layout, gradient, 1, is_log
            )
            torch.testing.assert_close(done, asked.grad.coalesce().values())
