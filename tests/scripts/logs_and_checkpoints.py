"""A segmentation network that logs to files, saves every step, keeps the best and resumes."""

import argparse
import csv
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Masks(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, i):
        return torch.randn(3, 64, 64), (torch.rand(64, 64) > 0.5).long()


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()

        def double(inner, outer):
            return nn.Sequential(
                nn.Conv2d(inner, outer, 3, padding=1),
                nn.GroupNorm(8, outer),
                nn.ReLU(),
                nn.Conv2d(outer, outer, 3, padding=1),
                nn.ReLU(),
            )

        self.down1, self.down2 = double(3, width), double(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = double(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        return self.head(self.last(torch.cat([a, self.up(b)], dim=1)))


def save(state, folder, step, is_best):
    path = folder / f"step_{step}.pt"
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        torch.save(state, file)
    os.replace(file.name, path)
    latest = folder / "latest.pt"
    if latest.is_symlink() or latest.exists():
        latest.unlink()
    latest.symlink_to(path.name)
    if is_best:
        shutil.copyfile(path, folder / "best.pt")
    for old in sorted(folder.glob("step_*.pt"))[:-2]:
        old.unlink()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    if args.out.exists():
        shutil.rmtree(args.out)
    (args.out / "checkpoints").mkdir(parents=True)
    logging.basicConfig(
        level=logging.DEBUG,
        handlers=[logging.FileHandler(args.out / "train.log"), logging.StreamHandler(sys.stdout)],
    )
    (args.out / "args.json").write_text(json.dumps(vars(args), default=str))
    device = torch.device("cuda")
    model = UNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    loader = DataLoader(Masks(), batch_size=args.batch_size, shuffle=True, num_workers=2)
    step, best = 0, float("inf")
    with open(args.out / "losses.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["step", "loss"])
        for epoch in range(args.epochs):
            for images, masks in loader:
                images, masks = images.to(device), masks.to(device)
                loss = nn.functional.cross_entropy(model(images), masks)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                value = loss.item()
                logging.info("epoch %d step %d loss %.4f", epoch, step, value)
                table.writerow([step, value])
                file.flush()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(state, args.out / "checkpoints", step, value < best)
                best = min(best, value)
                loaded = torch.load(args.out / "checkpoints" / "latest.pt", map_location="cpu")
                assert set(loaded) == {"model", "optimizer"}
                step += 1


if __name__ == "__main__":
    main()
