"""A large LSTM language model with tied weights that carries its state."""

import torch
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.drop = nn.Dropout(0.65)
        self.rnn = nn.LSTM(width, width, layers, dropout=0.65)
        self.out = nn.Linear(width, words)
        self.out.weight = self.embed.weight

    def forward(self, x, state):
        y, state = self.rnn(self.drop(self.embed(x)), state)
        return self.out(self.drop(y)), state


words, width, layers, batch, bptt = 33_278, 1500, 2, 64, 35
device = torch.device("cuda")
model = LanguageModel(words, width, layers).to(device)
text = torch.randint(0, words, (bptt * 200 + 1, batch), device=device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for epoch in range(10):
    state = None
    total = 0.0
    for i in range(0, len(text) - 1, bptt):
        x, y = text[i : i + bptt], text[i + 1 : i + 1 + bptt]
        if state is not None:
            state = tuple(part.detach() for part in state)
        optimizer.zero_grad()
        logits, state = model(x, state)
        loss = criterion(logits.view(-1, words), y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
    print(epoch, total)
