"""Compilations of a lowered step by XLA, each in a process of its own.

The user's process, and its jax, stay as they are: the environment that the compiler needs is set
for the other process only.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from wavecast.errors import CaptureError, InvalidInput, MissingExtra
from wavecast.frameworks import children
from wavecast.frameworks.jax.releases import PLUGINS, compile_module, takes_versions, version_of
from wavecast.hardware.devices import Device

OPTIONS: Mapping[str, int | bool] = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_gpu_mock_custom_calls": True,
}
"""Nothing can be tried without a GPU. By default every matmul would then be a Triton kernel with
tiles that nobody chose, so matmuls stay with cuBLAS. The code of kernels is not used, so it is not
optimized; the scheduled HLO stays the same."""
CUDA_FOLDER = "WAVECAST_CUDA"
"""The environment variable that names a CUDA installation to use instead of stand-ins."""
_WORKER = "wavecast.frameworks.jax.driver"
_MOST_PROCESSES = 4
_LIMIT_S = 900.0


@dataclass(frozen=True)
class CompiledModule:
    """What XLA made of a step for one GPU."""

    text: str
    """The scheduled HLO."""
    sizes: Mapping[str, int]
    """The bytes of its buffers: "argument", "output", "alias" and "temp"."""


def compiled_for(
    module: bytes,
    gpus: Sequence[Device],
    devices: int = 1,
    done: Callable[[int], None] | None = None,
) -> list[CompiledModule]:
    """The module compiled for each GPU, several at a time.

    Args:
        module: the lowered step (`releases.bytecode`).
        devices: over how many GPUs the step is spread.
        done: called with the number of GPUs that are done.

    Raises:
        MissingExtra: XLA's compiler for CUDA is not installed, or not for this system.
        CaptureError: XLA refuses the module; the message is its own.
    """
    check_installed()
    finished = 0

    def compile_one(gpu: Device) -> CompiledModule:
        nonlocal finished
        compiled = _compiled(module, gpu, devices)
        finished += 1
        if done is not None:
            done(finished)
        return compiled

    processes = max(min(len(gpus), os.cpu_count() or 1, _MOST_PROCESSES), 1)
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(compile_one, gpus))


def check_installed() -> None:
    """Refuse where XLA's compiler for CUDA is missing."""
    if platform.system() != "Linux":
        raise MissingExtra(
            "JAX steps are compiled by XLA's CUDA compiler, which exists for Linux only (also in "
            f"WSL and in containers), not for {platform.system()}; trace there, save the trace "
            "(wavecast trace), and use it here"
        )
    if version_of("jax") is None or not any(map(version_of, PLUGINS)):
        raise MissingExtra(
            "tracing a JAX step needs jax and XLA's compiler: pip install 'wavecast[jax]'"
        )


def _compiled(module: bytes, gpu: Device, devices: int) -> CompiledModule:
    config = target_config(gpu)
    if not takes_versions():
        config = in_old_form(config)
    with tempfile.TemporaryDirectory(prefix="wavecast-xla-") as name:
        folder = Path(name)
        (folder / MODULE).write_bytes(module)
        job = {"config": config, "devices": devices, "options": dict(OPTIONS)}
        (folder / JOB).write_text(json.dumps(job), encoding="utf-8")
        run = _run(folder)
        if run.returncode or not (folder / ANSWER).exists():
            raise CaptureError(f"XLA did not compile the step for {gpu.name}: {_reason(run)}")
        sizes = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        return CompiledModule((folder / HLO).read_text(encoding="utf-8"), sizes)


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    cuda = os.environ.get(CUDA_FOLDER) or str(make_stand_ins(folder / "cuda"))
    own = children.environment().items()
    environment = {
        **{name: value for name, value in own if not name.startswith(("JAX_", "XLA_"))},
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={cuda}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PATH": os.pathsep.join([f"{cuda}/bin", os.environ.get("PATH", "")]),
    }
    command = children.command(_WORKER, folder)
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CaptureError(
            f"XLA compiled for more than {_LIMIT_S:.0f} s; scan over layers (jax.lax.scan) makes "
            "modules smaller"
        ) from None


def _reason(run: subprocess.CompletedProcess[str]) -> str:
    """The last line of an error that says something."""
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line or "error" in line]
    return (said or lines or [f"exit status {run.returncode}"])[-1]


# A GPU as XLA describes it: the target config of a compilation, from our own facts.


CUDNN, CUDA = (9, 12, 0), (13, 0, 0)
"""The versions that a module is compiled for."""
_SHARED_PER_BLOCK = 49_152
_OTHER_LANES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_LANES = 128
"""float32 lanes of an SM (CUDA C++ Programming Guide, arithmetic instructions)."""
_ACCELERATED = 9
"""From this capability on, kernels are compiled for one architecture only ("sm_90a")."""
_LEAST = (7, 0)


def target_config(gpu: Device) -> str:
    """The text of XLA's target config for a GPU.

    Raises:
        InvalidInput: XLA has no compiler for the GPU, or a fact about it is unknown.
    """
    capability = gpu.compute_capability
    if capability is None or capability < _LEAST:
        raise InvalidInput(
            f"XLA's CUDA compiler is for NVIDIA GPUs from compute capability 7.0 on; {gpu.name} is "
            "not one of them, so a JAX step cannot be compiled for it; choose another GPU"
        )
    usable = gpu.measured.get("memory_bytes")
    facts = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": _SHARED_PER_BLOCK,
        "shared_memory_per_core": gpu.shared_bytes_per_sm,
        "threads_per_core_limit": gpu.max_threads_per_sm,
        "core_count": gpu.sm_count,
        "fpus_per_core": _OTHER_LANES.get(capability, _LANES),
        "block_dim_limit_x": 2_147_483_647,
        "block_dim_limit_y": 65_535,
        "block_dim_limit_z": 65_535,
        "memory_bandwidth": int(gpu.memory_bytes_per_s),
        "l2_cache_size": gpu.l2_bytes,
        "clock_rate_ghz": None if gpu.boost_clock_hz is None else gpu.boost_clock_hz / 1e9,
        "device_memory_size": gpu.memory_bytes if usable is None else int(usable.value),
        "shared_memory_per_block_optin": gpu.shared_bytes_per_block_optin,
        "registers_per_core_limit": gpu.registers_per_sm,
        "registers_per_block_limit": gpu.registers_per_sm,
    }
    unknown = [name for name, value in facts.items() if value is None]
    if unknown:
        raise InvalidInput(
            f"{gpu.name}: XLA needs facts that are unknown ({', '.join(unknown)}); add them to its "
            "device file (docs/howto/add-a-gpu.md), or choose another GPU"
        )
    lines = [f"  {name}: {value}" for name, value in facts.items()]
    extension = " feature_extension: ACCELERATED_FEATURES" if capability[0] >= _ACCELERATED else ""
    cuda, cudnn = (".".join(map(str, version)) for version in (CUDA, CUDNN))
    lines += [
        f"  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]}{extension} }}",
        f'  driver_version: "{cuda}" runtime_version: "{cuda}"',
        f'  compile_time_toolkit_version: "{cuda}" dnn_version: "{cudnn}"',
        f'  name: "{gpu.name}" device_vendor: "NVIDIA Corporation"',
    ]
    version = "major: {} minor: {} patch: {}".format(*CUDNN)
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ {version} }}",
            f'device_description_str: "{gpu.name}"',
        ]
    )


_NEWER = ("_version:", "device_vendor:")
"""Fields on lines that releases before 0.10 do not know."""


def in_old_form(config: str) -> str:
    """The config without the fields that releases before 0.10 do not know."""
    lines = config.splitlines()
    return "\n".join(line for line in lines if not any(name in line for name in _NEWER))


# Stand-ins for CUDA's tools, made when a module is compiled where CUDA is not installed.
#
# XLA asks ptxas and nvlink for their version, learns the newest PTX from how ptxas refuses one
# that does not exist, lets them assemble kernels, and reads a library of mathematical functions.
# None of it decides which kernels there are. So two scripts that answer and write a file do, and a
# library without functions; the scheduled HLO is the same.


_TOOL = """#!/bin/sh
case "$*" in
  *--version*)
    echo "@NAME@: NVIDIA (R) Cuda tools"
    echo "Cuda compilation tools, release 13.0, V13.0.88"
    exit 0;;
esac
for file in "$@"; do
  if [ -f "$file" ] && head -n 1 "$file" | grep -q "^\\.version 99"; then
    asked=$(head -n 1 "$file")
    echo "ptxas $file, line 1; fatal : Unsupported $asked; current version is '9.0'" >&2
    exit 255
  fi
done
while [ $# -gt 0 ]; do
  case "$1" in
    -o|--output-file) shift; printf 'cubin' > "$1";;
  esac
  shift
done
exit 0
"""
_EMPTY_LIBRARY = (
    "c-k#fVN4rk7`}4Q?}YBVieziEyYp@^ZRQ5Ig4pibWN^Av-H#IeQ6t8-VHFg~mDRSe#k3srV_BDUgv9>91QLG"
    "eFKfaNeh{TSoE>QvT#O;HAyf)O(~-uZS+f1`JJ==nzIiX-z2EaZ@B8%1E1R#k5JUq(5J8jJ_Ra@ChHgJy{Jy"
    "C#aoK>s2_}MgigQz)K-A%U9KRshdZ(vQ|F+R=cTO87O{W_uD_4Ijn5ciNu6Merx6N#CaZr|b8|}?g9%WT%eX"
    "|**%sta}0|n}b7GAzI#osg7n<p)2Y-iHvuV?%3@VNr+dy^-K7jU+p@=$#65+S_SmZ=v`<6wQ&bYmgyZyxC9+"
    "X553g(6-$8_R<D9Jrn(FAS2gEQ;_bLZNO4h<^*B9uUre+vZo$y<3}K{j}EJ{b5kO*q0!Pgb(xi8sE`LC79JR"
    "6KXNIr)0;Zmg-G_u{gMz37d8a`jHtPBw(khm&@na`}0glY&bloo-C5?g6vL_?qWO@QNT3{jCqivfN_P4#*xA"
    "!Yw<-`O~bNCkBIbk4c5G{)4a-V3e1MU<^x<vyeTcK(z@(iBwfp@Ym$_TwU($KTpI*$45CpS6G%xT#Sfx35Pi"
    "~s+r|>;V+w^WXf%VyGRd?1HMqY8|6PGqkqj2*naVs<JdC9PvnDXBNp>w@{5>r@3$inF7?(81jO>^qr5UXQU;"
    "1o9`i+#bn(3Dzr1;RNqDBTm+>as_6q!TT`|r{F1pSW}R?=|$B3<TT6|>-NY$?a(d$<PzQ%Z8BEv8at|2A+TO"
    "P?bvUzk;;qPOii5kHE>K|IrU`5;Z}3UHrtYXN3YU^jE@mj+G;EU>kJ@%<aBqo_$)*^LExmUmTTX$qHG>gPtx"
    "6vZ$e3XI#pXeQaeZHCnqxZ{P7#n#+|9<EY8u~B9>F#wNM%Bt=~_2i`HNXgEk=32@*3mWF=DtZ>f6u_v$SU?}"
    "L{&5#p{q&<PV~wYGM0$s(|MS8TGu##-E+20h|Js5TFMJ}l{#gw$`6RnhK2a6eU4dN{SUkZ!;pGtjjkGMgmq_"
    "P~>MZ(}@$@m-ag5W0VhSLL?=09ix@Q_kZFqKI+^1ylc@3-NT-PRcnY;7H_ImWy+SMECnjG)i_QQu>EHz!x1*"
    "ac+;XyW$1Y@?tO^BoLkq$m(R&y*Gqy^PIqt$(emx?KsnG(-b0(#s_a`^zWKF<`6z#D!w6NFLsY|*u#O0#$YN"
    "cWuT!po4>bbp7j=X77&q4`ujarAtIJ#q}^W^(3=UZ3x37u&l>qDmy*-F0pxIy5j8IQNP2#qdz@YDeUArQ=Hb"
    "@bL40{|84|hv@"
)
"""LLVM bitcode of a module without functions."""


def make_stand_ins(folder: Path) -> Path:
    """A folder that XLA takes for CUDA (`xla_gpu_cuda_data_dir`)."""
    tools, library = folder / "bin", folder / "nvvm" / "libdevice"
    tools.mkdir(parents=True)
    library.mkdir(parents=True)
    for name in ("ptxas", "nvlink", "fatbinary"):
        # A script's process may not change the mode of a file, but may create one with it.
        tool = os.open(tools / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
        with os.fdopen(tool, "w", encoding="utf-8") as file:
            file.write(_TOOL.replace("@NAME@", name))
    (library / "libdevice.10.bc").write_bytes(zlib.decompress(base64.b85decode(_EMPTY_LIBRARY)))
    return folder


# The process that compiles a lowered step with XLA, for one GPU.
#
# The folder has the module, the GPU's config and the options; the answer is written into it.


MODULE, JOB, HLO, ANSWER = "module.mlirbc", "job.json", "scheduled.hlo", "answer.json"


def main(folder: Path) -> None:
    """Compile what a folder asks for."""
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    module = (folder / MODULE).read_bytes()
    text, sizes = compile_module(module, job["config"], job["devices"], job["options"])
    (folder / HLO).write_text(text, encoding="utf-8")
    (folder / ANSWER).write_text(json.dumps(sizes), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
