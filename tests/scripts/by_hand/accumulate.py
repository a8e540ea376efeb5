import torch
from torch import nn


def make_step():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8000, 256)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = nn.Linear(256, 2)

        def forward(self, tokens):
            return self.head(self.encoder(self.embed(tokens)).mean(dim=1))

    model = Classifier().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    total = torch.zeros((), device="cuda")
    text, label = torch.randint(0, 8000, (8, 128)), torch.randint(0, 2, (8,))

    def step():
        optimizer.zero_grad()
        total.zero_()
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(text.cuda()), label.cuda()) / 4
            loss.backward()
            total.add_(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total.item()

    return step
