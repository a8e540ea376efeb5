"""LoRA by hand: a frozen Llama in bf16 whose attention projections get low-rank updates."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class LoRALinear(nn.Module):
    def __init__(self, linear, rank=16, alpha=32):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Linear(linear.in_features, rank, bias=False)
        self.b = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.b.weight)
        self.scale = alpha / rank
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        return self.linear(x) + self.scale * self.b(self.a(self.drop(x)))


def main():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=12,
        num_attention_heads=32,
        num_key_value_heads=4,
        use_cache=False,
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).requires_grad_(False)
        for layer in model.model.layers:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(layer.self_attn, name, LoRALinear(getattr(layer.self_attn, name)))
        torch.set_default_dtype(torch.float32)
    model.cuda().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    print(sum(p.numel() for p in trained), "trained parameters")
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    texts = torch.randint(0, 32000, (400, 1024))
    loader = torch.utils.data.DataLoader(texts, batch_size=4, shuffle=True)
    for epoch in range(3):
        for ids in loader:
            ids = ids.cuda()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
