"""DCGAN: a generator and a discriminator trained in turn, each with its own Adam. Random weights, random images of 64 x 64.

    python dcgan.py [--batch 128] [--steps 3]
"""

import argparse

import torch
from torch import nn

LATENT = 100


class Generator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        layers = []
        channels = [LATENT, width * 8, width * 4, width * 2, width]
        for i, (inside, outside) in enumerate(zip(channels, channels[1:])):
            layers += [nn.ConvTranspose2d(inside, outside, 4, 2 if i else 1, 1 if i else 0, bias=False), nn.BatchNorm2d(outside), nn.ReLU(True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, noise):
        return self.layers(noise)


class Discriminator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for factor in (1, 2, 4):
            layers += [nn.Conv2d(width * factor, width * factor * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width * factor * 2), nn.LeakyReLU(0.2, inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False), nn.Flatten(0))

    def forward(self, images):
        return self.layers(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    generator, discriminator = Generator().cuda(), Discriminator().cuda()
    criterion = nn.BCEWithLogitsLoss()
    adam_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    adam_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    ones, zeros = torch.ones(options.batch).cuda(), torch.zeros(options.batch).cuda()
    for step in range(options.steps):
        real = torch.rand(options.batch, 3, 64, 64).cuda()
        # Half-step 1: the discriminator on real and on generated images.
        discriminator.zero_grad()
        criterion(discriminator(real), ones).backward()
        generated = generator(torch.randn(options.batch, LATENT, 1, 1, device="cuda"))
        criterion(discriminator(generated.detach()), zeros).backward()
        adam_d.step()
        # Half-step 2: the generator through the discriminator.
        generator.zero_grad()
        criterion(discriminator(generated), ones).backward()
        adam_g.step()
        print(f"step {step + 1} done")


if __name__ == "__main__":
    main()
