"""A GPT as its speedruns train it: Muon, attention over documents in a window, all compiled."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH, WIDTH, LAYERS, WINDOW = map(int, (sys.argv[1:] or "16384 768 12 1024".split()))
HEADS, VOCABULARY = WIDTH // 128, 50304


@torch.compile
def zeropower_via_newtonschulz5(G, steps):
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G.bfloat16()
    if G.size(0) > G.size(1):
        X = X.T
    X = X / (X.norm() + 1e-7)
    for _ in range(steps):
        A = X @ X.T
        B = b * A + c * A @ A
        X = a * X + B @ X
    if G.size(0) > G.size(1):
        X = X.T
    return X


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                buffer = state["momentum_buffer"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = zeropower_via_newtonschulz5(p.grad.lerp_(buffer, group["momentum"]), 5)
                p.add_(update, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x, block_mask):
        batch, length, width = x.shape
        qkv = self.qkv(F.rms_norm(x, (width,))).view(batch, length, 3 * HEADS, -1)
        q, k, v = qkv.transpose(1, 2).chunk(3, dim=1)
        q, k = F.rms_norm(q, (q.size(-1),)), F.rms_norm(k, (k.size(-1),))
        y = flex_attention(q, k, v, block_mask=block_mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (width,)))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, target, window):
        docs = (tokens == 50256).cumsum(0)

        def document_causal(b, h, q_idx, kv_idx):
            causal = q_idx >= kv_idx
            same_document = docs[q_idx] == docs[kv_idx]
            return causal & same_document & (q_idx - kv_idx < window)

        mask = create_block_mask(
            document_causal, None, None, len(tokens), len(tokens), device="cuda"
        )
        x = F.rms_norm(self.embed(tokens[None]), (WIDTH,)).bfloat16()
        for block in self.blocks:
            x = block(x, mask)
        logits = 30 * torch.tanh(self.head(F.rms_norm(x, (WIDTH,))) / 30)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), target)


model = GPT().cuda().bfloat16()
model = torch.compile(model, dynamic=False)
matrices = list(model.blocks.parameters())
tables = [*model.embed.parameters(), *model.head.parameters()]
optimizers = [torch.optim.Adam(tables, lr=0.3, fused=True), Muon(matrices)]
for step in range(100):
    tokens = torch.randint(0, VOCABULARY, (LENGTH + 1,)).cuda(non_blocking=True)
    window = torch.tensor(WINDOW, dtype=torch.int, device="cuda")
    loss = model(tokens[:-1], tokens[1:], window)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
