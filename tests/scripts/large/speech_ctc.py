"""Speech recognition in the manner of wav2vec 2.0: strided convolutions, a transformer, CTC."""

import torch
import torch.nn.functional as F
from torch import nn


class Recogniser(nn.Module):
    def __init__(self, width=512, symbols=32):
        super().__init__()
        layers, inner = [], 1
        for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
            layers += [nn.Conv1d(inner, width, kernel, stride), nn.GroupNorm(1, width), nn.GELU()]
            inner = width
        self.features = nn.Sequential(*layers)
        layer = nn.TransformerEncoderLayer(width, 8, 2048, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 8)
        self.out = nn.Linear(width, symbols)

    def forward(self, sound):
        x = self.features(sound[:, None]).transpose(1, 2)
        return F.log_softmax(self.out(self.encoder(x)), dim=-1)


def main():
    model = Recogniser().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sounds = torch.randn(320, 16_000 * 4)
    texts = torch.randint(1, 32, (320, 40))
    data = torch.utils.data.TensorDataset(sounds, texts)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, pin_memory=True)
    for epoch in range(10):
        model.train()
        for sound, text in loader:
            sound, text = sound.cuda(non_blocking=True), text.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(sound)
            frames = torch.full((len(sound),), logits.size(1), dtype=torch.long)
            lengths = torch.full((len(sound),), text.size(1), dtype=torch.long)
            loss = F.ctc_loss(logits.float().transpose(0, 1), text, frames, lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
