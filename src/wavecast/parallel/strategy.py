"""Strategies: how many ways a step is split, and along which axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from wavecast.errors import InvalidInput
from wavecast.results import Shown

Offload = Literal["none", "optimizer"]
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer")
Schedule = Literal["1f1b", "gpipe", "zero-bubble"]
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "zero-bubble")
HABITS = (
    "fp8",
    "overlap_tensor",
    "gathers_again",
    "fused_rotary",
    "fused_gates",
    "fused_experts",
    "fused_loss",
    "fused_accumulation",
    "reduce_in_16_bits",
    "triton_functions",
    "dispatch_once",
    "sequence_first",
    "flash_attention",
    "first_flash_attention",
    "cudnn_attention",
    "direct_lists",
    "waits_each_step",
)
"""The options that say how a framework runs a step, where it differs from plain PyTorch."""


MOST_GPUS = 1_000_000
"""More GPUs than any cluster has: a strategy with more was mistyped."""
ONE_BUFFER = 10**12
"""A `bucket_bytes` from which on all gradients lie in one buffer."""


@dataclass(frozen=True)
class RankAxis:
    """The ranks that differ in one axis only: `size` ranks, `stride` apart."""

    size: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class Parallel(Shown):
    """How a training step is spread over GPUs.

    ```python
    wavecast.Parallel(data=8)                                # DDP on eight GPUs
    wavecast.Parallel(data=16, shard=3)                      # FSDP on 16 GPUs
    wavecast.Parallel(data=4, tensor=8, pipeline=2, microbatches=8, cluster="dgx-h100")
    wavecast.Parallel(data=8, tensor=8, sequence=True, fp8=True, overlap_tensor=True)
    ```

    The product of `data`, `tensor`, `pipeline` and `context` is the number of GPUs. Ranks are
    numbered as in Megatron: tensor first, then context, data and pipeline. The options from `fp8`
    on say how the framework runs the step, where it differs from plain PyTorch.
    """

    data: int = 1
    """Replicas of the model, or parts of it if sharded: each has its own samples."""
    shard: int = 0
    """The ZeRO stage: 1 shards the optimizer, 2 the gradients too, 3 the weights too (FSDP)."""
    shard_group: int | None = None
    """Data-parallel ranks that share one copy (HSDP). None for all."""
    tensor: int = 1
    """GPUs that share the products of each layer."""
    sequence: bool = False
    """Whether the tensor ranks also split the activations between the products by position."""
    pipeline: int = 1
    """Stages into which the layers are cut."""
    virtual: int = 1
    """Parts of the model that each stage has (the interleaved schedule)."""
    context: int = 1
    """GPUs that share each sequence."""
    expert: int = 1
    """Data-parallel ranks over which the experts of a mixture are spread."""
    microbatches: int = 1
    """Micro-batches that one replica runs per optimizer step."""
    nodes: int | None = None
    """Equal machines. None for as few as the cluster allows."""
    cluster: str | None = None
    """The name of the cluster. None for the GPU's usual machine."""
    schedule: Schedule = "1f1b"
    """The order of forward and backward passes in a pipeline."""
    reshard: bool = True
    """Whether `shard=3` frees gathered weights after the forward pass."""
    offload: Offload = "none"
    """What is kept in the host's memory and done there: "optimizer" for the states and the update
    of the weights (ZeRO-Offload)."""
    bucket_bytes: int | None = None
    """The size of the buckets in which gradients are reduced. None for that of the framework that
    runs the step so: DDP's 25 MiB, Megatron's where matmuls' gradients are added to float32 sums,
    DeepSpeed's with `shard=1` or `2` elsewhere. From 10**12 on all gradients lie in one buffer,
    which is reduced when the backward pass has ended (Megatron without overlap, Apex with
    `delay_allreduce`)."""
    tensor_plan: Mapping[str, str] | None = None
    """How modules are split, as in `{"layers.*.attention.q": "colwise"}`. None to find it."""
    fp8: bool = False
    """Whether blocks compute their matmuls in 8 bits, as with Transformer Engine."""
    overlap_tensor: bool = False
    """Whether the all-gathers and reduce-scatters of `sequence` run beside the matmuls next to
    them (`tp_comm_overlap` in Megatron and NeMo)."""
    gathers_again: bool = False
    """Whether what `sequence` gathers for a matmul is not kept, but gathered again in the backward
    pass (Megatron, nanotron)."""
    fused_rotary: bool = False
    """Whether rotary positions are one kernel for queries and one for keys (Megatron, nanotron)."""
    fused_gates: bool = False
    """Whether an activation and its gate are one kernel (Megatron-Core, Transformer Engine)."""
    fused_experts: bool = False
    """Whether the weighted sum of the experts' results is one kernel (Megatron-Core)."""
    fused_loss: bool = False
    """Whether the gradient of cross entropy is one kernel that writes over the softmax (Megatron's
    `cross_entropy_loss_fusion`)."""
    fused_accumulation: bool = False
    """Whether matmuls add gradients to their float32 sums themselves (Megatron's
    `gradient_accumulation_fusion`). A rank then keeps an empty 16-bit gradient of each shape, which
    Transformer Engine gives to autograd."""
    reduce_in_16_bits: bool = False
    """Whether gradients are reduced in 16 bits, and so are the sums that a framework keeps for it
    (`grad_reduce_in_fp32=False` of Megatron-Core, `reduce_dtype` of FSDP, `bf16_compress_hook`)."""
    triton_functions: bool = False
    """Whether norms, and rotary positions that are one kernel, are Triton kernels in autograd
    functions (nanotron). The host takes longer for each of them."""
    dispatch_once: bool = False
    """Whether a token is sent once to each rank, or machine, that has several of its experts
    (DeepEP, HybridEP)."""
    sequence_first: bool = False
    """Whether the position comes before the batch in memory (Megatron), so that attention that is
    not fused needs no copies."""
    flash_attention: bool = False
    """Whether attention is FlashAttention 2 where PyTorch chooses cuDNN's (Hopper, Blackwell)."""
    first_flash_attention: bool = False
    """Whether attention is FlashAttention of 2022 or its version in Triton, which take about twice
    as long as FlashAttention 2."""
    cudnn_attention: bool = False
    """Whether attention is cuDNN's where PyTorch chooses another kernel: on GPUs of compute
    capability 10.3, and for DeepSeek's heads (Transformer Engine)."""
    direct_lists: bool = False
    """Whether the optimizer's kernels are called on lists of tensors that the framework keeps
    (Apex's `multi_tensor_apply`), which takes the host less time than torch's optimizers."""
    waits_each_step: bool = False
    """Whether the host waits for the GPU at the end of each step, to read the loss or the time."""
    reentrant: bool = False
    """Whether checkpointing has no hooks for the tensors that autograd keeps, as Megatron's own
    function and `use_reentrant=True` have none. The host then takes less time for it."""

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "virtual", "context", "expert", "microbatches"):
            _check_count(name, getattr(self, name))
        for name in ("shard_group", "nodes", "bucket_bytes"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        if self.gpus > MOST_GPUS:
            raise InvalidInput(
                f"the strategy has {self.gpus:,} GPUs; at most {MOST_GPUS:,} are predicted"
            )
        self._check_choices()
        self._check_sequence()
        self._check_divisions()

    def _check_choices(self) -> None:
        if self.shard not in (0, 1, 2, 3):
            raise InvalidInput(
                f"shard is {self.shard!r}; it is a ZeRO stage: 0 (nothing sharded), 1 (optimizer), "
                "2 (gradients too) or 3 (weights too, as FSDP)"
            )
        if self.schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise InvalidInput(f"schedule is {self.schedule!r}; the schedules are {known}")
        if self.offload not in OFFLOADS:
            known = ", ".join(OFFLOADS)
            raise InvalidInput(f"offload is {self.offload!r}; what can be offloaded is {known}")
        if self.offload != "none" and self.data > 1 and not self.shard:
            raise InvalidInput(
                f"offload={self.offload} with data={self.data} needs shard=1, 2 or 3, as in "
                "DeepSpeed: each rank's host updates its share of the weights"
            )
        if self.flash_attention + self.first_flash_attention + self.cudnn_attention > 1:
            raise InvalidInput(
                "flash_attention is FlashAttention 2, first_flash_attention the kernels before it "
                "and cudnn_attention cuDNN's; choose one"
            )
        if self.dispatch_once and self.expert == 1:
            raise InvalidInput(
                "dispatch_once=True says how tokens are sent to experts on other ranks; it needs "
                "expert above 1"
            )
        if self.virtual > 1 and self.pipeline == 1:
            raise InvalidInput(
                f"virtual={self.virtual} gives each pipeline stage several parts; it needs "
                "pipeline above 1"
            )

    def _check_sequence(self) -> None:
        if self.sequence and self.tensor == 1:
            raise InvalidInput("sequence=True splits among tensor ranks; it needs tensor above 1")
        for name in ("overlap_tensor", "gathers_again"):
            if getattr(self, name) and not self.sequence:
                raise InvalidInput(
                    f"{name}=True is for the all-gathers and reduce-scatters of sequence "
                    "parallelism; it needs sequence=True"
                )

    def _check_divisions(self) -> None:
        group = self.shard_group
        if group is not None and not self.shard:
            raise InvalidInput(f"shard_group={group} needs shard=1, 2 or 3")
        if group == 1 and self.data > 1:
            raise InvalidInput(
                f"shard_group=1 shards nothing among data={self.data} ranks; leave out shard and "
                "shard_group"
            )
        if group is not None and self.data % group:
            raise InvalidInput(
                f"data={self.data} cannot be cut into shard groups of {group}; possible sizes are "
                f"{divisors(self.data)}"
            )
        if self.data * self.tensor % self.expert:
            raise InvalidInput(
                f"expert={self.expert} does not divide data x tensor = {self.data * self.tensor}; "
                f"possible sizes are {divisors(self.data * self.tensor)}"
            )
        if self.nodes is not None and self.gpus % self.nodes:
            raise InvalidInput(
                f"{self.gpus} GPUs cannot be spread evenly over nodes={self.nodes}; possible "
                f"numbers are {divisors(self.gpus)}"
            )
        if self.virtual > 1 and self.microbatches % self.pipeline:
            raise InvalidInput(
                f"the interleaved schedule needs microbatches that are a multiple of pipeline="
                f"{self.pipeline}, not {self.microbatches}"
            )

    @property
    def habits(self) -> tuple[str, ...]:
        """The options of `HABITS` that are on."""
        return tuple(name for name in HABITS if getattr(self, name))

    @property
    def has_one_buffer(self) -> bool:
        """Whether all gradients lie in one buffer that is reduced after the backward pass."""
        return self.bucket_bytes is not None and self.bucket_bytes >= ONE_BUFFER

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def shards(self) -> int:
        """Data-parallel ranks that share one copy of what is sharded."""
        return self.shard_group or self.data

    @property
    def axes(self) -> dict[str, RankAxis]:
        """Where the ranks of each axis are.

        `data` has all ranks that reduce the same gradients, those of the context axis included.
        `shard` and `replica` split it: the ranks that share one copy, and the ranks that hold the
        same shard. `expert` has neighbours among the token ranks (with tokens of their own), as
        in Megatron, and `expert_replica` the ranks that hold the same experts.
        """
        data = self.tensor * self.context
        shards = self.shards * self.context
        apart = self.tensor if self.expert > 1 and not self.sequence else 1
        token_ranks = self.data * self.context * (self.tensor if self.sequence else 1)
        return {
            "tensor": RankAxis(self.tensor, 1),
            "context": RankAxis(self.context, self.tensor),
            "data": RankAxis(self.data * self.context, self.tensor),
            "shard": RankAxis(shards, self.tensor),
            "replica": RankAxis(self.data // self.shards, self.tensor * shards),
            "expert": RankAxis(self.expert, apart),
            "expert_replica": RankAxis(max(token_ranks // self.expert, 1), self.expert * apart),
            "pipeline": RankAxis(self.pipeline, data * self.data),
        }


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number of at least 1")


def divisors(count: int) -> str:
    """The numbers of ranks that divide a count evenly, as text."""
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)


def option_of(strategy: Parallel) -> str:
    """A strategy as `--parallel` takes it: "data=8,shard=3,reshard=no"."""
    words = []
    for field in fields(Parallel):
        value = getattr(strategy, field.name)
        if field.name != "tensor_plan" and value != field.default:
            text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
            words.append(f"{field.name}={text}")
    return ",".join(words)
