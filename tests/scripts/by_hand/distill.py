import torch
from distill import distillation_loss, network


def make_step():
    teacher, student = network(64).cuda(), network(16).cuda()
    teacher.eval().requires_grad_(False)
    student.train()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    image, label = torch.randn(64, 3, 64, 64), torch.randint(0, 20, (64,))

    def step():
        images, labels = image.cuda(), label.cuda()
        with torch.no_grad():
            targets = teacher(images)
        loss = distillation_loss(student(images), targets, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
