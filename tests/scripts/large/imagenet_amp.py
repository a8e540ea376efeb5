"""ResNet-50 on made-up images: fp16 with a GradScaler, channels_last, SGD."""

import torch
from resnet import resnet50
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count):
        self.pool = torch.randint(0, 256, (256, 3, 224, 224), dtype=torch.uint8)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.pool[i % 256], i % 1000


def main():
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    model = resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loader = DataLoader(
        Images(100_000), 128, shuffle=True, num_workers=8, pin_memory=True, drop_last=True
    )
    mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
    for epoch in range(2):
        model.train()
        for step, (images, labels) in enumerate(loader):
            images = images.to(device, non_blocking=True).float().sub_(mean).div_(58.0)
            images = images.contiguous(memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.float16):
                loss = criterion(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % 50 == 49:
                print(epoch, step, loss.item())


if __name__ == "__main__":
    main()
