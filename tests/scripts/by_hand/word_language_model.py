import torch
from torch import nn
from word_language_model import RNNModel, repackage_hidden


def make_step():
    model = RNNModel(10000, 200, 200, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    source = torch.randint(0, 10000, (5000, 20)).cuda()
    state = {"hidden": model.init_hidden(20)}

    def step():
        data, targets = source[35:70], source[36:71].view(-1)
        optimizer.zero_grad()
        output, state["hidden"] = model(data, repackage_hidden(state["hidden"]))
        loss = nn.functional.nll_loss(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        loss.item()

    return step
