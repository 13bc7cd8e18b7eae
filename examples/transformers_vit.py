"""A vision transformer on images, all parameters private. Run it: python transformers_vit.py

Made-up images (a bright quarter is the class) and random weights; with a model of yours, write
model = ViTForImageClassification.from_pretrained(NAME) and give it the images of its processor.
"""

import os

import torch
import torch.nn.functional as F
from dpsrm import make_private
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification


def pictures(count):
    labels = torch.randint(4, (count,))
    images = torch.randn(count, 3, 16, 16)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 8 * (label // 2), 8 * (label % 2)
        image[:, row : row + 8, column : column + 8] += 1
    return images, labels


def losses(model, batch):
    return F.cross_entropy(model(pixel_values=batch[0]).logits, batch[1], reduction="none")


n = int(os.environ.get("EXAMPLE_RECORDS", "4000"))
model = ViTForImageClassification(
    ViTConfig(
        image_size=16,
        patch_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=4,
    )
)
loader = DataLoader(TensorDataset(*pictures(n)), batch_size=n // 20)
adam = torch.optim.Adam(model.parameters(), lr=2e-3)
private = make_private(model=model, losses=losses, optimizer=adam, data_loader=loader, epochs=3, epsilon=8, delta=1e-5)
images, labels = pictures(200)
for epoch in range(3):
    for batch in private.data_loader:
        private.step(batch)
    with torch.no_grad():
        right = (model(pixel_values=images).logits.argmax(1) == labels).float().mean()
    print(f"epoch {epoch + 1}: ε = {private.epsilon:.2f}, {right:.1%} of the held-out images")
run = private.finish()
print(f"ε = {run.epsilon:.3f}, in {run.folder.path}")
