"""Distillation of a ResNet-50 into a small network in bf16; the teacher runs without gradients."""

import torch
import torch.nn.functional as F
from resnet import resnet50
from torch import nn

device = "cuda"
teacher = resnet50(100).to(device).eval()
student = nn.Sequential(
    nn.Conv2d(3, 64, 3, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Conv2d(64, 128, 3, 2, 1, groups=4),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.Conv2d(128, 256, 3, 2, 1, groups=8),
    nn.BatchNorm2d(256),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 100),
).to(device)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True)
images = torch.rand(512, 3, 224, 224, device=device)
labels = torch.randint(0, 100, (512,), device=device)
T = 4.0
for epoch in range(100):
    for part in torch.randperm(512, device=device).split(64):
        x, y = images[part], labels[part]
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                wanted = teacher(x)
            given = student(x)
            soft = F.kl_div(
                F.log_softmax(given / T, 1), F.softmax(wanted / T, 1), reduction="batchmean"
            )
            loss = 0.7 * T * T * soft + 0.3 * F.cross_entropy(given, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
