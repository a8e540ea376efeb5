import torch
from nanogpt.model import GPT, GPTConfig


def make_step():
    torch.backends.cuda.matmul.allow_tf32 = True
    model = GPT(
        GPTConfig(n_layer=6, n_head=6, n_embd=384, block_size=256, bias=False, vocab_size=50304)
    )
    model.to("cuda")
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda")
    x, y = torch.randint(0, 50304, (12, 256)), torch.randint(0, 50304, (12, 256))

    def step():
        optimizer.zero_grad(set_to_none=True)
        for _ in range(4):
            X, Y = (t.pin_memory().to("cuda", non_blocking=True) for t in (x, y))
            with torch.amp.autocast("cuda", dtype=torch.bfloat16):
                _, loss = model(X, Y)
                loss = loss / 4
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step
