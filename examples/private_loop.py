"""A training loop: a small CNN on images of 28 × 28, Adam, a scheduler, evaluation after each epoch."""

import os

import torch
import torch.nn.functional as F
from dpsrm import make_private
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

n = int(os.environ.get("EXAMPLE_RECORDS", "20000"))  # made-up images: a pattern per class, and noise
labels, patterns = torch.randint(10, (n + 1000,)), torch.randn(10, 1, 28, 28)
images = patterns[labels] + 2 * torch.randn(n + 1000, 1, 28, 28)
loader = DataLoader(TensorDataset(images[1000:], labels[1000:]), batch_size=256, shuffle=True)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)),
    *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten()),
    *(nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
)
adam = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=5)


def losses(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none")


private = make_private(model=model, losses=losses, optimizer=adam, data_loader=loader, epochs=5, epsilon=3, delta=1e-5)
for epoch in range(5):
    for batch in private.data_loader:
        adam.zero_grad()
        private.step(batch)
        adam.step()
    scheduler.step()
    with torch.no_grad():
        right = (model(images[:1000]).argmax(1) == labels[:1000]).float().mean()
    print(f"epoch {epoch + 1}: {right:.1%} of the test images")
run = private.finish()
