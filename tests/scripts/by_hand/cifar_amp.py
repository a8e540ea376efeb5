import torch
from cifar_amp import ResNet
from torch import nn


def make_step():
    torch.backends.cudnn.benchmark = True
    model = ResNet().to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    scaler = torch.amp.GradScaler("cuda")
    image, label = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))

    def step():
        images = image.to("cuda", non_blocking=True, memory_format=torch.channels_last)
        labels = label.to("cuda", non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        loss.item()

    return step
