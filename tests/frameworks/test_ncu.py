"""Hardware counters: ncu's output becomes FLOPs and bytes of the kernels that were asked for."""

from __future__ import annotations

import csv
import errno
import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from made import mm

from wavecast.errors import InvalidInput, MissingExtra
from wavecast.frameworks import ncu
from wavecast.frameworks.ncu import cache_path, count, load, save
from wavecast.traces.joining import Counted, key_of
from wavecast.traces.joining import with_counters as filled
from wavecast.traces.kernel_names import function_name
from wavecast.traces.step import Call, Kernel, Measurement, Phase, Trace

COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit"),
    "Metric Value",
)
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
FADD, FMUL, FFMA, HFMA = (
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum"
    for op in ("fadd", "fmul", "ffma", "hfma")
)
TENSOR = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"

SGEMM = "cutlass_80_simt_sgemm_256x128_8x4_nn_align1"
SMALLER = "cutlass_80_simt_sgemm_128x128_8x4_nn_align1"
CONFIGURATION = "(128, 1, 1)", "(256, 1, 1)"


Size = tuple[int, int, int]


def in_kineto(tile: str, grid: Size = (128, 1, 1), block: Size = (256, 1, 1)) -> Kernel:
    """The kernel as the profiler names it."""
    return Kernel(f"void cutlass::Kernel2<{tile}>({tile}::Params)", 1e-3, grid, block)


def in_ncu(tile: str) -> str:
    return f"void cutlass::Kernel2<{tile}>(T1::Params)"


@dataclass(frozen=True)
class Launch:
    """A launch as ncu prints it."""

    kernel: str
    metrics: Mapping[str, str]
    grid: str = CONFIGURATION[0]
    block: str = CONFIGURATION[1]


def table(*launches: Launch) -> str:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, launch in enumerate(launches):
        for name, value in launch.metrics.items():
            launched = launch.kernel, "1", "7", launch.block, launch.grid, "0", "9.0"
            metric = "Command line profiler metrics", name, "byte", value
            writer.writerow([number, "695", "python", "127.0.0.1", *launched, *metric])
    return "==PROF== Connected to process 695\n==PROF== Profiling\n" + text.getvalue()


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts an `ncu` on the PATH that prints a given text each time, and logs its arguments."""
    log = tmp_path / "asked.jsonl"

    def put(*prints: str, code: int = 0) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        tool = folder / "ncu"
        tool.write_text(
            f"#!{sys.executable}\n"
            "import json, pathlib, sys\n"
            f"log = pathlib.Path({str(log)!r})\n"
            "before = log.read_text().splitlines() if log.exists() else []\n"
            "log.write_text('\\n'.join([*before, json.dumps(sys.argv[1:])]))\n"
            f"print({list(prints)!r}[len(before)])\n"
            f"sys.exit({code})\n"
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return log

    return put


def asked(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def counts(tile: str = SGEMM, **more: str) -> Launch:
    metrics = {READ: "16,852,480", WRITE: "1,024", FFMA: "1,000", FADD: "7"}
    return Launch(in_ncu(tile), metrics | more)


def test_a_kernel_is_found_under_the_name_that_the_profiler_gave_it(
    fake_ncu: Callable[..., Path],
) -> None:
    fake_ncu(table(counts()))
    kernel = in_kineto(SGEMM)
    assert count([kernel], ["train"]) == {
        (kernel.name, 128, 256): Counted(flops=2 * 1000 + 7, dram_bytes=16_852_480 + 1_024)
    }


def test_ncu_is_asked_for_the_wanted_functions_only(fake_ncu: Callable[..., Path]) -> None:
    log = fake_ncu(table(counts()))
    softmax = Kernel("void softmax_warp_forward<float, 4>(float*)", 1e-3, (1, 1, 1), (32, 1, 1))
    count([in_kineto(SGEMM), softmax, in_kineto(SMALLER)], ["python", "-m", "train", "--fast"])
    [ask] = asked(log)
    assert ask[-4:] == ["python", "-m", "train", "--fast"]
    assert ask[ask.index("--kernel-name") + 1] == "regex:^(Kernel2|softmax_warp_forward)$"
    assert ask[ask.index("--profile-from-start") + 1] == "off"
    assert ask[ask.index("--print-units") + 1] == "base"
    assert {READ, WRITE, FFMA, TENSOR} <= set(ask[ask.index("--metrics") + 1].split(","))


def test_flops_are_instructions_by_what_each_does(fake_ncu: Callable[..., Path]) -> None:
    metrics = {READ: "1", WRITE: "0", FADD: "1", FMUL: "10", FFMA: "100", HFMA: "1,000"}
    fake_ncu(table(Launch(in_ncu(SGEMM), metrics | {TENSOR: "1,000,000"})))
    [counted] = count([in_kineto(SGEMM)], ["train"]).values()
    assert counted == Counted(1 + 10 + 200 + 4_000 + 1_000_000, 1)


def test_several_launches_of_a_kernel_are_averaged(fake_ncu: Callable[..., Path]) -> None:
    fake_ncu(table(counts(**{READ: "100", WRITE: "0"}), counts(**{READ: "300", WRITE: "0"})))
    [counted] = count([in_kineto(SGEMM)], ["train"]).values()
    assert counted.dram_bytes == 200


def test_kernels_of_one_template_are_kept_apart(fake_ncu: Callable[..., Path]) -> None:
    small = counts(SMALLER, **{READ: "8", WRITE: "0"})
    fake_ncu(table(counts(**{READ: "100", WRITE: "0"}), small))
    counted = count([in_kineto(SGEMM), in_kineto(SMALLER)], ["train"])
    assert [kernel.dram_bytes for kernel in counted.values()] == [100, 8]


def test_numbers_in_templates_are_the_same_however_they_are_written(
    fake_ncu: Callable[..., Path],
) -> None:
    def elementwise(functor: str, bytes_: str) -> Launch:
        arguments = f"(int)4, {functor}<float>, (bool)1, std::array<char *, (unsigned long)3>"
        name = f"void at::native::vectorized_elementwise_kernel<{arguments}>(int, T2, T4)"
        return Launch(name, {READ: bytes_, WRITE: "0"})

    fake_ncu(table(elementwise("Add", "3"), elementwise("Relu", "2")))
    arguments = "4, Relu<float>, true, std::array<char*, 3ul> "
    name = f"void at::native::vectorized_elementwise_kernel<{arguments}>(int, Relu<float>)"
    [counted] = count([Kernel(name, 1.0, (128, 1, 1), (256, 1, 1))], ["train"]).values()
    assert counted.dram_bytes == 2


def test_a_template_written_in_another_way_takes_all_of_its_function(
    fake_ncu: Callable[..., Path],
) -> None:
    fake_ncu(
        table(Launch("void softmax<[lambda(float) (instance 1)]>(T1)", {READ: "6", WRITE: "0"}))
    )
    kernel = Kernel("void softmax<{lambda(float)#1}>(float*)", 1.0, (128, 1, 1), (256, 1, 1))
    [counted] = count([kernel], ["train"]).values()
    assert counted.dram_bytes == 6


@pytest.mark.parametrize(
    "launch", [{"grid": (64, 1, 1)}, {"block": (128, 1, 1)}], ids=["blocks", "threads"]
)
def test_another_launch_configuration_is_another_kernel(
    fake_ncu: Callable[..., Path], launch: dict[str, Size]
) -> None:
    fake_ncu(table(counts()))
    assert count([in_kineto(SGEMM, **launch)], ["train"]) == {}


def test_sizes_are_counted_in_all_dimensions(fake_ncu: Callable[..., Path]) -> None:
    fake_ncu(table(Launch(in_ncu(SGEMM), {READ: "5", WRITE: "0"}, "(4, 3, 2)", "(32, 8, 1)")))
    kernel = in_kineto(SGEMM, grid=(2, 3, 4), block=(256, 1, 1))
    assert list(count([kernel], ["train"])) == [(kernel.name, 24, 256)]


def test_what_the_program_prints_is_no_count(fake_ncu: Callable[..., Path]) -> None:
    printed = table(counts()).replace("==PROF== Profiling\n", '"loss", 0.5\n==PROF== Profiling\n')
    fake_ncu(f"{printed}==PROF== Disconnected\nloss 0.5\n")
    assert len(count([in_kineto(SGEMM)], ["train"])) == 1


def test_older_gpus_are_asked_again_without_tensor_cores(fake_ncu: Callable[..., Path]) -> None:
    log = fake_ncu("==ERROR== Failed to find metric sm__ops_path_tensor", table(counts()))
    [counted] = count([in_kineto(SGEMM)], ["train"]).values()
    assert counted.flops == 2007
    first, second = (ask[ask.index("--metrics") + 1] for ask in asked(log))
    assert TENSOR in first
    assert TENSOR not in second


def test_why_nothing_was_counted_is_said(fake_ncu: Callable[..., Path]) -> None:
    reason = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    fake_ncu(reason, reason, code=1)
    with pytest.raises(InvalidInput, match="counted no kernel: ==ERROR== ERR_NVGPUCTRPERM"):
        count([in_kineto(SGEMM)], ["train"])


def test_a_program_that_fails_without_a_word_is_an_error(fake_ncu: Callable[..., Path]) -> None:
    fake_ncu("", "", code=3)
    with pytest.raises(InvalidInput, match="exited with status 3 and counted nothing"):
        count([in_kineto(SGEMM)], ["train"])


@pytest.mark.parametrize(
    "text",
    [
        *(
            table(counts(**{READ: value}))
            for value in ("n/a", "nan", "", "16.852.480", "9" * 400, "1e999")
        ),
        *(
            table(counts()).replace(f'"{column}"', '"Other"')
            for column in ("Kernel Name", "Grid Size", "Metric Value")
        ),
    ],
    ids=range(9),
)
def test_what_is_no_finite_number_or_in_no_column_is_no_count(
    text: str, fake_ncu: Callable[..., Path]
) -> None:
    fake_ncu(text, text)
    with pytest.raises(InvalidInput, match="counted no kernel"):
        count([in_kineto(SGEMM)], ["train"])


def test_without_ncu_counting_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtra, match=r"ncu \(Nsight Compute\)"):
        count([in_kineto(SGEMM)], ["train"])


def test_copies_are_not_counted_and_need_no_ncu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    copy = Kernel("Memcpy HtoD (Pageable -> Device)", 1e-3)
    assert key_of(copy) is None
    assert count([copy], ["train"]) == {}


@pytest.mark.parametrize(
    ("name", "base"),
    [
        (in_ncu(SGEMM), "Kernel2"),
        (in_kineto(SGEMM).name, "Kernel2"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("void at::native::(anonymous namespace)::sum<float, (Mode)1>(A<int>, float*)", "sum"),
        ("void at::native::<unnamed>::sum<float>(T1)", "sum"),
        ("void gemv2T_kernel_val<int, A<B<float>, C<float>>, 4>(D)", "gemv2T_kernel_val"),
    ],
)
def test_a_function_has_one_name_in_both_tools(name: str, base: str) -> None:
    assert function_name(name) == base


def test_counts_are_written_onto_the_kernels_that_have_one() -> None:
    known, other, copy = in_kineto(SGEMM), in_kineto(SMALLER), Kernel("Memset (Device)", 1e-6)
    call = Call(mm(), Phase.FORWARD, module="net", kernels=(known, other, copy), host_s=1e-5)
    trace = Trace((call,), measurement=Measurement("NVIDIA H200"))
    counted = filled(trace, {(known.name, 128, 256): Counted(5.0, 7.0)})
    kernels = counted.calls[0].kernels
    assert [(k.flops, k.dram_bytes) for k in kernels] == [(5.0, 7.0), (None, None), (None, None)]
    assert [k.name for k in kernels] == [known.name, other.name, copy.name]
    assert (counted.calls[0].module, counted.calls[0].host_s) == ("net", 1e-5)
    assert trace.calls[0].kernels[0].flops is None


# The file of counts.

SOME = {("b", 1, 32): Counted(1.0, 2.5), ("a<int>", 128, 256): Counted(3e12, 0.0)}


def test_counts_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h200.json"
    assert load(path) == {}
    save(SOME, path)
    assert load(path) == SOME
    save({("c", 1, 1): Counted(1.0, 1.0)}, path)
    assert set(load(path)) == {("c", 1, 1)}
    assert [file.name for file in path.parent.iterdir()] == ["h200.json"]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h200.json"
    save(SOME, path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InvalidInput, match=r"cannot write .*h200\.json: No space left"):
        save({}, path)
    assert load(path) == SOME


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[[1, 2]]", "7", '{"a": 1}', '[["a", "x", 1, 1, 1]]', "\xff"),
        *('[["k", 0, 128, 1.0, 1.0]]', '[["k", 8, "128", 1.0, 1.0]]', '[["k", 8, 1e9, 1.0, 1.0]]'),
        *('[["k", 8, 128, -1.0, 1.0]]', '[["k", 8, 128, NaN, 1.0]]'),
        *('[["k", 8, 128, 1.0, Infinity]]', '[["k", 8, 128, true, 1.0]]'),
    ],
)
def test_a_damaged_memory_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h200.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidInput, match=r"h200\.json.*delete it to count again"):
        load(path)


def test_each_gpu_has_its_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cache_path("NVIDIA H100 80GB HBM3")
    assert path == tmp_path / "wavecast" / "counters" / "nvidia-h100-80gb-hbm3.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert ncu.cache_path("T4") == tmp_path / "me" / ".cache/wavecast/counters/t4.json"


def test_a_size_of_many_digits_is_another_kernel(fake_ncu: Callable[..., Path]) -> None:
    fake_ncu(table(Launch(in_ncu(SGEMM), {READ: "1", WRITE: "1"}, grid="9" * 5000)))
    assert count([in_kineto(SGEMM)], ["true"]) == {}
