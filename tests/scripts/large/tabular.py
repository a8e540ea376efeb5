"""A multilayer perceptron for tables, whose small steps wait for the host."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
x, y = torch.randn(50_000, 100), torch.randn(50_000, 1)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, y), batch_size=512, shuffle=True
)
layers = []
for inner, outer in ((100, 512), (512, 512), (512, 256)):
    layers += [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.SiLU(), nn.Dropout(0.1)]
model = nn.Sequential(*layers, nn.Linear(256, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=98 * 20)
for epoch in range(20):
    model.train()
    running = 0.0
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    print(f"epoch {epoch}: {running / len(loader):.4f}")
