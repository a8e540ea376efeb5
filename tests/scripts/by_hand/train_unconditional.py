import torch
from diffusers import DDPMScheduler
from torch.nn import functional as F
from train_unconditional import make_unet


def make_step():
    model = make_unet(32).cuda()
    model.train()
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="linear")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6
    )
    images = torch.randn(16, 3, 32, 32)

    def step():
        clean = images.cuda()
        noise = torch.randn(clean.shape, device="cuda")
        timesteps = torch.randint(0, 1000, (16,), device="cuda").long()
        noisy = scheduler.add_noise(clean, noise, timesteps)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(noisy, timesteps).sample
        loss = F.mse_loss(output.float(), noise.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.detach().item()

    return step
