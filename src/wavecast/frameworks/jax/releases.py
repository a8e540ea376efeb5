"""The private interfaces of JAX that are used, all in this file.

Tried with jax 0.9.2, 0.10.2 and 0.12.0.1, each with its compiler, and 0.10.2 with that of 0.12.0.1.

`lower` runs in the user's process, `compile_module` in a process of its own.
"""

from __future__ import annotations

import inspect
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from wavecast.frameworks.replacements import replacing
from wavecast.hardware.devices import Device

OLDEST = "0.9.2"
PLUGINS = ("jax-cuda13-pjrt", "jax-cuda12-pjrt")
"""The packages with XLA's compiler for CUDA, the one that is preferred first."""
_CUDNN = 91200


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def expect_no_extension() -> None:
    """Keep the plugin from warning that its extension is missing: only kernels on a GPU need it."""
    for plugin in ("xla_cuda13", "xla_cuda12"):
        logging.getLogger(f"jax_plugins.{plugin}").addFilter(
            lambda record: "cuda_plugin_extension is not found" not in record.getMessage()
        )


def versions() -> str:
    """JAX, jaxlib and the plugin with their versions, as `Trace.framework` says them."""
    plugin = next((name for name in PLUGINS if version_of(name)), None)
    packages = ["jax", "jaxlib", *([plugin] if plugin else [])]
    return ", ".join(f"{name} {version_of(name)}" for name in packages)


def takes_versions() -> bool:
    """Whether the compiler knows the versions of libraries in a target config: from 0.10 on."""
    plugin = next(filter(None, map(version_of, PLUGINS)), "0.10")
    return tuple(int(part) for part in plugin.split(".")[:2]) >= (0, 10)


def bytecode(lowered: Any) -> bytes:
    """A lowered step as bytes that another process can compile."""
    stream = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(stream)
    return stream.getvalue()


def partitions(lowered: Any) -> int:
    """Over how many devices a lowered step is spread."""
    attributes = lowered.compiler_ir("stablehlo").operation.attributes
    name = "mhlo.num_partitions"
    return int(attributes[name]) if name in attributes else 1


@contextmanager
def lowering_for(gpu: Device) -> Iterator[None]:
    """JAX lowers as on a GPU: attention by cuDNN, kernels of Pallas, and calls of the host's Python
    from a step."""
    with _cudnn_as_on(gpu), _callbacks_lowered(), _pallas_lowered(gpu):
        yield


@contextmanager
def _callbacks_lowered() -> Iterator[None]:
    """`jax.debug.print` and other callbacks ask for a client of the GPU, and do not use it."""
    from jax._src.interpreters import mlir

    own = mlir.ModuleContext.get_backend

    def any_backend(self: Any, *arguments: Any, **named: Any) -> Any:
        return self.backend or own(self, *arguments, **named)

    with replacing() as replace:
        replace(mlir.ModuleContext, get_backend=any_backend)
        yield


@contextmanager
def _pallas_lowered(gpu: Device) -> Iterator[None]:
    """Newer releases (0.12) ask the present GPU for its compute capability."""
    try:
        from jax._src.pallas.triton import gpu_info
    except ImportError:
        yield
        return
    major, minor = gpu.compute_capability or (9, 0)
    known = gpu_info.GpuInfo(
        gpu_version=None, arch_name=f"{major}.{minor}", compute_capability=10 * major + minor
    )
    with replacing() as replace:
        replace(gpu_info, get_gpu_info=lambda: known)
        yield


@contextmanager
def _cudnn_as_on(gpu: Device) -> Iterator[None]:
    try:
        from jax._src.cudnn import fused_attention_stablehlo as checks
    except ImportError:
        yield
        return
    have = gpu.compute_capability or (9, 0)

    def at_least(capability: str) -> bool:
        return have >= _capability(capability)

    def equal(capability: str) -> bool:
        return have == _capability(capability)

    answers = {
        "check_cudnn_version": lambda: _CUDNN,
        "check_compute_capability": at_least,
        "is_cuda_compute_capability_equal": equal,
    }
    with replacing() as replace:
        replace(checks, **{name: f for name, f in answers.items() if hasattr(checks, name)})
        yield


def _capability(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text).split("."))


def compile_module(
    module: bytes, config: str, devices: int, options: Mapping[str, int | bool]
) -> tuple[str, Mapping[str, int]]:
    """The scheduled HLO of a module for a GPU that need not be there, and its memory.

    Args:
        module: what `bytecode` gave.
        devices: over how many of them the step is spread.
    """
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=config, topology=f"1x1x{devices}"
    )
    chosen = topology.devices[:devices]
    given = compiler.get_compile_options(1, devices, env_options_overrides=dict(options))
    if devices > 1:
        given.executable_build_options.use_spmd_partitioning = True
        given.executable_build_options.use_shardy_partitioner = True
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        compiled = compiler.backend_compile_and_load(
            chosen[0].client, parsed, xla_client.DeviceList(tuple(chosen)), given, []
        )
    stats = compiled.get_compiled_memory_stats()
    names = ("argument", "output", "alias", "temp")
    sizes = {name: int(getattr(stats, f"{name}_size_in_bytes")) for name in names}
    return compiled.hlo_modules()[0].to_string(), sizes


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree."""
    import jax

    return list(jax.tree.leaves(tree))


def named_leaves(
    jitted: Any, arguments: Sequence[Any], named: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The leaves of a call's arguments with their dotted paths: "state.params.w"."""
    import jax

    try:
        known = list(inspect.signature(jitted).parameters)
    except (TypeError, ValueError):
        known = []
    names = [*known, *(f"arguments.{n}" for n in range(len(known), len(arguments)))]
    rows: dict[str, Any] = dict(zip(names, arguments, strict=False)) | dict(named)
    return [
        (".".join([name, *(_part(key) for key in path)]), leaf)
        for name, tree in rows.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def _part(key: Any) -> str:
    """One key of a path: of a mapping, a sequence or an object's field."""
    known = (getattr(key, name, None) for name in ("name", "key", "idx"))
    return str(next((part for part in known if part is not None), key))


def donated_leaves(jitted: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> set[int]:
    """The ids of the arguments' leaves whose memory a jitted function takes over."""
    import jax

    infos = jax.tree.leaves(jitted.trace(*arguments, **named).args_info)
    given = jax.tree.leaves((tuple(arguments), dict(named)))
    if len(infos) != len(given):  # some arguments are static
        given = [leaf for leaf in given if is_array(leaf)]
    if len(infos) != len(given):
        return set()
    return {id(leaf) for leaf, info in zip(given, infos, strict=True) if info.donated}


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, of JAX or of numpy, or the shape of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def shapes_of(tree: Any) -> str:
    """A tree without the values of its arrays, as text."""
    import jax

    def shown(leaf: Any) -> str:
        return f"{leaf.dtype}{leaf.shape}" if is_array(leaf) else type(leaf).__name__

    leaves, structure = jax.tree.flatten(tree)
    return f"{[shown(leaf) for leaf in leaves]} {structure}"


def is_tracing(tree: Any) -> bool:
    """Whether jax is tracing a function, so that a call in it belongs to another one."""
    import jax
    from jax._src import core

    return not core.trace_state_clean() or any(isinstance(x, jax.core.Tracer) for x in leaves(tree))


def is_random_key(leaf: Any) -> bool:
    """Whether an array is a state of random numbers, of the new kind or of the old one."""
    import jax

    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return True
    return bool(leaf.shape[-1:] == (2,) and str(leaf.dtype) == "uint32")


def same_array(array: Any) -> Any:
    """Another array object with the same memory."""
    import jax

    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return jax.random.wrap_key_data(
            same_array(jax.random.key_data(array)), impl=jax.random.key_impl(array)
        )
    parts = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def zeros(shape: Any) -> Any:
    """An array of zeros, or of states of random numbers."""
    import jax

    if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jax.numpy.broadcast_to(jax.random.key(0), shape.shape)
    array = jax.numpy.zeros(shape.shape, shape.dtype)
    sharding = getattr(shape, "sharding", None)
    return array if sharding is None else jax.device_put(array, sharding)


def forget_compiled() -> None:
    """Let each op come through Python once more, where `ops_watched` sees it."""
    import jax

    jax.clear_caches()


@contextmanager
def ops_watched(note: Callable[[str, Sequence[Any], Sequence[Any]], None]) -> Iterator[None]:
    """Call `note` with name, arguments and results of what is computed at once, op by op.

    Each op is jitted by jax itself, and comes through Python when it is called for the first time
    after `forget_compiled`.
    """
    from jax._src import pjit

    own = pjit._pjit_call_impl_python

    def noted(*arguments: Any, **parameters: Any) -> Any:
        results = own(*arguments, **parameters)
        # From some releases on, results come with what is kept for the next call.
        note(str(parameters.get("name", "an op")), arguments, leaves(results))
        return results

    pjit._pjit_call_impl_python = noted
    try:
        yield
    finally:
        pjit._pjit_call_impl_python = own
