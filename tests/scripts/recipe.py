"""Fine-tuning of a decoder as a recipe class, in the style of torchtune, with a config file."""

import json
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.scale


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.sa_norm, self.mlp_norm = RMSNorm(dim), RMSNorm(dim)
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w3 = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.w2 = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        h = self.sa_norm(x)
        q, k, v = (
            f(h).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, d))
        h = self.mlp_norm(x)
        return x + self.w2(nn.functional.silu(self.w1(h)) * self.w3(h))


class Decoder(nn.Module):
    def __init__(self, vocab, dim, layers, heads):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads) for _ in range(layers))
        self.norm, self.output = RMSNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.checkpointing = False

    def forward(self, tokens):
        h = self.tok(tokens)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False) if self.checkpointing else layer(h)
        return self.output(self.norm(h))


class Instructions(Dataset):
    def __init__(self, vocab, length):
        self.vocab, self.length = vocab, length

    def __len__(self):
        return 256

    def __getitem__(self, i):
        tokens = torch.randint(1, self.vocab, (self.length,))
        labels = tokens.clone()
        labels[: self.length // 4] = -100
        return {"tokens": tokens, "labels": labels}


def collate(batch, ignore_index):
    tokens = nn.utils.rnn.pad_sequence([x["tokens"] for x in batch], batch_first=True)
    labels = nn.utils.rnn.pad_sequence(
        [x["labels"] for x in batch], batch_first=True, padding_value=ignore_index
    )
    return {"tokens": tokens, "labels": labels}


class DiskLogger:
    def __init__(self, log_dir):
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        self.file = open(Path(log_dir) / f"log_{int(time.time())}.txt", "a")

    def log_dict(self, values, step):
        self.file.write(f"Step {step} | " + " ".join(f"{k}:{v}" for k, v in values.items()) + "\n")
        self.file.flush()


class FullFinetuneRecipeSingleDevice:
    def __init__(self, cfg):
        self._device = torch.device(cfg["device"])
        self._dtype = getattr(torch, cfg["dtype"])
        self._accumulate = cfg["gradient_accumulation_steps"]
        self.cfg = cfg
        self.global_step = 0

    def setup(self):
        cfg = self.cfg
        self._metric_logger = DiskLogger(cfg["output_dir"])
        before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        with self._device:
            self._model = Decoder(cfg["vocab"], cfg["dim"], cfg["layers"], cfg["heads"])
        torch.set_default_dtype(before)
        self._model.checkpointing = cfg["enable_activation_checkpointing"]
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=2e-5, fused=True)
        self._loss_fn = partial(nn.functional.cross_entropy, reduction="sum", ignore_index=-100)
        self._dataloader = DataLoader(
            Instructions(cfg["vocab"], cfg["length"]),
            batch_size=cfg["batch_size"],
            shuffle=True,
            collate_fn=partial(collate, ignore_index=-100),
            drop_last=True,
        )

    def _loss_step(self, batch):
        labels = batch.pop("labels")
        logits = self._model(batch["tokens"])
        logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        return self._loss_fn(logits.view(-1, logits.size(-1)), labels.view(-1))

    def train(self):
        self._optimizer.zero_grad()
        running_loss, num_tokens = 0, 0
        for epoch in range(self.cfg["epochs"]):
            for idx, batch in enumerate(self._dataloader):
                batch = {k: v.to(self._device) for k, v in batch.items()}
                current = (batch["labels"] != -100).sum()
                num_tokens += current
                loss = self._loss_step(batch)
                running_loss += loss.detach()
                loss.backward()
                if (idx + 1) % self._accumulate == 0:
                    for p in self._model.parameters():
                        if p.grad is not None:
                            p.grad *= 1 / num_tokens
                    self._optimizer.step()
                    self._optimizer.zero_grad(set_to_none=True)
                    self.global_step += 1
                    loss_to_log = running_loss.item() / num_tokens.item()
                    self._metric_logger.log_dict({"loss": loss_to_log}, self.global_step)
                    running_loss, num_tokens = 0, 0
            self.save_checkpoint(epoch)

    def save_checkpoint(self, epoch):
        path = Path(self.cfg["output_dir"]) / f"epoch_{epoch}"
        path.mkdir(exist_ok=True)
        torch.save(self._model.state_dict(), path / "model.bin")


def recipe_main():
    cfg = json.loads(Path(sys.argv[1]).read_text())
    for override in sys.argv[2:]:
        key, _, value = override.partition("=")
        cfg[key] = json.loads(value)
    recipe = FullFinetuneRecipeSingleDevice(cfg)
    recipe.setup()
    recipe.train()


if __name__ == "__main__":
    sys.exit(recipe_main())
