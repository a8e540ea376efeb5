"""Trains a diffusion model with diffusers and Accelerate, in the style of train_unconditional."""

import argparse
import math
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader, Dataset


class Flowers(Dataset):
    def __init__(self, resolution):
        self.resolution = resolution

    def __len__(self):
        return 256

    def __getitem__(self, i):
        return {"input": torch.randn(3, self.resolution, self.resolution)}


def make_unet(resolution):
    return UNet2DModel(
        sample_size=resolution,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(64, 64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="ddpm-model-32")
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--num_epochs", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--mixed_precision", default="no")
    parser.add_argument("--use_ema", action="store_true")
    args = parser.parse_args()
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    model = make_unet(args.resolution)
    ema_model = None
    if args.use_ema:
        ema_model = EMAModel(model.parameters(), decay=0.9999, use_ema_warmup=True)
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="linear")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, betas=(0.95, 0.999), weight_decay=1e-6
    )
    loader = DataLoader(Flowers(args.resolution), batch_size=args.train_batch_size, shuffle=True)
    steps = math.ceil(len(loader))
    lr_scheduler = get_scheduler(
        "cosine",
        optimizer=optimizer,
        num_warmup_steps=500,
        num_training_steps=steps * args.num_epochs,
    )
    model, optimizer, loader, lr_scheduler = accelerator.prepare(
        model, optimizer, loader, lr_scheduler
    )
    if ema_model:
        ema_model.to(accelerator.device)
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
    global_step = 0
    for _ in range(args.num_epochs):
        model.train()
        for batch in loader:
            clean_images = batch["input"]
            noise = torch.randn(clean_images.shape, device=clean_images.device)
            bsz = clean_images.shape[0]
            timesteps = torch.randint(
                0, noise_scheduler.config.num_train_timesteps, (bsz,), device=clean_images.device
            ).long()
            noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
            with accelerator.accumulate(model):
                model_output = model(noisy_images, timesteps).sample
                loss = F.mse_loss(model_output.float(), noise.float())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                if ema_model:
                    ema_model.step(model.parameters())
                global_step += 1
            logs = {"loss": loss.detach().item(), "lr": lr_scheduler.get_last_lr()[0]}
            accelerator.log(logs, step=global_step)
        accelerator.unwrap_model(model).save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
