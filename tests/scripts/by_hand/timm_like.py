import torch
from timm_like import Mixup, ModelEma, ViT, param_groups, soft_target_loss


def make_step():
    model = ViT().cuda()
    model_ema = ModelEma(model)
    optimizer = torch.optim.AdamW(param_groups(model, 0.05), lr=1e-3)
    mixup = Mixup(0.8, 100)
    images, labels = torch.randn(32, 3, 96, 96), torch.randint(0, 100, (32,))

    def step():
        x, target = mixup(images.cuda(), labels.cuda())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = soft_target_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model_ema.update(model)
        torch.cuda.synchronize()

    return step
