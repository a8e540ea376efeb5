"""Models of Hugging Face, built from their configs, against what their own libraries do."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny_configs
import tiny_configs as tiny
import torch
from networks import Step
from parallel.traced_models import collectives, traced

import wavecast
from wavecast import suite
from wavecast.errors import InvalidInput, MissingExtra, UnknownName
from wavecast.frameworks.pytorch.huggingface.configs import Preset, presets
from wavecast.frameworks.pytorch.huggingface.models import model_of, needing
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of
from wavecast.frameworks.pytorch.huggingface.training import ModelStep, make_step, tensor_plan_of
from wavecast.parallel.layers import with_layers_sharded
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Phase, Trace

transformers = pytest.importorskip("transformers")
pytest.importorskip("diffusers")
pytest.importorskip("bitsandbytes")
peft = pytest.importorskip("peft")


def trace_of(config: str, batch: int = 2, precision: str | None = None, **options: Any) -> Trace:
    recipe = recipe_of(config, batch, precision, ModelOptions(**options))
    return wavecast.trace(lambda: make_step(recipe), samples=recipe.samples)


def counts(trace: Trace) -> Counter[str]:
    return Counter(call.op.name for call in trace)


def shapes(trace: Trace) -> Counter[Any]:
    return Counter((call.op, call.phase) for call in trace)


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_presets_have_the_published_number_of_parameters(preset: Preset) -> None:
    recipe = recipe_of(preset.name, None, None, ModelOptions())
    model, _ = model_of(recipe.config, recipe.task, torch.float32, "meta")
    parameters = sum(p.numel() for p in model.parameters())
    rounded = "rounded" in preset.parameters_source
    assert parameters == pytest.approx(preset.parameters, rel=0.02 if rounded else 0)


TASKS = {
    "causal-lm": (tiny.LLAMA, "aten._fused_rms_norm"),
    "masked-lm": (tiny.BERT, "aten.native_layer_norm"),
    "seq2seq": (tiny.T5, "aten.embedding"),
    "sequence-classification": (tiny.BERT, "aten.tanh"),
    "token-classification": (tiny.BERT, "aten.native_layer_norm"),
    "question-answering": (tiny.BERT, "aten.split.Tensor"),
    "image-classification": (tiny.VIT, "aten.convolution"),
    "speech-seq2seq": (tiny.WHISPER, "aten.convolution"),
    "denoising": (tiny.UNET, "aten.native_group_norm"),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_trains(task: str, tmp_path: Path) -> None:
    config, op = TASKS[task]
    seq = 16 if "vocab_size" in config else None
    trace = trace_of(tiny.written(tmp_path, config), precision="bf16", task=task, seq=seq)
    in_phase = Counter(call.phase for call in trace)
    assert in_phase[Phase.FORWARD] > 10
    assert in_phase[Phase.BACKWARD] > 10
    assert counts(trace)["aten._fused_adamw_"] == 1
    assert counts(trace)[op] or op == "aten._fused_rms_norm"
    assert not wavecast.predict(trace, "h100-sxm-80gb").unpredicted


def test_every_task_is_tested() -> None:
    from wavecast.frameworks.pytorch.huggingface.recipes import INFERENCE
    from wavecast.frameworks.pytorch.huggingface.recipes import TASKS as KNOWN

    assert {*TASKS, *INFERENCE} == set(KNOWN)


def by_hand(config: dict[str, Any], adapters: Any, dtype: Any) -> Any:
    """The same step as people write it, with transformers and peft."""

    def make_step() -> Step:
        settings = transformers.LlamaConfig.from_dict(dict(config))
        model = transformers.LlamaForCausalLM._from_config(settings, dtype=dtype).cuda().train()
        model = peft.get_peft_model(model, adapters) if adapters else model
        tokens = torch.randint(100, (2, 16), device="cuda")
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()

        return step

    return make_step


@pytest.mark.parametrize("lora", [None, "r=4,dropout=0.1"])
def test_the_step_is_the_one_that_people_write(lora: str | None, tmp_path: Path) -> None:
    adapters = lora and peft.LoraConfig(r=4, lora_dropout=0.1, task_type="CAUSAL_LM")
    theirs = wavecast.trace(by_hand(tiny.LLAMA, adapters, torch.bfloat16))
    name = tiny.written(tmp_path, tiny.LLAMA)
    ours = trace_of(name, seq=16, weights="bf16", lora=lora)
    assert shapes(ours) == shapes(theirs)
    assert wavecast.memory(ours).peak_bytes == pytest.approx(
        wavecast.memory(theirs).peak_bytes, rel=0.01
    )


def on_cpu(config: str, **options: Any) -> ModelStep:
    return make_step(recipe_of(config, 2, None, ModelOptions(seq=16, **options)), device="cpu")


def trainable(step: ModelStep) -> int:
    return sum(p.numel() for p in step.model.parameters() if p.requires_grad)


def test_only_adapters_train(tmp_path: Path) -> None:
    name = tiny.written(tmp_path, tiny.LLAMA)
    hidden, values, layers, rank = 32, 16, 2, 4
    queries_and_values = layers * rank * ((hidden + hidden) + (hidden + values))
    assert trainable(on_cpu(name, lora=f"r={rank}")) == queries_and_values
    outputs = layers * rank * (hidden + hidden)
    assert trainable(on_cpu(name, lora=f"r={rank}", targets="o_proj")) == outputs
    assert trainable(on_cpu(name, lora=f"r={rank}", targets="all-linear")) > queries_and_values


@pytest.mark.slow
def test_the_step_really_trains_on_a_cpu(tmp_path: Path) -> None:
    step = on_cpu(tiny.written(tmp_path, tiny.LLAMA))
    first = float(step())
    for _ in range(20):
        last = float(step())
    assert last < first


def test_4bit_layers_are_those_that_transformers_makes(tmp_path: Path) -> None:
    """The same model, saved, and loaded as the documentation of transformers says."""
    settings = transformers.LlamaConfig.from_dict(dict(tiny.LLAMA))
    transformers.LlamaForCausalLM(settings).to(torch.bfloat16).save_pretrained(tmp_path / "saved")
    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    loaded = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "saved", quantization_config=quantization, device_map="cpu", dtype=torch.bfloat16
    )
    prepared = peft.prepare_model_for_kbit_training(loaded, use_gradient_checkpointing=False)
    theirs = peft.get_peft_model(prepared, peft.LoraConfig(r=8, task_type="CAUSAL_LM"))
    ours = on_cpu(tiny.written(tmp_path, tiny.LLAMA), qlora=True).model
    assert described(ours) == described(theirs)


@pytest.mark.slow
@pytest.mark.parametrize("device_map", ["cuda", "auto", {"": 0}], ids=str)
def test_a_script_that_loads_in_4_bits_can_be_traced(device_map: Any, tmp_path: Path) -> None:
    """As people write it; our own step of the same model has the same ops."""
    settings = transformers.LlamaConfig.from_dict(dict(tiny.LLAMA))
    transformers.LlamaForCausalLM(settings).to(torch.bfloat16).save_pretrained(tmp_path / "saved")

    def by_script() -> Step:
        quantization = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "saved",
            quantization_config=quantization,
            device_map=device_map,
            dtype=torch.bfloat16,
        ).train()
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, task_type="CAUSAL_LM"))
        tokens = torch.randint(100, (2, 512), device="cuda")
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()

        return step

    theirs = wavecast.trace(by_script)
    ours = trace_of(tiny.written(tmp_path, tiny.LLAMA), seq=512, qlora=True)
    assert shapes(ours) == shapes(theirs)
    assert wavecast.memory(ours).by_kind["weights"] == wavecast.memory(theirs).by_kind["weights"]


def described(model: Any) -> dict[str, Any]:
    """Each parameter's class, shape and type, and the layout of its quantization."""
    return {
        name: (
            type(p).__name__,
            tuple(p.shape),
            p.dtype,
            p.requires_grad,
            state and (state.dtype, state.quant_type, state.blocksize, state.nested),
        )
        for name, p in model.named_parameters()
        for state in [getattr(p, "quant_state", None)]
    }


def test_qlora_unpacks_each_weight_in_both_passes(tmp_path: Path) -> None:
    trace = trace_of(tiny.written(tmp_path, tiny.LLAMA), seq=512, qlora=True)
    forward, backward = (
        sum(c.op.base == "bitsandbytes.dequantize_4bit" for c in trace if c.phase is phase)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert forward == 2 * 7
    # Nothing before the first adapters needs a gradient: the key projection of the first layer.
    assert backward == 2 * 7 - 3
    assert not wavecast.predict(trace, "a100-sxm-80gb").unpredicted


@pytest.mark.slow
def test_the_weights_of_a_70b_model_in_4_bits() -> None:
    options = ModelOptions(qlora=True, lora="r=16", checkpointing=True, seq=512)
    recipe = recipe_of("llama-3.1-70b", 1, None, options)
    memory = wavecast.memory(wavecast.trace(lambda: make_step(recipe)), "a100-sxm-80gb")
    width, inner, values, layers, words = 8192, 28_672, 1024, 80, 128_256
    linear = layers * (2 * width * (width + values) + 3 * width * inner)
    packed = linear / 2 + linear / 64 + 4 * linear / 64 / 256
    embeddings = 2 * 4 * words * width
    adapters = 4 * 16 * layers * ((width + width) + (width + values))
    assert memory.by_kind["weights"] == pytest.approx(packed + embeddings + adapters, rel=1e-3)
    # People report 46 to 48 GB for such trainings.
    assert 40 < memory.needed_bytes / 2**30 < 48


def test_gpt2_has_transposed_weights_and_gets_adapters_without_a_warning(tmp_path: Path) -> None:
    trace = trace_of(tiny.written(tmp_path, tiny.GPT2), seq=16, lora="r=4")
    assert any("c_attn.lora_A" in call.module for call in trace)


def test_gpt2_can_be_quantized_too(tmp_path: Path) -> None:
    trace = trace_of(tiny.written(tmp_path, tiny.GPT2), seq=16, qlora=True)
    assert any(name.startswith("bitsandbytes.gemm_4bit") for name in counts(trace))


@pytest.mark.slow
@pytest.mark.parametrize("config", [tiny.LLAMA, tiny.UNET], ids=["llama", "unet"])
def test_checkpointing_trades_memory_for_time(config: dict[str, Any], tmp_path: Path) -> None:
    name = tiny.written(tmp_path, config)
    kept, again = (trace_of(name, batch=8, checkpointing=on) for on in (False, True))
    assert len(again) > len(kept)
    assert wavecast.memory(again).peak_bytes < wavecast.memory(kept).peak_bytes


def test_weights_can_be_stored_in_16_bits(tmp_path: Path) -> None:
    name = tiny.written(tmp_path, tiny.LLAMA)
    full, half = (trace_of(name, seq=16, weights=weights) for weights in ("fp32", "bf16"))
    of_full, of_half = (wavecast.memory(trace).by_kind["weights"] or 0 for trace in (full, half))
    assert of_half == pytest.approx(of_full / 2, rel=0.02)
    casts = counts(half)["aten._to_copy"]
    autocast = counts(trace_of(name, seq=16, precision="bf16"))["aten._to_copy"]
    assert autocast > casts


def test_adapters_of_a_unet(tmp_path: Path) -> None:
    trace = trace_of(tiny.written(tmp_path, tiny.UNET), precision="bf16", lora="r=4")
    assert any("lora_A" in call.module for call in trace)
    weights = wavecast.memory(trace).by_kind["gradients"] or 0
    assert weights < (wavecast.memory(trace).by_kind["weights"] or 0) / 4


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ({"model_type": "llamma"}, {}, UnknownName, "does not know; did you mean llama"),
        (
            {"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}},
            {"task": "causal-lm"},
            UnknownName,
            r"code of its own \(auto_map\), which is never run",
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            {},
            InvalidInput,
            r"are quantized \(gptq\)",
        ),
        ({}, {"task": "image-classification"}, InvalidInput, "no llama model for the task image"),
        ({}, {"lora": "r=4", "targets": "nothing"}, InvalidInput, "its linear layers are q_proj, "),
    ],
)
def test_models_that_cannot_be_built(
    changes: dict[str, Any], options: dict[str, Any], error: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        trace_of(tiny.written(tmp_path, tiny.LLAMA, **changes), **options)


def test_an_own_class_that_transformers_has_too_is_built(tmp_path: Path) -> None:
    name = tiny.written(tmp_path, tiny.LLAMA, auto_map={"AutoModelForCausalLM": "modeling_x.X"})
    assert len(trace_of(name, seq=16))


def test_an_architecture_without_default_targets_needs_them(tmp_path: Path) -> None:
    name = tiny.written(tmp_path, tiny.VIT)
    with pytest.raises(InvalidInput, match="no default for this architecture; give --targets"):
        trace_of(name, lora="r=4")
    assert len(trace_of(name, lora="r=4", targets="q_proj,v_proj"))


@pytest.mark.parametrize(
    ("package", "options"),
    [("peft", {"lora": "r=4"}), ("bitsandbytes", {"qlora": True}), ("transformers", {})],
)
def test_missing_packages_are_named(
    package: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"needs {package}: pip install 'wavecast\[hugg"):
        trace_of(tiny.written(tmp_path, tiny.LLAMA), **options)


def test_a_package_that_a_library_could_not_import_is_named() -> None:
    inner = ModuleNotFoundError("No module named 'peft.tuners'", name="peft.tuners")
    with pytest.raises(MissingExtra, match=r"hf:gpt2 needs peft: pip"), needing("hf:gpt2"):
        raise ModuleNotFoundError("Could not import module 'GPT2LMHeadModel'.") from inner
    with pytest.raises(MissingExtra, match="needs more libraries"), needing("hf:gpt2"):
        raise ModuleNotFoundError("Could not import module 'GPT2LMHeadModel'.")


def test_precisions_are_those_of_the_suite(tmp_path: Path) -> None:
    name = tiny.written(tmp_path, tiny.BERT)
    for precision in suite.PRECISIONS:
        assert len(trace_of(name, seq=16, precision=precision))


# The tensor-parallel plans of Hugging Face's models.


def test_the_plan_of_a_model_and_its_head(tmp_path: Path, transformers: Any) -> None:
    plan = tensor_plan_of(tiny_configs.written(tmp_path, tiny_configs.LLAMA))
    assert plan is not None
    assert plan["layers.*.self_attn.q_proj"] == "colwise"
    assert plan["layers.*.mlp.down_proj"] == "rowwise"
    assert plan["lm_head"] == "colwise_gather_output"


def test_a_model_without_a_plan_has_none(tmp_path: Path, transformers: Any) -> None:
    assert tensor_plan_of(tiny_configs.written(tmp_path, tiny_configs.GPT2)) is None


def test_the_plan_fits_the_trace(tmp_path: Path, transformers: Any) -> None:
    plan = tensor_plan_of(tiny_configs.written(tmp_path, tiny_configs.LLAMA))
    sharded, notes = with_layers_sharded(traced("LLAMA"), Parallel(tensor=2, tensor_plan=plan))
    assert notes == ("tensor parallel as in the given plan: 15 matmuls are sharded",)
    logits = [c for c in collectives(sharded) if c.module.endswith("lm_head")]
    assert [(c.op.name, c.phase) for c in logits] == [
        ("nccl.all_gather", Phase.FORWARD),
        ("nccl.all_reduce", Phase.BACKWARD),
    ]
    assert logits[0].op.inputs[0].shape == (3, 16, 50)
    assert logits[0].op.outputs[0].shape == (3, 16, 100)
