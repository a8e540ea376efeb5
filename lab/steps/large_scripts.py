"""Scripts whose steps are of the size that GPUs are bought for, with their arguments."""

from __future__ import annotations

from lab.steps.scripts import ScriptCase

_TRAINER = ("transformers", "accelerate")
_GPT2 = (
    *("--n_layer=12", "--n_head=12", "--n_embd=768", "--block_size=1024", "--batch_size=8"),
    *("--gradient_accumulation_steps=2", "--eval_iters=1"),
)


def _case(
    name: str,
    like: str,
    arguments: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    script: str = "",
) -> ScriptCase:
    return ScriptCase(name, like, arguments, needs, f"large/{script or name}.py")


LARGE = (
    _case("trainer_bert", "Trainer, BERT base, fp32", (), _TRAINER),
    _case(
        "trainer_bert_bf16",
        "Trainer, BERT base, bf16",
        ("--bf16", "--batch", "64", "--length", "256"),
        _TRAINER,
        "trainer_bert",
    ),
    _case("trainer_compiled", "Trainer, compiled GPT-2, bf16", (), _TRAINER),
    _case("accelerate_gpt2", "Accelerate, GPT-2, two micro-batches, bf16", (), _TRAINER),
    ScriptCase("nanogpt_gpt2", "nanoGPT, compiled GPT-2, bf16", _GPT2, file="nanogpt/train.py"),
    _case("imagenet_amp", "ResNet-50, fp16, channels_last, 8 workers"),
    _case("lightning_resnet", "Lightning, ResNet-50, 2 workers", (), ("pytorch_lightning",)),
    _case("pyg_sage", "PyG, full-batch GraphSAGE", (), ("torch_geometric",)),
    _case("graph_net", "a graph network by index_add"),
    _case("dcgan", "DCGAN, two optimizers"),
    _case("unet", "U-Net, fp16, Dice loss"),
    _case("conv_vae", "a convolutional VAE"),
    _case("lstm_lm", "an LSTM language model"),
    _case("vit_finetune", "fine-tuning of ViT base, bf16", (), ("transformers",)),
    _case("seq2seq", "translation with torch.nn.Transformer, TF32"),
    _case("dlrm", "a recommender with 26 embedding tables"),
    _case("lora", "LoRA by hand on a Llama, bf16", (), ("transformers",)),
    _case("diffusion", "denoising diffusion, averaged weights, bf16"),
    _case("checkpointed", "a decoder with checkpointing, bf16"),
    _case("two_towers", "contrastive training of two towers, bf16"),
    _case("speech_ctc", "speech recognition with CTC, bf16"),
    _case("distill", "distillation from a ResNet-50, bf16"),
    _case("policy_gradient", "REINFORCE, waits for the host"),
    _case("tabular", "a small perceptron, waits for the host"),
    _case("loader_bound", "a small CNN, waits for 2 workers"),
)
"""All are made for one H200; those that wait for something else say so."""
