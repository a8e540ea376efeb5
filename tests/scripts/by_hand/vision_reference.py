import torch
from torch import nn
from vision_reference import accuracy, mobilenet


def make_step():
    torch.backends.cudnn.benchmark = True
    model = mobilenet(100).cuda()
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-5, eps=0.0316, alpha=0.9
    )
    scaler = torch.amp.GradScaler("cuda")
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    ema = torch.optim.swa_utils.AveragedModel(model, "cuda", average, use_buffers=True)
    images, labels = torch.rand(32, 3, 96, 96), torch.randint(0, 100, (32,))

    def step():
        image, target = images.cuda(), labels.cuda()
        with torch.amp.autocast("cuda"):
            output = model(image)
            loss = nn.functional.cross_entropy(output, target, label_smoothing=0.1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        ema.update_parameters(model)
        ema.n_averaged.fill_(0)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        loss.item(), acc1.item(), acc5.item()

    return step
