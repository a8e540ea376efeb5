"""Steps so small that the host takes longer than the GPU: what Python, autograd, optimizers cost.

`lab.collect.step_times` measures them. `lab.fit.host` reads what it measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from lab.steps.compiled import (
    DEFAULT,
    DEVICE,
    EAGER,
    CompiledStep,
    Make,
    Step,
    of_suite,
    pictures_to_pictures,
    recurrent,
    sequence,
    trained,
    vision,
)
from lab.steps.hand_written import Messages, NewtonSchulz, PlainLlama, RotaryNet, adapt
from wavecast.suite.decoders import gpt, llama

Settings = Callable[[Any], Any]


def tokens(batch: int, length: int) -> dict[str, Any]:
    """Tokens, which are their own labels."""
    given = torch.randint(5, 1000, (batch, length))
    return {"input_ids": given, "labels": given}


def pictures(batch: int, side: int = 224) -> dict[str, Any]:
    """Pictures and their classes."""
    labels = torch.zeros(batch, dtype=torch.long)
    return {"pixel_values": torch.randn(batch, 3, side, side), "labels": labels}


def of_transformers(
    architecture: str,
    settings: Settings,
    inputs: Callable[[], dict[str, Any]],
    precision: str,
    *,
    dtype: Any = None,
    change: Callable[[Any], Any] | None = None,
    loss: Callable[[Any], Any] = lambda out: out.loss,
    last: bool = False,
    **options: Any,
) -> Make:
    """A model of transformers that is made from its configuration and trained.

    Args:
        architecture: the class of the model.
        settings: makes its configuration from the module transformers.
        inputs: the arguments of a call.
        precision: the precision of a step.
        dtype: the type of the weights, if not float32.
        change: changes the model, such as by adapters or checkpointing.
        loss: the loss of what the model returns.
        last: whether the model and its pictures are in channels-last.
        options: of `trained`.
    """

    def make(how: str) -> Step:
        import transformers

        with torch.device(DEVICE):
            model = getattr(transformers, architecture)(settings(transformers))
            given = inputs()
        model = model.train() if dtype is None else model.to(dtype).train()
        if dtype is not None:
            given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items()}
        if last:
            model = model.to(memory_format=torch.channels_last)
            given["pixel_values"] = given["pixel_values"].contiguous(
                memory_format=torch.channels_last
            )
        if hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        if change is not None:
            model = change(model)
        return trained(model, lambda m: loss(m(**given)), how, precision, **options)

    return make


def _checkpointed(model: Any, *, reentrant: bool) -> Any:
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    return model


_SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8000,
}


def _like_llama(name: str, layers: int, **more: Any) -> Settings:
    return lambda t: getattr(t, name)(num_hidden_layers=layers, **{**_SMALL, **more})


_LLAMA = _like_llama("LlamaConfig", 6)
_QWEN = _like_llama("Qwen3Config", 6, head_dim=64)
_MIXTRAL = _like_llama("MixtralConfig", 4, num_local_experts=8)
_QWEN_MOE = _like_llama(
    "Qwen3MoeConfig", 4, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256,
    head_dim=64,
)  # fmt: skip
_GEMMA_2 = _like_llama("Gemma2Config", 4, head_dim=64)
_GEMMA_3 = _like_llama("Gemma3TextConfig", 6, head_dim=64, sliding_window=64)
_OLMO = _like_llama("Olmo2Config", 6)
_DEEPSEEK = _like_llama(
    "DeepseekV3Config", 3, num_key_value_heads=8, n_routed_experts=8, n_group=2, topk_group=1,
    num_experts_per_tok=2, moe_intermediate_size=256, first_k_dense_replace=1, kv_lora_rank=64,
    q_lora_rank=128, qk_rope_head_dim=32, qk_nope_head_dim=32, v_head_dim=64,
)  # fmt: skip


def _bert(t: Any) -> Any:
    return t.BertConfig(num_hidden_layers=6, hidden_size=512, num_attention_heads=8,
                        intermediate_size=1024)  # fmt: skip


def _modernbert(t: Any) -> Any:
    return t.ModernBertConfig(
        num_hidden_layers=6, hidden_size=384, num_attention_heads=6, intermediate_size=576,
        vocab_size=8000, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2,
    )  # fmt: skip


def _t5(t: Any) -> Any:
    return t.T5Config(num_layers=3, d_model=256, d_ff=512, num_heads=4, decoder_start_token_id=0,
                      pad_token_id=0)  # fmt: skip


def _wav2vec(t: Any) -> Any:
    return t.Wav2Vec2Config(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=512,
        conv_dim=(128,) * 7, mask_time_prob=0.0, layerdrop=0.0, ctc_zero_infinity=True,
    )  # fmt: skip


def _sounds() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 16_000), "labels": torch.randint(1, 30, (2, 12))}


def _segments() -> dict[str, Any]:
    return {
        "pixel_values": torch.randn(2, 3, 128, 128),
        "labels": torch.randint(0, 2, (2, 128, 128)),
    }


def _vit(name: str) -> Settings:
    return lambda t: getattr(t, name)(
        num_hidden_layers=6, hidden_size=384, num_attention_heads=6, num_labels=1000,
        **({} if "Dino" in name else {"intermediate_size": 1536}),
    )  # fmt: skip


def _convnext(t: Any) -> Any:
    return t.ConvNextV2Config(depths=[2, 2, 4, 2], hidden_sizes=[40, 80, 160, 320], num_labels=100)


def _resnet(t: Any) -> Any:
    sizes = [64, 128, 256, 512]
    return t.ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=sizes, layer_type="basic",
                          embedding_size=64, num_labels=100)  # fmt: skip


def _swin(t: Any) -> Any:
    return t.Swinv2Config(depths=[2, 2, 2], num_heads=[2, 4, 8], embed_dim=64, num_labels=100,
                          image_size=128, window_size=8)  # fmt: skip


def _newton(how: str) -> Step:
    step = sequence(partial(PlainLlama, 4, 512, 1408, 8, 8000), 2, 128, 8000, "bf16", how)
    step.optimizer = NewtonSchulz(step.optimizer.param_groups[0]["params"])  # type: ignore[attr-defined]
    return step


def _graph(how: str) -> Step:
    with torch.device(DEVICE):
        model = Messages(128, 6)
        nodes, edges = torch.randn(2000, 64), torch.randint(0, 2000, (2, 10_000))
        labels = torch.randint(0, 40, (2000,))
    return trained(model, lambda m: F.cross_entropy(m(nodes, edges), labels), how, "fp32")


def _rotary(how: str) -> Step:
    return sequence(partial(RotaryNet, 4, 512, 8, 8000), 2, 128, 8000, "bf16", how, clip=1.0)


def _decoder(make: Callable[..., Any], recompute: str) -> Make:
    sizes = {"layers": 8, "hidden": 512, "heads": 8, "seq": 128}
    if make is llama:
        sizes["ffn"] = 8192  # as measured
    return lambda how: make(2, "bf16", recompute=recompute, device=DEVICE, **sizes)


_CAUSAL = partial(of_transformers, "LlamaForCausalLM", _LLAMA, lambda: tokens(2, 128))
_WHOLE = {"dtype": torch.bfloat16, "optimizer": "fused", "clip": 1.0}
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _causal(name: str, settings: Settings, precision: str = "bf16", **options: Any) -> Make:
    return of_transformers(name, settings, lambda: tokens(2, 128), precision, **options)


def _images(name: str, settings: Settings, precision: str, side: int = 224, **o: Any) -> Make:
    return of_transformers(name, settings, lambda: pictures(4, side), precision, **o)


EAGER_STEPS: dict[str, tuple[str, Make]] = {
    "llama": ("llama", _CAUSAL("bf16")),
    "llama-weights": ("llama", _CAUSAL("fp32", **_WHOLE)),
    "llama-lora": ("llama", _CAUSAL("fp32", dtype=torch.bfloat16,
                                    change=partial(adapt, names=_LINEAR))),
    "llama-checkpointed": ("llama", _CAUSAL("bf16", change=partial(_checkpointed,
                                                                   reentrant=False))),
    "llama-reentrant": ("llama", _CAUSAL("bf16", change=partial(_checkpointed, reentrant=True))),
    "llama-loop": ("llama", _CAUSAL("fp32", optimizer="loop")),
    "qwen3": ("qwen", _causal("Qwen3ForCausalLM", _QWEN, "fp32")),
    "qwen3-moe": ("moe", _causal("Qwen3MoeForCausalLM", _QWEN_MOE, "fp32", **_WHOLE)),
    "mixtral": ("moe", _causal("MixtralForCausalLM", _MIXTRAL)),
    "deepseek-v3": ("moe", _causal("DeepseekV3ForCausalLM", _DEEPSEEK, "fp32", **_WHOLE)),
    "gemma-2": ("gemma", _causal("Gemma2ForCausalLM", _GEMMA_2)),
    "gemma-3": ("gemma", _causal("Gemma3ForCausalLM", _GEMMA_3, "fp32", **_WHOLE)),
    "olmo-2": ("olmo", _causal("Olmo2ForCausalLM", _OLMO, "fp32", optimizer="sgd")),
    "gpt2": ("gpt2", _causal("GPT2LMHeadModel",
                             lambda t: t.GPT2Config(n_layer=6, n_embd=512, n_head=8), "tf32",
                             optimizer="momentum")),
    "bert": ("bert", _causal("BertForMaskedLM", _bert, "fp16")),
    "modernbert": ("bert", _causal("ModernBertForMaskedLM", _modernbert, optimizer="fused")),
    "t5": ("t5", _causal("T5ForConditionalGeneration", _t5)),
    "wav2vec2": ("speech", of_transformers("Wav2Vec2ForCTC", _wav2vec, _sounds, "fp32")),
    "vit": ("vit", _images("ViTForImageClassification", _vit("ViTConfig"), "fp16")),
    "dinov2": ("vit", _images("Dinov2ForImageClassification", _vit("Dinov2Config"), "bf16",
                              optimizer="fused")),
    "convnextv2": ("convnext", _images("ConvNextV2ForImageClassification", _convnext, "bf16",
                                       last=True)),
    "hf-resnet": ("resnet", _images("ResNetForImageClassification", _resnet, "fp16", 128,
                                    last=True, optimizer="momentum")),
    "swinv2": ("swin", _images("Swinv2ForImageClassification", _swin, "bf16", 128)),
    "segformer": ("segformer", of_transformers(
        "SegformerForSemanticSegmentation",
        lambda t: t.SegformerConfig(num_labels=2, depths=[1, 1, 1, 1]), _segments, "bf16")),
    "plain-llama": ("plain", lambda how: sequence(
        partial(PlainLlama, 8, 512, 1408, 8, 8000), 2, 128, 8000, "bf16", how, clip=1.0)),
    "newton-schulz": ("plain", _newton),
    "rotary": ("plain", _rotary),
    "graph": ("graph", _graph),
    "gpt-suite": ("suite", _decoder(gpt, "none")),
    "gpt-suite-checkpointed": ("suite", _decoder(gpt, "full")),
    "llama-suite": ("suite", _decoder(llama, "none")),
    "llama-suite-checkpointed": ("suite", _decoder(llama, "full")),
    "llama-suite-alternate": ("suite", _decoder(llama, "alternate")),
    "unet": ("unet", lambda how: pictures_to_pictures(2, "bf16", how, True, 32)),
    "lstm": ("recurrent", lambda how: recurrent(8, "fp32", how)),
    "dlrm": ("dlrm", lambda how: of_suite("dlrm", 256, "fp32", how, tables=(10_000,) * 26)),
    "resnet18": ("resnet", vision("resnet18", 4, "fp32", side=64)),
    "mobilenet-v3": ("mobile", vision("mobilenet_v3_large", 4, "bf16", True, side=128)),
}  # fmt: skip
"""Eager steps by name, each with its family."""

COMPILED_STEPS: dict[str, tuple[str, Make]] = {
    "mobilenet-v3": ("mobile", vision("mobilenet_v3_large", 4, "bf16", True, side=128)),
    "regnet": ("regnet", vision("regnet_y_400mf", 8, "bf16", True, side=128)),
    "convnextv2": EAGER_STEPS["convnextv2"],
    "swinv2": EAGER_STEPS["swinv2"],
    "segformer": EAGER_STEPS["segformer"],
    "resnet18": ("resnet", vision("resnet18", 8, "bf16", True, side=128)),
    "dinov2": EAGER_STEPS["dinov2"],
    "vit": ("vit", _images("ViTForImageClassification", _vit("ViTConfig"), "bf16")),
    "llama": EAGER_STEPS["llama"],
    "qwen3": EAGER_STEPS["qwen3"],
    "gemma-3": EAGER_STEPS["gemma-3"],
    "plain-llama": EAGER_STEPS["plain-llama"],
    "rotary": EAGER_STEPS["rotary"],
    "unet": EAGER_STEPS["unet"],
}
"""Compiled steps by name, those that take long to compile first."""

HOST_STEPS: tuple[CompiledStep, ...] = (
    *(CompiledStep(f"host-{name}-compiled", family, make, DEFAULT)
      for name, (family, make) in COMPILED_STEPS.items()),
    *(CompiledStep(f"host-{name}", family, make, EAGER)
      for name, (family, make) in EAGER_STEPS.items()),
)  # fmt: skip
