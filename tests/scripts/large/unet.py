"""A U-Net that segments 320 x 320 images, with autocast, RMSprop and the Dice loss."""

import torch
import torch.nn.functional as F
from torch import nn


def double_conv(inner, outer):
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
        nn.Conv2d(outer, outer, 3, padding=1, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, channels=3, classes=2, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        self.downs = nn.ModuleList()
        for width in widths:
            self.downs.append(double_conv(channels, width))
            channels = width
        self.ups, self.convs = nn.ModuleList(), nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.ups.append(nn.ConvTranspose2d(2 * width, width, 2, stride=2))
            self.convs.append(double_conv(2 * width, width))
        self.out = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x if not skips else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, conv in zip(self.ups, self.convs):
            x = conv(torch.cat([skips.pop(), up(x)], dim=1))
        return self.out(x)


def dice_loss(logits, masks):
    chosen = F.one_hot(masks, 2).permute(0, 3, 1, 2).float()
    probabilities = F.softmax(logits, dim=1).float()
    both = (probabilities * chosen).sum((1, 2, 3))
    return 1 - (2 * both / (probabilities.sum((1, 2, 3)) + chosen.sum((1, 2, 3)))).mean()


def train():
    device = torch.device("cuda")
    images = torch.rand(64, 3, 320, 320)
    masks = torch.randint(0, 2, (64, 320, 320))
    data = torch.utils.data.TensorDataset(images, masks)
    workers = dict(shuffle=True, drop_last=True, num_workers=4, pin_memory=True)
    loader = torch.utils.data.DataLoader(data, batch_size=16, **workers)
    model = UNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True
    )
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(20):
        model.train()
        for x, y in loader:
            x = x.to(device, dtype=torch.float32, memory_format=torch.channels_last)
            y = y.to(device)
            with torch.autocast("cuda"):
                logits = model(x)
                loss = F.cross_entropy(logits, y) + dice_loss(logits, y)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        print(epoch, loss.item())


if __name__ == "__main__":
    train()
