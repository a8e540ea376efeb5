"""A small network for images that two workers crop, turn and jitter in numpy."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self, count):
        self.count = count
        self.images = np.random.randint(0, 256, (64, 256, 256, 3), dtype=np.uint8)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        image = self.images[i % 64]
        top, left = np.random.randint(0, 32, 2)
        image = image[top : top + 224, left : left + 224]
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        image = image.astype(np.float32) / 255
        image = np.clip((image - 0.5) * np.random.uniform(0.8, 1.2) + 0.5, 0, 1)
        image = image + np.random.normal(0, 0.02, image.shape)
        return torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32)), i % 100


def main():
    layers, inner = [], 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(inner, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
        inner = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 100))
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(Augmented(6400), batch_size=32, shuffle=True, num_workers=2)
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
