import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make_step():
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=128,
    )
    model = LlamaForCausalLM(config).cuda()
    no_decay = ["bias", "norm.weight"]
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not any(d in n for d in no_decay)], "weight_decay": 0.1},
        {"params": [p for n, p in named if any(d in n for d in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-5)
    ids = torch.randint(0, 256, (8, 128))
    model.train()
    total = torch.zeros((), device="cuda")

    def step():
        loss = model(input_ids=ids.cuda(), labels=ids.cuda()).loss / 1
        total.add_(loss.detach().float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
