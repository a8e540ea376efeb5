"""The changes that advice tries: what each is called, the line of code, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from wavecast.errors import InvalidInput
from wavecast.footprint.advice import quantize_state
from wavecast.hardware.devices import Device, family
from wavecast.targets.sources import run_target, traced_target
from wavecast.targets.targets import Target, Trait
from wavecast.traces.editing import Edit
from wavecast.traces.script import Loading, ScriptRun
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace


@dataclass(frozen=True, slots=True)
class StepChange:
    """One change to a training step."""

    name: str
    """Its name, as in `bf16`."""
    title: str
    """What it is, in a few words."""
    code: str
    """The line of code that makes it."""
    price: str
    """What it costs: numerics, memory, effort; empty for nothing."""
    same_training: bool = True
    """Whether the same weights are trained in the same way; adapters and larger batches are not."""
    saves_memory: bool = False
    """Whether it is there to save memory, and may cost time."""


CHANGES = {
    change.name: change
    for change in (
        StepChange(
            "bf16",
            "autocast to bfloat16",
            'with torch.autocast("cuda", torch.bfloat16): loss = ...',
            "8 bits of mantissa in matmuls; weights stay float32",
        ),
        StepChange(
            "fp16",
            "autocast to float16",
            'with torch.autocast("cuda", torch.float16): loss = ...; scaler = GradScaler()',
            "gradients must be scaled (torch.amp.GradScaler)",
        ),
        StepChange(
            "tf32",
            "TF32 matmuls",
            'torch.set_float32_matmul_precision("high")',
            "10 bits of mantissa in float32 matmuls",
        ),
        StepChange(
            "channels_last",
            "channels-last images",
            "model.to(memory_format=torch.channels_last), and the images, too",
            "none in numerics; views of the shape of images may need reshape",
        ),
        StepChange(
            "compile",
            "torch.compile",
            "model = torch.compile(model)",
            "a minute of compilation at the start, and again for new shapes",
        ),
        StepChange(
            "compile_graphs",
            "torch.compile with CUDA graphs",
            'model = torch.compile(model, mode="reduce-overhead")',
            "as torch.compile; memory of the graphs is kept, and shapes must not change",
        ),
        StepChange(
            "cuda_graph",
            "the whole step as a CUDA graph",
            "torch.cuda.graph(...): capture forward, backward and update once, then replay",
            "fixed shapes and addresses, no reads of the GPU, an optimizer with capturable=True",
        ),
        StepChange(
            "sdpa",
            "fused attention",
            "y = F.scaled_dot_product_attention(q, k, v, is_causal=...)",
            "attention weights are not available any more",
        ),
        StepChange(
            "fused_optimizer",
            "fused optimizer",
            "optimizer = ...(model.parameters(), ..., fused=True)",
            "",
        ),
        StepChange(
            "foreach_optimizer",
            "foreach optimizer",
            "optimizer = ...(model.parameters(), ..., foreach=True)",
            "temporaries of the size of the weights",
        ),
        StepChange(
            "fewer_waits",
            "fewer reads of the GPU",
            "read losses every 100 steps, or keep them on the GPU",
            "logs come later",
        ),
        StepChange(
            "async_copies",
            "copies that do not wait",
            "DataLoader(..., pin_memory=True); x = x.to(device, non_blocking=True)",
            "host memory that cannot be swapped",
        ),
        StepChange(
            "set_to_none",
            "gradients freed, not zeroed",
            "optimizer.zero_grad(set_to_none=True)",
            "code that reads .grad after zero_grad finds None",
        ),
        StepChange(
            "padding",
            "sizes padded",
            "vocabulary and widths as multiples of 64: nn.Linear(d, 64 * ceil(n / 64))",
            "a few unused classes; checkpoints have another shape",
        ),
        StepChange(
            "batch",
            "twice the batch",
            "batch_size *= 2 (and half the gradient accumulation, if there is any)",
            "the learning rate may have to follow; memory",
            same_training=False,
        ),
        StepChange(
            "checkpointing_half",
            "checkpointing of every second block",
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for half of them",
            "half of the forward pass runs twice",
            saves_memory=True,
        ),
        StepChange(
            "checkpointing",
            "checkpointing of all blocks",
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            "the forward pass of the blocks runs twice",
            saves_memory=True,
        ),
        StepChange(
            "chunked_loss",
            "loss in chunks of tokens",
            "checkpoint(head_and_cross_entropy, chunk) for 8 chunks; or Liger's fused kernel",
            "the output layer runs twice; logits cannot be returned",
            saves_memory=True,
        ),
        StepChange(
            "eight_bit_optimizer",
            "8-bit optimizer",
            "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), ...)",
            "optimizer states in 8 bits, with a scale for every 256; its time is that of today's",
            saves_memory=True,
        ),
        StepChange(
            "lora",
            "LoRA",
            "model = peft.get_peft_model(model, LoraConfig(r=16))   (--lora r=16)",
            "only adapters train",
            same_training=False,
            saves_memory=True,
        ),
        StepChange(
            "qlora",
            "QLoRA",
            "BitsAndBytesConfig(load_in_4bit=True) and peft   (--qlora --checkpointing)",
            "only adapters train; weights are stored in 4 bits",
            same_training=False,
            saves_memory=True,
        ),
        StepChange(
            "jax_bf16",
            "bfloat16 activations",
            "x = x.astype(jnp.bfloat16), and weights where they are used",
            "8 bits of mantissa in matmuls; weights stay float32",
        ),
        StepChange(
            "donation",
            "arguments donated",
            "jax.jit(step, donate_argnums=...)",
            "the arguments cannot be read after the call",
            saves_memory=True,
        ),
        StepChange(
            "remat_matmuls",
            "remat of all but matmuls",
            "jax.checkpoint(loss, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)",
            "what lies between matmuls runs twice",
            saves_memory=True,
        ),
        StepChange(
            "remat",
            "remat of the whole loss",
            "jax.checkpoint(loss)",
            "the forward pass runs twice",
            saves_memory=True,
        ),
    )
}
"""All changes by name, in the order in which they are tried."""
OF_JAX = frozenset({"jax_bf16", "donation", "remat_matmuls", "remat"})
"""The changes to steps of JAX; all others but a larger batch are to steps of torch."""


# The variants of a step: its trace with some changes, from its code or from its trace alone.


GRAPHED = "cuda_graph"
"""The change that concerns the host alone: the trace stays as it is."""
_ADAPTERS = ("lora", "qlora")
_PRECISIONS = ("bf16", "fp16", "tf32")
_MODES: dict[str, bool | str] = {"compile": True, "compile_graphs": "reduce-overhead"}


class StepVariants(Protocol):
    """The traces of a step with changes."""

    @property
    def name(self) -> str:
        """The title of reports."""
        ...

    @property
    def unsuitable(self) -> frozenset[str]:
        """The changes that have no meaning for such a step."""
        ...

    def traced(self, names: Sequence[str]) -> Trace:
        """The trace with changes to the code.

        Raises:
            WavecastError: the step cannot be changed so; the message says why.
        """
        ...

    @property
    def loading(self) -> Loading | None:
        """The data loader of a script that was traced before; None without one."""
        ...


@dataclass(frozen=True)
class TargetVariants:
    """Variants of a target: a function, a script, a model, or a trace, which is as it is."""

    target: Target
    gpu: Device
    _first: list[ScriptRun] = field(default_factory=list)
    """The run of a script as it is, once it was traced."""

    @property
    def name(self) -> str:
        """The title of reports."""
        return self.target.name

    @property
    def unsuitable(self) -> frozenset[str]:
        """All that need code for a trace; adapters for all but Hugging Face models."""
        if self.target.trace is not None:
            return frozenset(CHANGES) - {*EDITS, GRAPHED}
        if Trait.JAX in self.target.traits:
            return frozenset(CHANGES) - {*OF_JAX, "batch"}
        if self.target.script is not None:
            return OF_JAX | {*_ADAPTERS, "compile_graphs"}
        is_model = Trait.HUGGING_FACE in self.target.traits
        if not is_model or self.target.options.lora or self.target.options.qlora:
            return OF_JAX | {*_ADAPTERS}
        return OF_JAX

    def traced(self, names: Sequence[str]) -> Trace:
        """The trace with changes to the code."""
        if self.target.trace is not None:
            return self.target.trace
        target = changed_target(self.target, names)
        if target.script is None:
            return traced_target(target, self.gpu)
        if names:
            again = replace(target.script.options, loader=False, quiet=True)
            script = replace(target.script, options=again)
            return traced_target(replace(target, script=script), self.gpu)
        self._first[:] = [run_target(target, self.gpu)]
        return self._first[0].trace

    @property
    def loading(self) -> Loading | None:
        """The data loader of a script that was traced before; None without one."""
        return self._first[0].loading if self._first else None


def changed_target(target: Target, names: Sequence[str]) -> Target:
    """The target with changes, by the names of the catalogue.

    Raises:
        InvalidInput: the step cannot be changed so.
    """
    for name in names:
        target = _changed(target, name)
    return target


def _changed(target: Target, name: str) -> Target:
    if name in _PRECISIONS and target.precision is not None:
        return target.changed(precision=name)
    if name == "jax_bf16":
        return target.changed(precision="bf16")
    if name in _MODES:
        return replace(target, compiled=_MODES[name])
    if name == "batch" and target.script is not None:
        return replace(target, changes=(*target.changes, "twice_the_batch"))
    if name == "batch":
        if target.batch is None:
            raise InvalidInput("its batch is not known; give --batch, which the step then takes")
        return target.changed(batch=2 * target.batch)
    if name in _ADAPTERS or (name == "checkpointing" and target.traits & Trait.ADAPTABLE):
        return _with_options(target, name)
    return replace(target, changes=(*target.changes, name))


def _with_options(target: Target, name: str) -> Target:
    options = {
        "lora": replace(target.options, lora="r=16"),
        "qlora": replace(target.options, qlora=True, weights=None, checkpointing=True),
        "checkpointing": replace(target.options, checkpointing=True),
    }[name]
    return target.changed(options=options)


def variant(variants: StepVariants, names: Sequence[str]) -> Trace:
    """The trace of a step with changes, those of code before those of the trace.

    Raises:
        InvalidInput: a change has nothing to change.
    """
    trace = variants.traced([n for n in names if n not in EDITS and n != GRAPHED])
    for name in names:
        if name in EDITS:
            edited = EDITS[name](trace)
            if edited is None:
                raise InvalidInput("there is nothing to change")
            trace = edited
    return trace


# Changes that are made to a trace itself: they need no run of the step's code.


_READS = ("aten._local_scalar_dense", "aten.item")
_ASYNC = (("non_blocking", True), ("pin_memory", True))
"""How a copy is recorded whose source is pinned, and for which the host does not wait."""
_MATMULS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.linear")
_ALIGNED = 8
"""Tensor cores read 16 bytes at once: eight values of 16 bits."""
_PADDED_TO = 64
_LEAST_SIZE = 128


def is_copy_to_gpu(call: Call) -> bool:
    """Whether the host waits in a call until data of its memory are on the GPU."""
    op = call.op
    return call.syncs and bool(op.outputs) and op.outputs[0].device == "cuda" and _from_host(op)


def _from_host(op: Op) -> bool:
    return any(spec.device == "cpu" for spec in op.inputs)


def is_read(call: Call) -> bool:
    """Whether the host waits in a call for a value or a copy that need not be there at once."""
    op = call.op
    if not call.syncs:
        return False
    to_host = bool(op.outputs) and op.outputs[0].device == "cpu" and not _from_host(op)
    return op.base in _READS or (to_host and op.base in ("aten._to_copy", "aten.copy_"))


def waiting_lines(trace: Trace) -> Counter[str]:
    """The lines of code that read the GPU's values, and how often in a step."""
    return Counter(call.line or "an unknown line" for call in trace if is_read(call))


def without_reads(trace: Trace) -> Trace | None:
    """The step without reads of single values, and with copies to the host that do not wait."""
    edit, changed = Edit(trace), False
    for position, call in enumerate(trace.calls):
        if is_read(call):
            changed = True
            if call.op.base in _READS:
                edit.remove([position])
            else:
                edit.replace(position, replace(call, syncs=False))
    return edit.trace() if changed else None


def with_async_copies(trace: Trace) -> Trace | None:
    """The step with copies from pinned memory, which do not make the host wait."""
    edit, changed = Edit(trace), False
    for position, call in enumerate(trace.calls):
        if is_copy_to_gpu(call):
            changed = True
            kept = (pair for pair in call.op.attrs if pair[0] not in dict(_ASYNC))
            op = replace(call.op, attrs=(*kept, *_ASYNC))
            edit.replace(position, replace(call, op=op, syncs=False))
    return edit.trace() if changed else None


def with_padded_sizes(trace: Trace) -> Trace | None:
    """The step with vocabularies and widths that no matmul has to read unaligned."""
    odd = odd_sizes(trace)
    if not odd:
        return None
    sizes = {size: -(-size // _PADDED_TO) * _PADDED_TO for size in odd}
    specs: dict[TensorSpec, TensorSpec] = {}
    known: dict[Op, Op] = {}

    def padded(spec: TensorSpec) -> TensorSpec:
        if spec not in specs:
            specs[spec] = _padded(spec, sizes)
        return specs[spec]

    def op_of(op: Op) -> Op:
        if op not in known:
            inputs, outputs = (tuple(map(padded, each)) for each in (op.inputs, op.outputs))
            known[op] = Op(op.name, inputs, outputs, op.attrs)
        return known[op]

    grown = _grown(trace, padded)
    return replace(
        trace,
        calls=tuple(replace(call, op=op_of(call.op)) for call in trace.calls),
        values=tuple(replace(value, spec=padded(value.spec)) for value in trace.values),
        allocations=grown,
    )


def odd_sizes(trace: Trace) -> tuple[int, ...]:
    """The widths of weights in 16-bit and TF32 matmuls that are no multiples of eight."""
    return odd_widths(trace, _on_tensor_cores)


def odd_widths(trace: Trace, test: Callable[[Op], bool] = lambda _: True) -> tuple[int, ...]:
    """The widths of weights in some matmuls that are no multiples of eight, in order."""
    weights = {size for value in trace.values if value.parameter for size in value.spec.shape}
    positions: set[int] = set()
    for op in trace.counts:
        if op.base in _MATMULS and test(op):
            positions |= {size for spec in op.inputs for size in spec.shape} & weights
    return tuple(sorted(n for n in positions if n >= _LEAST_SIZE and n % _ALIGNED))


def _on_tensor_cores(op: Op) -> bool:
    is_tf32 = op.attr("precision") == "tf32"
    return is_tf32 or any(spec.dtype in ("bfloat16", "float16") for spec in op.inputs)


def _padded(spec: TensorSpec, sizes: dict[int, int]) -> TensorSpec:
    shape = tuple(sizes.get(size, size) for size in spec.shape)
    if shape == spec.shape and spec.strides is None:
        return spec
    strides = spec.strides
    for old, new in sizes.items():
        if strides is not None:
            strides = tuple(s // old * new if s and s % old == 0 else s for s in strides)
    return replace(spec, shape=shape, strides=strides)


def _grown(trace: Trace, padded: Callable[[TensorSpec], TensorSpec]) -> tuple[Allocation, ...]:
    """The memory of the step, with that of padded tensors grown in proportion."""
    factors: dict[int, float] = {}
    for value in trace.values:
        if value.allocation is not None and value.view_of is None and value.spec.nbytes:
            factors[value.allocation] = padded(value.spec).nbytes / value.spec.nbytes
    return tuple(
        replace(memory, nbytes=round(memory.nbytes * factors.get(number, 1.0)))
        for number, memory in enumerate(trace.allocations)
    )


def with_eight_bit_states(trace: Trace) -> Trace | None:
    """The step with an optimizer that keeps its states in eight bits; None if it has none."""
    has_states = any(memory.role is Role.OPTIMIZER_STATE for memory in trace.allocations)
    return quantize_state(trace) if has_states else None


EDITS = {
    "fewer_waits": without_reads,
    "async_copies": with_async_copies,
    "padding": with_padded_sizes,
    "eight_bit_optimizer": with_eight_bit_states,
}
"""The changes that are made to a trace, by name; each gives None where it has nothing to change."""


# Which changes make sense for a step on a GPU: what its trace and the GPU say beforehand.


_MATMUL_OPS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")
_LEAST_CLASSES = 8192
_FIRST_BF16 = (8, 0)


def why_not(name: str, trace: Trace, gpu: Device) -> str:
    """Why a change is not worth trying; empty if it is."""
    check = _CHECKS.get(name)
    return "" if check is None else check(trace, gpu)


def _has(trace: Trace, test: Callable[[Op], bool]) -> bool:
    return any(map(test, trace.counts))


def _is_wide(op: Op) -> bool:
    return op.base in _MATMUL_OPS and bool(op.inputs) and op.inputs[0].dtype == "float32"


def _bf16(trace: Trace, gpu: Device) -> str:
    if lacks_bf16(gpu):
        return f"{gpu.id} has no bfloat16 matmuls"
    return "" if _has(trace, _is_wide) else "its matmuls are not float32"


def _fp16(trace: Trace, gpu: Device) -> str:
    if not lacks_bf16(gpu):
        return "bfloat16 is as fast here, and needs no scaling"
    return "" if _has(trace, _is_wide) else "its matmuls are not float32"


def lacks_bf16(gpu: Device) -> bool:
    """Whether a GPU has no matmuls in bfloat16."""
    capability = family(gpu)
    return capability is not None and capability < _FIRST_BF16


def _tf32(trace: Trace, gpu: Device) -> str:
    if lacks_bf16(gpu):
        return f"{gpu.id} has no TF32"
    wide = _has(trace, lambda op: _is_wide(op) and op.attr("precision") != "tf32")
    return "" if wide else "no matmul is computed in float32"


def _channels_last(trace: Trace, _: Device) -> str:
    def is_plain(op: Op) -> bool:
        images = op.inputs[0] if op.inputs else None
        return (
            op.base == "aten.convolution"
            and images is not None
            and len(images.shape) == 4
            and not images.channels_last
        )

    return "" if _has(trace, is_plain) else "there is no convolution of images in the other format"


def _uncompiled(trace: Trace, _: Device) -> str:
    return "it is compiled already" if any(call.graph is not None for call in trace) else ""


def _sdpa(trace: Trace, _: Device) -> str:
    has = _has(trace, lambda op: op.base in ("aten._softmax", "aten.softmax"))
    return "" if has else "no attention is written by hand"


def _updates(trace: Trace) -> set[str]:
    return {call.op.base for call in trace if call.phase is Phase.OPTIMIZER}


def _fused(trace: Trace, _: Device) -> str:
    updates = _updates(trace)
    if not updates:
        return "no optimizer was seen"
    return "it is fused already" if any("_fused" in name for name in updates) else ""


def _foreach(trace: Trace, gpu: Device) -> str:
    updates = _updates(trace)
    if any("_foreach" in name for name in updates):
        return "it is one already"
    return _fused(trace, gpu)


def _set_to_none(trace: Trace, _: Device) -> str:
    zeroes = {"aten.zero_", "aten._foreach_zero_", "aten.fill_"}
    return "" if zeroes & _updates(trace) else "gradients are freed already"


def _chunked(trace: Trace, _: Device) -> str:
    def is_loss(op: Op) -> bool:
        return op.base == "aten._log_softmax" and op.inputs[0].shape[-1] >= _LEAST_CLASSES

    return "" if _has(trace, is_loss) else "there is no loss over a vocabulary"


def _padding(trace: Trace, _: Device) -> str:
    if odd_sizes(trace):
        return ""
    odd = " and ".join(map(str, odd_widths(trace)[-2:]))
    return f"{odd} cost nothing without tensor cores" if odd else "all widths are aligned"


def _waits(trace: Trace, _: Device) -> str:
    return "" if any(map(is_read, trace)) else "the host reads nothing from the GPU"


def _copies(trace: Trace, _: Device) -> str:
    return "" if any(map(is_copy_to_gpu, trace)) else "no copy makes the host wait"


_CHECKS: dict[str, Callable[[Trace, Device], str]] = {
    "bf16": _bf16,
    "fp16": _fp16,
    "tf32": _tf32,
    "channels_last": _channels_last,
    "compile": _uncompiled,
    "compile_graphs": _uncompiled,
    "sdpa": _sdpa,
    "fused_optimizer": _fused,
    "foreach_optimizer": _foreach,
    "set_to_none": _set_to_none,
    "chunked_loss": _chunked,
    "padding": _padding,
    "fewer_waits": _waits,
    "async_copies": _copies,
    "jax_bf16": _bf16,
}
