"""Knowledge distillation: a frozen teacher in evaluation mode runs in every step of the student."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, i):
        return torch.randn(3, 64, 64), i % 20


def network(width):
    def block(inner, outer):
        return [
            nn.Conv2d(inner, outer, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
        ]

    return nn.Sequential(
        *block(3, width),
        *block(width, 2 * width),
        *block(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 20),
    )


def distillation_loss(student, teacher, labels, temperature=4.0, alpha=0.7):
    soft = nn.functional.kl_div(
        nn.functional.log_softmax(student / temperature, dim=1),
        nn.functional.softmax(teacher / temperature, dim=1),
        reduction="batchmean",
    )
    hard = nn.functional.cross_entropy(student, labels)
    return alpha * temperature**2 * soft + (1 - alpha) * hard


def train():
    device = "cuda"
    teacher, student = network(64).to(device), network(16).to(device)
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Images(), batch_size=64, shuffle=True)
    for epoch in range(20):
        student.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            with torch.no_grad():
                targets = teacher(images)
            loss = distillation_loss(student(images), targets, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    train()
