"""Language modelling: GPT, Llama and mixtures of experts of any size, as large models are built.

Weights can be stored in 16 bits beside float32 copies for the optimizer, as in Megatron and
nanotron. Attention is fused or not, and activations can be recomputed in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from wavecast.errors import InvalidInput
from wavecast.suite.models.mixtures import (
    GatedLayers,
    JointLayers,
    LatentAttention,
    LatentShape,
    MixtureLayers,
    MixtureShape,
    PlainLayers,
    Rotary,
    Turn,
)
from wavecast.suite.tags import complete_sizes
from wavecast.suite.training import Minimizer, TrainingStep, next_tokens

# Low-rank adapters for decoders (Hu et al., LoRA, ICLR 2022).


ADAPTED = ("query", "key", "value", "query_key_value")
"""The layers with adapters if none are named: those that make queries, keys and values."""


class AdaptedLinear(nn.Module):
    """A linear layer that is not trained, and beside it a trained one of low rank."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.narrow = nn.Linear(layer.in_features, rank, bias=False, dtype=layer.weight.dtype)
        self.wide = nn.Linear(rank, layer.out_features, bias=False, dtype=layer.weight.dtype)
        with torch.no_grad():
            self.wide.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        result: Tensor = self.layer(x) + self.wide(self.narrow(x))
        return result


def adapt(model: nn.Module, rank: int, names: Collection[str] = ADAPTED) -> None:
    """Give layers of these names adapters, and train nothing else.

    Raises:
        InvalidInput: the rank is not positive, or no linear layer has one of the names.
    """
    if rank < 1:
        raise InvalidInput(f"the rank of adapters must be at least 1, not {rank}")
    model.requires_grad_(False)
    layers = {
        path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    chosen = {path: layer for path, layer in layers.items() if path.rpartition(".")[2] in names}
    if not chosen:
        known = ", ".join(sorted({path.rpartition(".")[2] for path in layers}))
        raise InvalidInput(f"no layer is named {', '.join(names)}; there are {known}")
    for path, layer in chosen.items():
        model.set_submodule(path, AdaptedLinear(layer, rank))


# An optimizer of weights in 16 bits, as frameworks for large models have it.


BETAS, DECAY = (0.9, 0.95), 0.1
"""The settings of AdamW (Touvron et al. 2023, section 2.3)."""


class MasterWeights(torch.optim.Optimizer):
    """AdamW on float32 copies of 16-bit weights, with gradients clipped to a norm of 1.

    Gradients in bfloat16 are added to float32 ones (`main_grad`, Megatron's name for them) as soon
    as they are made. Those in float16 are added up in float16 and widened before the update, and
    are scaled.
    """

    def __init__(self, weights: Iterable[nn.Parameter], learning_rate: float) -> None:
        super().__init__(weights, {"lr": learning_rate})
        self.weights: list[nn.Parameter] = self.param_groups[0]["params"]
        half = self.weights[0].dtype is torch.float16
        self.scale = 2.0**16 if half else 1.0
        for weight in self.weights:
            self.state[weight] = {
                "master": weight.detach().float(),
                "exp_avg": torch.zeros_like(weight, dtype=torch.float32),
                "exp_avg_sq": torch.zeros_like(weight, dtype=torch.float32),
                "step": torch.zeros((), device=weight.device),
            }
            if half:
                self.state[weight]["gradient"] = torch.zeros_like(weight, dtype=torch.float32)
            else:
                weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
                weight.register_post_accumulate_grad_hook(_widen)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the 16-bit gradients. The float32 ones are zero since the last update."""
        for weight in self.weights:
            weight.grad = None

    def step(self, closure: Any = None) -> None:
        """Clip the gradients, update the copies, and round them to the weights."""
        with torch.no_grad():
            self._apply_gradients()

    def _apply_gradients(self) -> None:
        own: list[Any]
        if self.scale == 1:
            own = gradients = [weight.main_grad for weight in self.weights]
        else:
            own, gradients = [w.grad for w in self.weights], self._listed("gradient")
            torch._foreach_copy_(gradients, own)
        norm = nn.utils.get_total_norm(own) / self.scale
        torch._foreach_mul_(gradients, (1 / (norm + 1e-6)).clamp(max=1.0) / self.scale)
        steps = self._listed("step")
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            self._listed("master"),
            gradients,
            self._listed("exp_avg"),
            self._listed("exp_avg_sq"),
            [],
            steps,
            lr=self.param_groups[0]["lr"],
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=DECAY,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        torch._foreach_copy_(self.weights, self._listed("master"))
        if self.scale == 1:
            torch._foreach_zero_(gradients)

    def _listed(self, name: str) -> list[Tensor]:
        return [self.state[weight][name] for weight in self.weights]


def _widen(weight: Any) -> None:
    weight.main_grad.add_(weight.grad)
    weight.grad = None


RECOMPUTE = ("none", "selective", "alternate", "full")
"""What is recomputed in the backward pass: nothing, the scores of attention, all but fused
attention and every second matmul (as in torchtitan), or whole blocks."""
_STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    head_size: int
    """The width of a head."""
    gated: bool = False
    """Llama's norms, positions and gated feed-forward network; GPT's otherwise."""
    tied: bool = True
    """Whether the embedding is also the output layer."""
    dropout: float = 0.0
    """The share of attention's scores that is dropped, where it is not fused."""
    mixture: MixtureShape | None = None
    """The experts of each block. None for an ordinary feed-forward network."""
    latent: LatentShape | None = None
    """The ranks of DeepSeek's attention. None for ordinary attention."""
    joint: bool = False
    """Whether Llama's queries, keys and values come from one matmul and are copied from its result,
    and both inputs of the gate come from another."""

    def __post_init__(self) -> None:
        is_narrow = self.heads > 0 and self.head_size == self.hidden // self.heads
        if self.heads < 1 or (is_narrow and self.head_size * self.heads != self.hidden):
            raise InvalidInput(
                f"hidden={self.hidden} must divide into heads={self.heads} of an even size; give "
                "another number of heads, or their size (head_size)"
            )
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "head_size"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads or self.head_size % 2:
            raise InvalidInput(
                f"heads={self.heads} of an even size, not {self.head_size}, must divide into "
                f"kv_heads={self.kv_heads} equal groups"
            )
        if self.mixture and not self.gated:
            raise InvalidInput("experts have a gate; they are for llama's blocks, not for gpt's")
        if self.joint and (not self.gated or self.latent):
            raise InvalidInput(
                "joint is for llama's attention: gpt's has one matmul for queries, keys and values "
                "anyway, and attention of low rank cannot have one; leave it out"
            )


def _step(
    name: str,
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    weights: str = "fp32",
    recompute: str = "none",
    fused_attention: bool = True,
    lora: int = 0,
    adapted: Collection[str] = ADAPTED,
    learning_rate: float = 3e-4,
    **shape: Any,
) -> TrainingStep:
    """Pre-training of a decoder. The inputs are `tokens`, and `targets`, the next tokens.

    The sizes that `shape` does not give follow from the others (`complete_sizes`). `weights` in 16
    bits have float32 copies in the optimizer. `recompute` is one of `RECOMPUTE`. Without
    `fused_attention`, scores are written to memory, and the share `dropout` of them is dropped.
    With `lora`, only adapters of that rank train, of the layers that `adapted` names.
    """
    _check(recompute, weights, precision)
    sizes = _shape_of(**complete_sizes(name, shape))
    with torch.device(device):
        model = SizedDecoder(sizes, recompute, fused_attention).to(_STORED[weights])
        if lora:
            adapt(model, lora, adapted)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())

    run = _minimizer(loss, model, precision, device, learning_rate)
    return TrainingStep(model, next_tokens(sizes.vocab, batch, sizes.seq, device), run)


def _shape_of(
    *,
    experts: int = 0,
    top_k: int = 2,
    shared_experts: int = 0,
    dense_layers: int = 0,
    dense_ffn: int | None = None,
    kv_rank: int = 0,
    q_rank: int = 0,
    **sizes: Any,
) -> DecoderShape:
    """The sizes of a decoder, checked.

    `experts` of width `ffn` make a mixture, `top_k` for each token, beside `shared_experts` for
    all; the first `dense_layers` have none. With `kv_rank`, and `q_rank` for queries, attention is
    DeepSeek's.
    """
    mixture = (top_k, shared_experts, dense_layers, dense_ffn)
    return DecoderShape(
        **sizes,
        mixture=MixtureShape(experts, *mixture) if experts else None,
        latent=LatentShape(kv_rank, q_rank) if kv_rank else None,
    )


def _check(recompute: str, weights: str, precision: str) -> None:
    if recompute not in RECOMPUTE:
        raise InvalidInput(f"recompute is {recompute!r}; it is one of {', '.join(RECOMPUTE)}")
    if weights not in ("fp32", precision):
        raise InvalidInput(
            f"weights in {weights} need matmuls in the same precision, not in {precision}; "
            "store them as fp32, or compute in their precision"
        )


def _minimizer(
    loss: Callable[..., Tensor], model: nn.Module, precision: str, device: str, rate: float
) -> Callable[..., Tensor]:
    """The function that runs one optimizer step, by the dtype of the weights."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if weights[0].dtype is not torch.float32:
        return partial(_update_copies, loss, MasterWeights(weights, rate))
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=BETAS, weight_decay=DECAY, fused=True)
    return Minimizer(loss, optimizer, precision, device, clip_norm=1.0)


gpt = partial(_step, "gpt")
llama = partial(_step, "llama", gated=True)
mixtral = partial(_step, "mixtral", gated=True, tied=False)
"""A mixture of experts."""


def parameter_count(name: str, **shape: Any) -> int:
    """The parameters of a decoder, by the name of its function and its sizes."""
    way: dict[str, Any] = {"gpt": gpt, "llama": llama, "mixtral": mixtral}[name].keywords
    with torch.device("meta"):
        model = SizedDecoder(_shape_of(**complete_sizes(name, {**way, **shape})), "none", True)
    return sum(weight.numel() for weight in model.parameters())


def _update_copies(
    loss: Callable[..., Tensor], optimizer: MasterWeights, *inputs: Tensor
) -> Tensor:
    """One optimizer step of weights that the optimizer has in float32, too."""
    optimizer.zero_grad()
    value = loss(*inputs)
    (value * optimizer.scale).backward()
    optimizer.step()
    return value.detach()


class SizedDecoder(nn.Module):
    """Blocks of attention and a feed-forward network, each with a norm before it."""

    def __init__(self, sizes: DecoderShape, recompute: str, fused_attention: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.words = nn.Embedding(sizes.vocab, sizes.hidden)
        self.positions = None if sizes.gated else nn.Embedding(sizes.seq, sizes.hidden)
        scores_again = recompute == "selective"
        self.blocks = nn.ModuleList(
            DecoderBlock(sizes, fused_attention, scores_again, layer)
            for layer in range(sizes.layers)
        )
        self.norm = _norm(sizes)
        self.output = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        if sizes.tied:
            self.output.weight = self.words.weight
        size = LatentShape.turned(sizes.head_size) if sizes.latent else sizes.head_size
        rates = 500_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(sizes.seq).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos() if sizes.gated else None)
        self.register_buffer("sin", angles.sin() if sizes.gated else None)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) -> logits of each next token, (batch, sequence, vocabulary)."""
        x = self.words(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        turn = (self.cos, self.sin)
        for block in self.blocks:
            if self.recompute == "full":
                x = checkpoint(block, x, turn, use_reentrant=False)
            elif self.recompute == "alternate":
                x = checkpoint(block, x, turn, use_reentrant=False, context_fn=_every_second)
            else:
                x = block(x, turn)
        return self.output(self.norm(x))


class _EverySecond:
    """torchtitan's policy: keep the results of attention and of every second matmul."""

    def __init__(self) -> None:
        self.products = {False: 0, True: 0}

    def __call__(self, context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = op.overloadpacket.__name__
        if name in ("mm", "addmm"):
            self.products[context.is_recompute] += 1
            kept = self.products[context.is_recompute] % 2 == 1
        else:
            kept = "scaled_dot_product" in name
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _every_second() -> Any:
    """The contexts of one checkpoint. Torch's compiler takes only a function as it stands."""
    return create_selective_checkpoint_contexts(_EverySecond())


def _norm(sizes: DecoderShape) -> nn.Module:
    return nn.RMSNorm(sizes.hidden) if sizes.gated else nn.LayerNorm(sizes.hidden)


class DecoderBlock(nn.Module):
    """One block."""

    def __init__(self, sizes: DecoderShape, fused: bool, scores_again: bool, layer: int) -> None:
        super().__init__()
        self.attention_norm = _norm(sizes)
        self.attention = (
            LatentAttention(sizes.hidden, sizes.heads, sizes.head_size, sizes.latent)
            if sizes.latent
            else DecoderAttention(sizes, fused, scores_again)
        )
        self.feed_forward_norm = _norm(sizes)
        self.feed_forward = _feed_forward(sizes, layer)

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        """(batch, sequence, width) -> the same."""
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.feed_forward(self.feed_forward_norm(x))


def _feed_forward(sizes: DecoderShape, layer: int) -> nn.Module:
    if not sizes.gated:
        return PlainLayers(sizes.hidden, sizes.ffn)
    if sizes.mixture is None:
        return (JointLayers if sizes.joint else GatedLayers)(sizes.hidden, sizes.ffn)
    if layer < sizes.mixture.dense_layers:
        return GatedLayers(sizes.hidden, sizes.mixture.dense_width(sizes.ffn))
    return MixtureLayers(sizes.mixture, sizes.hidden, sizes.ffn)


class DecoderAttention(nn.Module):
    """Causal attention. GPT has one matmul for queries, keys and values, ordered by heads."""

    def __init__(self, sizes: DecoderShape, fused: bool, scores_again: bool) -> None:
        super().__init__()
        self.size = sizes.head_size
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        self.fused, self.scores_again = fused, scores_again and not fused
        self.dropout = sizes.dropout
        self.copied = sizes.joint and sizes.gated
        self.joint = self.copied or (sizes.kv_heads == sizes.heads and not sizes.gated)
        bias, narrow = not sizes.gated, sizes.kv_heads * self.size
        wide = sizes.heads * self.size
        if self.joint:
            self.query_key_value = nn.Linear(sizes.hidden, wide + 2 * narrow, bias=bias)
        else:
            self.query = nn.Linear(sizes.hidden, wide, bias=bias)
            self.key = nn.Linear(sizes.hidden, narrow, bias=bias)
            self.value = nn.Linear(sizes.hidden, narrow, bias=bias)
        self.query_rotary = Rotary() if sizes.gated else None
        self.key_rotary = Rotary() if sizes.gated else None
        self.project = nn.Linear(wide, sizes.hidden, bias=bias)

    def _parts(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values, (batch, heads, sequence, size) each."""
        if self.copied:
            parts = self._copied(self.query_key_value(x))
        elif self.joint:
            parts = self.query_key_value(x).unflatten(-1, (self.heads, -1)).chunk(3, dim=-1)
        else:
            layers = (self.query, self.key, self.value)
            parts = tuple(layer(x).unflatten(-1, (-1, self.size)) for layer in layers)
        return [part.transpose(1, 2) for part in parts]

    def _copied(self, joint: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, (batch, sequence, heads, size) each, as nanotron copies them.

        All three are copied from the result of the matmul, which has the queries, the key and the
        value of each group beside each other. Keys and values are then copied twice more, to lie
        as attention for sequences of several lengths reads them.
        """
        groups = joint.unflatten(-1, (self.kv_heads, -1, self.size))
        if self.kv_heads == self.heads:
            query, key, value = groups.permute(3, 0, 1, 2, 4).contiguous().unbind()
        else:
            query = groups[:, :, :, :-2].flatten(2, 3)
            key, value = (groups[:, :, :, at].contiguous() for at in (-2, -1))
        pair = torch.cat((key.unsqueeze(0), value.unsqueeze(0))).permute(1, 2, 3, 0, 4).contiguous()
        return query, *pair.unbind(3)

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        """(batch, sequence, width) -> the same."""
        query, key, value = self._parts(x)
        if self.query_rotary is not None and self.key_rotary is not None:
            query, key = self.query_rotary(query, turn), self.key_rotary(key, turn)
        if self.fused:
            shared = self.kv_heads < self.heads
            mixed = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=shared
            )
        elif self.scores_again:
            mixed = checkpoint(self._mixed, query, key, value, use_reentrant=False)
        else:
            mixed = self._mixed(query, key, value)
        return self.project(mixed.transpose(1, 2).flatten(2))

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention whose scores are written to memory. The softmax is one kernel."""
        if self.kv_heads < self.heads:
            key = key.repeat_interleave(self.heads // self.kv_heads, dim=1)
            value = value.repeat_interleave(self.heads // self.kv_heads, dim=1)
        chances = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        return F.dropout(chances, self.dropout, self.training) @ value
