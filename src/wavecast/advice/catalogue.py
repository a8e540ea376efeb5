"""The changes that advice tries: what each is called, the line of code, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass


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
