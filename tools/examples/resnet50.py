"""ResNet-50 classification with SGD and momentum. Random weights, random images.

    python resnet50.py [--batch 32] [--size 224] [--steps 3]
"""

import argparse

import torch
import torchvision


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    for step in range(options.steps):
        images = torch.randn(options.batch, 3, options.size, options.size).cuda()
        labels = torch.randint(0, 1000, (options.batch,)).cuda()
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        print(f"step {step + 1} done")


if __name__ == "__main__":
    main()
