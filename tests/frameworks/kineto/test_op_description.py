"""Ops of profiler files that have shapes, read with and without PyTorch's schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kineto_file import File

from wavecast import ops
from wavecast.frameworks.kineto import read_kineto, schema
from wavecast.frameworks.kineto.calls import fused_op
from wavecast.hardware.devices import device
from wavecast.predictors.habitat import Habitat
from wavecast.traces.step import Call, Kernel, Op, Phase, TensorSpec, Trace

CONVOLUTION = {
    "Input type": ["float", "float", "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"],
    "Input Dims": [[32, 3, 8, 8], [16, 3, 3, 3], [], [], [], [], [], [], []],
    "Input Strides": [[192, 1, 24, 3], [27, 9, 3, 1], [], [], [], [], [], [], []],
    "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
}


def arguments(types: list[str], dims: list[Any], values: list[str] | None = None) -> dict[str, Any]:
    recorded: dict[str, Any] = {"Input type": types, "Input Dims": dims}
    return recorded if values is None else recorded | {"Concrete Inputs": values}


def read_op(folder: Path, name: str, recorded: dict[str, Any], *kernels: str) -> Op:
    file = File()
    file.op(name, *(kernels or ("kernel<float>",)), **recorded)
    return read_kineto(file.write(folder)).calls[0].op


def flops(op: Op) -> int:
    cost = ops.cost_of(op)
    assert cost is not None
    return cost.flops


def test_an_op_has_the_names_and_tensors_of_our_own_traces(tmp_path: Path) -> None:
    op = read_op(tmp_path, "aten::convolution", CONVOLUTION)
    assert op == Op(
        "aten.convolution",
        (
            TensorSpec((32, 3, 8, 8), "float32", (192, 1, 24, 3)),
            TensorSpec((16, 3, 3, 3), "float32"),
        ),
        (TensorSpec((32, 16, 8, 8), "float32", (1024, 1, 128, 16)),),
        (
            ("stride", (1, 1)),
            ("padding", (1, 1)),
            ("dilation", (1, 1)),
            ("transposed", False),
            ("output_padding", (0, 0)),
            ("groups", 1),
            ("precision", "ieee"),
        ),
    )
    assert flops(op) == 2 * 32 * 16 * 8 * 8 * 27


def test_tf32_shows_in_the_kernels_name(tmp_path: Path) -> None:
    recorded = arguments(["float", "float"], [[4, 8], [8, 2]], ["", ""])
    op = read_op(tmp_path, "aten::mm", recorded, "sm80_xmma_gemm_f32f32_tf32f32_f32_tn")
    assert ops.unit(op) is ops.Unit.TF32_TENSOR
    plain = read_op(tmp_path, "aten::mm", recorded, "volta_sgemm_128x64_nn")
    assert ops.unit(plain) is ops.Unit.FP32
    shapeless = read_op(tmp_path, "aten::mm", {}, "cutlass_80_tensorop_s1688gemm_128x64")
    assert shapeless == Op("aten.mm", (), (), (("precision", "tf32"),))


@pytest.mark.parametrize(
    ("recorded", "dtype"),
    [
        ("c10::Half", "float16"),
        ("c10::BFloat16", "bfloat16"),
        ("double", "float64"),
        ("long int", "int64"),
        ("int", "int32"),
        ("unsigned char", "uint8"),
        ("bool", "bool"),
    ],
)
def test_data_types_have_our_names(tmp_path: Path, recorded: str, dtype: str) -> None:
    op = read_op(tmp_path, "aten::clone", arguments([recorded, ""], [[4, 8], []], ["", ""]))
    assert op.inputs == op.outputs == (TensorSpec((4, 8), dtype),)


def test_the_overload_is_the_one_that_fits_and_defaults_are_left_out(tmp_path: Path) -> None:
    types, dims = ["float", "float", "Scalar"], [[4, 8], [8], []]
    op = read_op(tmp_path, "aten::add", arguments(types, dims, ["", "", "1"]))
    assert op.name == "aten.add.Tensor"
    assert op.attrs == ()
    assert op.outputs == (TensorSpec((4, 8), "float32"),)
    scaled = read_op(tmp_path, "aten::add", arguments(types, dims, ["", "", "-0.5"]))
    assert scaled.attrs == (("alpha", -0.5),)
    types = ["float", "ScalarList", "Scalar", ""]
    total = read_op(
        tmp_path, "aten::sum", arguments(types, [[4, 8], [], [], []], ["", "[0]", "True", ""])
    )
    assert total.name == "aten.sum.dim_IntList"
    assert total.attrs == (("dim", (0,)), ("keepdim", True))
    assert total.outputs == (TensorSpec((1, 8), "float32"),)


def test_numbers_where_tensors_are_wanted_are_no_tensors(tmp_path: Path) -> None:
    recorded = arguments(["c10::Half", "double"], [[4, 8], []], ["", ""])
    op = read_op(tmp_path, "aten::mul", recorded)
    assert op.inputs == op.outputs == (TensorSpec((4, 8), "float16"),)


def test_types_of_tensors_in_lists_come_from_the_kernel(tmp_path: Path) -> None:
    recorded = arguments(["TensorList", "Scalar"], [[[4, 3], [4, 5]], []], ["", "1"])
    op = read_op(tmp_path, "aten::cat", recorded, "CatArrayBatchedCopy<c10::BFloat16>")
    assert op.inputs == (TensorSpec((4, 3), "bfloat16"), TensorSpec((4, 5), "bfloat16"))
    assert op.outputs == (TensorSpec((4, 8), "bfloat16"),)
    assert op.attrs == (("dim", 1),)
    untold = read_op(tmp_path, "aten::cat", recorded, "copy_kernel")
    assert untold == Op("aten.cat", (), ())


def test_lists_too_long_to_be_written_leave_an_op_without_shapes(tmp_path: Path) -> None:
    recorded = arguments(["TensorList", "TensorList", "Scalar"], [[], [], []], ["", "", "1"])
    assert read_op(tmp_path, "aten::_foreach_add_", recorded) == Op("aten._foreach_add_", (), ())


def test_an_op_in_place_writes_its_argument(tmp_path: Path) -> None:
    recorded = arguments(["float", "float", "Scalar"], [[4, 8], [4, 8], []])  # values not written
    op = read_op(tmp_path, "aten::copy_", recorded)
    assert op.outputs == (TensorSpec((4, 8), "float32"),)


def test_data_types_and_layouts_are_names(tmp_path: Path) -> None:
    types = ["float", "Scalar", "Scalar", "", "", "Scalar", "Scalar"]
    values = ["", "15", "0", "", "", "False", "2"]
    recorded = arguments(types, [[4, 8, 2, 2], *[[]] * 6], values)
    op = read_op(tmp_path, "aten::_to_copy", recorded)
    assert op.attrs == (("dtype", "bfloat16"), ("memory_format", "channels_last"))
    assert op.outputs[0].dtype == "bfloat16"
    assert op.outputs[0].channels_last


@pytest.mark.parametrize(
    ("kernel", "devices"),
    [
        ("Memcpy HtoD (Pageable -> Device)", ("cpu", "cuda")),
        ("Memcpy DtoH (Device -> Pageable)", ("cuda", "cpu")),
        ("elementwise_kernel", ("cuda", "cuda")),
    ],
)
def test_copies_show_which_side_is_the_hosts(
    tmp_path: Path, kernel: str, devices: tuple[str, str]
) -> None:
    recorded = arguments(["float", "float", "Scalar"], [[4], [4], []], ["", "", "False"])
    op = read_op(tmp_path, "aten::copy_", recorded, kernel)
    assert (op.inputs[1].device, op.outputs[0].device) == devices


def test_an_op_that_ran_nothing_ran_on_the_host(tmp_path: Path) -> None:
    file = File()
    recorded = arguments(["float", "float", "Scalar"], [[], [], []], ["", "", "1"])
    file.op("aten::add_", **recorded)
    file.op("aten::relu", "relu", **arguments(["float"], [[8]], [""]))
    add, relu = read_kineto(file.write(tmp_path))
    assert not ops.launches(add.op)
    assert ops.launches(relu.op)


def test_what_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    # An old file has no values, and no lists at all.
    types = ["float", "", "Scalar", ""]
    op = read_op(tmp_path, "aten::sum", arguments(types, [[4, 8], [], [], []]))
    assert op == Op("aten.sum.dim_IntList", (TensorSpec((4, 8), "float32"),), ())
    unknown = read_op(tmp_path, "mine::secret", arguments(["float"], [[4, 8]]))
    assert unknown == Op("mine.secret", (TensorSpec((4, 8), "float32"),), ())
    broken = read_op(tmp_path, "aten::mm", arguments(["float", "float"], [[4, -1], "x"]))
    assert broken == Op("aten.mm", (), ())
    for uneven in (arguments(["float"], [[4], [4]]), arguments(["float"], [[4, 8]])):
        assert read_op(tmp_path, "aten::mm", uneven) == Op("aten.mm", (), ())


def test_impossible_arguments_leave_an_op_without_outputs(tmp_path: Path) -> None:
    op = read_op(tmp_path, "aten::mm", arguments(["float", "float"], [[4, 8], [9, 2]], ["", ""]))
    assert len(op.inputs) == 2
    assert op.outputs == ()


def test_files_are_read_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    schema.op_of.cache_clear()
    op = read_op(tmp_path, "aten::convolution", CONVOLUTION)
    schema.op_of.cache_clear()
    assert op.name == "aten.convolution"
    assert (op.inputs, op.outputs) == ((), ())  # the outputs are known only with torch


_WITHOUT_TORCH = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if sys.argv[2] == "hidden":
    sys.meta_path.insert(0, Hidden())
import wavecast

trace = wavecast.read_kineto(sys.argv[1])
prediction = wavecast.predict(trace, "t4", origin="v100-sxm-16gb")
print(json.dumps({"notes": prediction.trace.notes, "seconds": prediction.seconds}))
"""


def _read_in_a_process(path: Path, torch: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(path), torch]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_a_trace_says_what_only_torch_could_tell(tmp_path: Path) -> None:
    file = File()
    file.op("aten::convolution", "volta_scudnn_128x64", us=500.0, **CONVOLUTION)
    file.op("aten::relu", "vectorized", us=100.0, **arguments(["float"], [[4, 8]]))
    path = file.write(tmp_path)
    with_torch, without = (_read_in_a_process(path, torch) for torch in ("shown", "hidden"))
    assert not [note for note in with_torch["notes"] if "PyTorch" in note]
    [note] = [note for note in without["notes"] if "PyTorch" in note]
    assert "the outputs of 2 ops (0.6 ms) are not known" in note
    assert "pip install 'wavecast[torch]'" in note
    assert not [note for note in without["notes"] if "record_shapes" in note]


def test_a_file_that_needs_no_torch_says_nothing_of_it(tmp_path: Path) -> None:
    file = File()
    file.op("aten::mm", "gemm")
    notes = _read_in_a_process(file.write(tmp_path), "hidden")["notes"]
    assert not [note for note in notes if "PyTorch" in note]
    assert [note for note in notes if "record_shapes" in note]


def test_files_without_shapes_say_so(tmp_path: Path) -> None:
    def notes(**recorded: Any) -> Trace:
        file = File()
        file.op("aten::mm", "gemm", **recorded)
        return read_kineto(file.write(tmp_path))

    [without] = [note for note in notes().notes if "shapes" in note]
    assert "record_shapes=True" in without
    recorded = arguments(["float", "float"], [[4, 8], [8, 2]])
    assert not [note for note in notes(**recorded).notes if "shapes" in note]


def test_indices_that_the_profiler_leaves_out_follow_from_the_values(tmp_path: Path) -> None:
    """It writes no lists with gaps, which those of indices may have."""
    types = ["float", "", "float", "Scalar", "Scalar"]
    recorded = arguments(types, [[100, 8], [], [50, 8], [], []], ["", "", "", "True", "True"])
    op = read_op(tmp_path, "aten::_index_put_impl_", recorded)
    assert op.inputs == (
        TensorSpec((100, 8), "float32"),
        TensorSpec((50,), "int64"),
        TensorSpec((50, 8), "float32"),
    )
    one_value = arguments(types[:4], [[100, 8], [], [], []], ["", "", "", "False"])
    assert len(read_op(tmp_path, "aten::index_put_", one_value).inputs) == 2


# Kernels of torch.compile, read from the arguments that the profiler recorded.


def recorded(shapes: list[list[int]], numbers: list[int], dtype: str = "float") -> dict[str, Any]:
    return {
        "Input Dims": [*shapes, *([] for _ in numbers)],
        "Input type": [*[dtype] * len(shapes), *["Scalar"] * len(numbers)],
        "Concrete Inputs": [*[""] * len(shapes), *map(str, numbers)],
    }


def test_points_and_bytes_of_a_pointwise_kernel() -> None:
    op = fused_op("triton_poi_fused_add_gelu_3", recorded([[64, 32], [32], [64, 32]], [2048]))
    assert op.name == "inductor.pointwise"
    assert (op.attr("points"), op.attr("reduction")) == (2048, 1)
    assert (op.attr("read_bytes"), op.attr("write_bytes")) == (4 * 2048 + 4 * 32, 4 * 2048)


def test_two_numbers_of_points_are_multiplied() -> None:
    op = fused_op("triton_poi_fused_clone_1", recorded([[64, 32], [32, 64]], [64, 32]))
    assert op.attr("points") == 2048


@pytest.mark.parametrize(
    ("letters", "name"),
    [("red", "inductor.reduction"), ("per", "inductor.persistent_reduction")],
)
def test_reductions_have_rows_and_terms(letters: str, name: str) -> None:
    op = fused_op(f"triton_{letters}_fused_sum_0", recorded([[64, 32], [64]], [64, 32]))
    assert op.name == name
    assert (op.attr("points"), op.attr("reduction")) == (64, 32)


def test_without_shapes_only_the_name_is_known() -> None:
    assert fused_op("triton_poi_fused_add_0", {}).name == "triton.triton_poi_fused_add_0"
    own = fused_op("triton_my_kernel", recorded([[64, 32], [64, 32]], [2048]))
    assert own.name == "triton.triton_my_kernel"


def test_a_large_kernel_scales_with_the_bandwidth() -> None:
    shape = [8192, 8192]
    op = fused_op("triton_poi_fused_add_0", recorded([shape, shape, shape], [1 << 26]))
    kernel = Kernel("triton_poi_fused_add_0", 200e-6, (65536, 1, 1), (128, 1, 1), 32, 0)
    call = Call(op, Phase.FORWARD, kernels=(kernel,))
    h200, a100 = device("h200-sxm"), device("a100-sxm-80gb")
    scaled = Habitat.shipped().scale_call(call, h200, a100)
    assert scaled is not None
    bandwidths = h200.memory_bytes_per_s / a100.memory_bytes_per_s
    assert scaled.seconds / 200e-6 == pytest.approx(bandwidths, rel=0.15)
