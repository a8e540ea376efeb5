"""A residual network in mixed precision, with GradScaler, channels_last and a cosine schedule."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, EPOCHS, LR = 128, 90, 0.1


class Images(Dataset):
    def __len__(self):
        return 2560

    def __getitem__(self, i):
        return torch.randn(3, 32, 32), i % 10


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.short = nn.Sequential()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        )
        widths, blocks, inner = (64, 128, 256, 512), [], 64
        for i, width in enumerate(widths):
            blocks += [Block(inner, width, 1 if i == 0 else 2), Block(width, width, 1)]
            inner = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.fc(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


if __name__ == "__main__":
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ResNet().to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    loader = DataLoader(Images(), BATCH, shuffle=True, num_workers=4, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
    scaler = torch.amp.GradScaler("cuda")
    running = 0.0
    for epoch in range(EPOCHS):
        model.train()
        for step, (images, labels) in enumerate(loader):
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(images), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            running = 0.9 * running + 0.1 * loss.item()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {running:.3f} lr {scheduler.get_last_lr()}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
