import torch
from vae import VAE, loss_function


def make_step():
    model = VAE().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.rand(128, 1, 28, 28).pin_memory()

    def step():
        x = data.cuda()
        optimizer.zero_grad()
        recon, mu, logvar = model(x)
        loss = loss_function(recon, x, mu, logvar)
        loss.backward()
        loss.item()
        optimizer.step()

    return step
