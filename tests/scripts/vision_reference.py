"""Image classification in the style of torchvision's reference: metric logger, warm-up, EMA."""

import argparse
import datetime
import os
import time
from collections import defaultdict, deque

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SmoothedValue:
    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)

    def update(self, value):
        self.deque.append(value)

    @property
    def median(self):
        return torch.tensor(list(self.deque)).median().item()

    def __str__(self):
        return f"{self.median:.4f}"


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **kwargs):
        for k, v in kwargs.items():
            if isinstance(v, torch.Tensor):
                v = v.item()
            assert isinstance(v, (float, int))
            self.meters[k].update(v)

    def log_every(self, iterable, print_freq, header):
        start_time = time.time()
        for i, obj in enumerate(iterable):
            yield obj
            if i % print_freq == 0:
                meters = "  ".join(f"{name}: {meter}" for name, meter in self.meters.items())
                memory = torch.cuda.max_memory_allocated() / 2**20
                print(f"{header} [{i}/{len(iterable)}] {meters} max mem: {memory:.0f}")
        total = datetime.timedelta(seconds=int(time.time() - start_time))
        print(f"{header} Total time: {total}")


class FakeData(Dataset):
    def __init__(self, size, classes):
        self.size, self.classes = size, classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.rand(3, 96, 96), index % self.classes


class InvertedResidual(nn.Module):
    def __init__(self, inner, outer, stride, expand):
        super().__init__()
        hidden = inner * expand
        self.use_res = stride == 1 and inner == outer
        self.conv = nn.Sequential(
            nn.Conv2d(inner, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )

    def forward(self, x):
        return x + self.conv(x) if self.use_res else self.conv(x)


def mobilenet(num_classes):
    settings = [(32, 16, 1, 1), (16, 24, 2, 6), (24, 24, 1, 6), (24, 48, 2, 6), (48, 96, 2, 6)]
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(inplace=True),
        *(InvertedResidual(*setting) for setting in settings),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, num_classes),
    )


def accuracy(output, target, topk=(1,)):
    with torch.inference_mode():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target[None])
        return [
            correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk
        ]


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, ema, scaler):
    model.train()
    metric_logger = MetricLogger()
    header = f"Epoch: [{epoch}]"
    for i, (image, target) in enumerate(
        metric_logger.log_every(data_loader, args.print_freq, header)
    ):
        start_time = time.time()
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        if ema and i % args.model_ema_steps == 0:
            ema.update_parameters(model)
            if epoch < args.lr_warmup_epochs:
                ema.n_averaged.fill_(0)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        metric_logger.update(loss=loss.item(), acc1=acc1.item(), acc5=acc5.item())
        metric_logger.update(img_s=image.shape[0] / (time.time() - start_time + 1e-9))


def evaluate(model, criterion, data_loader, device):
    model.eval()
    metric_logger = MetricLogger()
    with torch.inference_mode():
        for image, target in metric_logger.log_every(data_loader, 100, "Test:"):
            image, target = image.to(device), target.to(device)
            output = model(image)
            acc1, _ = accuracy(output, target, topk=(1, 5))
            metric_logger.update(loss=criterion(output, target).item(), acc1=acc1.item())


def main(args):
    if args.output_dir:
        os.makedirs(args.output_dir, exist_ok=True)
    print(args)
    device = torch.device(args.device)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(FakeData(640, 100), batch_size=args.batch_size, shuffle=True, num_workers=8)
    loader_test = DataLoader(FakeData(64, 100), batch_size=args.batch_size, num_workers=8)
    model = mobilenet(100)
    model.to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-5, eps=0.0316, alpha=0.9
    )
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    main_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.97)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=5)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, schedulers=[warmup, main_scheduler], milestones=[5]
    )
    ema = None
    if args.model_ema:
        ema = torch.optim.swa_utils.AveragedModel(
            model, device, torch.optim.swa_utils.get_ema_multi_avg_fn(0.999), use_buffers=True
        )
    print("Start training")
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, optimizer, loader, device, epoch, args, ema, scaler)
        scheduler.step()
        evaluate(model, criterion, loader_test, device)
        if args.output_dir:
            checkpoint = {"model": model.state_dict(), "epoch": epoch, "args": args}
            torch.save(checkpoint, os.path.join(args.output_dir, f"model_{epoch}.pth"))


def get_args_parser():
    parser = argparse.ArgumentParser(description="Classification training")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--lr-warmup-epochs", default=5, type=int)
    parser.add_argument("--print-freq", default=10, type=int)
    parser.add_argument("--output-dir", default=".")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--model-ema", action="store_true")
    parser.add_argument("--model-ema-steps", type=int, default=1)
    return parser


if __name__ == "__main__":
    main(get_args_parser().parse_args())
