"""Convolutional networks and transformers for images."""

import copy
import runpy
from pathlib import Path

import torch
import torchvision
import transformers
from tally import Tally, train
from torch import nn
from torch.utils.checkpoint import checkpoint

EXAMPLES = Path(__file__).resolve().parents[2] / "tools" / "examples"


def images(size=64, batch=2):
    return lambda: (torch.randn(batch, 3, size, size).cuda(),)


def mean(output):
    return output.float().pow(2).mean()


def resnet50():
    model = torchvision.models.resnet50(num_classes=10).cuda()
    criterion, labels = nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long).cuda()
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), images(), lambda out: criterion(out, labels))


def mobilenet():
    """With a copy of the model whose weights are averages."""
    model = torchvision.models.mobilenet_v3_small(num_classes=10).cuda()
    average = copy.deepcopy(model).requires_grad_(False)

    def update():
        with torch.no_grad():
            for a, b in zip(average.parameters(), model.parameters()):
                a.lerp_(b, 0.01)

    return train(model, torch.optim.RMSprop(model.parameters()), images(), mean, after_step=update, more_models=[average])


def convnext():
    model = torchvision.models.ConvNeXt([torchvision.models.convnext.CNBlockConfig(32, 64, 2), torchvision.models.convnext.CNBlockConfig(64, None, 2)],
                                        num_classes=10).cuda()
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), images(), mean, autocast=torch.bfloat16, set_to_none=False)


def vit():
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, image_size=32, patch_size=8)
    model = transformers.ViTForImageClassification(config).cuda()
    return train(model, torch.optim.Lion(model.parameters()) if hasattr(torch.optim, "Lion") else torch.optim.NAdam(model.parameters()),
                 images(32), lambda out: mean(out.logits))


def compiled(backend="aot_eager"):
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).cuda()
    called = torch.compile(model, backend=backend)
    return train(model, torch.optim.AdamW(model.parameters()), lambda: (torch.randn(32, 64, device="cuda"),), mean, called=called)


def inductor():
    return compiled("inductor")


class Twice(nn.Sequential):
    def __init__(self, inside, outside):
        super().__init__(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(True),
                         nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(True))


class UNet(nn.Module):
    def __init__(self, width=16, time=False, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.down1, self.down2, self.middle = Twice(3, width), Twice(width, 2 * width), Twice(2 * width, 4 * width)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1, self.out = Twice(4 * width, 2 * width), Twice(2 * width, width), nn.Conv2d(width, 3, 1)
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 4 * width)) if time else None

    def block(self, module, x):
        return checkpoint(module, x, use_reentrant=True) if self.checkpointed and x.requires_grad else module(x)

    def forward(self, x, time=None):
        a = self.block(self.down1, x)
        b = self.block(self.down2, nn.functional.max_pool2d(a, 2))
        c = self.block(self.middle, nn.functional.max_pool2d(b, 2))
        if self.time is not None:
            c = c + self.time(time)[:, :, None, None]
        d = self.block(self.join2, torch.cat([b, self.up2(c)], 1))
        return self.out(self.block(self.join1, torch.cat([a, self.up1(d)], 1)))


def unet():
    model = UNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

    def evaluate():
        model.eval()
        with torch.no_grad():
            model(*images()())
        model.train()

    return train(model, optimizer, images(), mean, after_step=evaluate)


def diffusion():
    """Noise, a time step, bf16, reentrant checkpointing, and averages of the weights kept in a list."""
    model = UNet(time=True, checkpointed=True).cuda()
    averages = [p.detach().clone() for p in model.parameters()]

    def update():
        with torch.no_grad():
            torch._foreach_lerp_(averages, [p.detach() for p in model.parameters()], 0.01)

    def batch():
        clean = torch.randn(2, 3, 64, 64).cuda()
        noise, level = torch.randn_like(clean), torch.rand(2, 1, 1, 1, device="cuda")
        return clean * (1 - level) + noise * level, torch.randn(2, 32, device="cuda")

    return train(model, torch.optim.AdamW(model.parameters()), batch, mean, autocast=torch.bfloat16, clip=1.0, after_step=update)


def dcgan():
    parts = runpy.run_path(str(EXAMPLES / "dcgan.py"))
    generator, discriminator = parts["Generator"](8).cuda(), parts["Discriminator"](8).cuda()
    adam_d, adam_g = torch.optim.Adam(discriminator.parameters()), torch.optim.Adam(generator.parameters())
    criterion, ones, zeros = nn.BCEWithLogitsLoss(), torch.ones(4).cuda(), torch.zeros(4).cuda()
    tally = Tally([generator, discriminator], [adam_d, adam_g])
    for _ in range(3):
        real = torch.rand(4, 3, 64, 64).cuda()
        discriminator.zero_grad()
        criterion(discriminator(real), ones).backward()
        generated = generator(torch.randn(4, 100, 1, 1, device="cuda"))
        criterion(discriminator(generated.detach()), zeros).backward()
        tally.look()
        adam_d.step()
        generator.zero_grad()
        criterion(discriminator(generated), ones).backward()
        tally.look()
        adam_g.step()
        tally.look()
    return tally


CASES = {
    "ResNet-50": ("fp32, SGD with momentum", resnet50),
    "MobileNetV3": ("RMSprop, averaged copy of the model", mobilenet),
    "ConvNeXt": ("bf16 autocast, SGD, gradients zeroed in place", convnext),
    "ViT": ("fp32, NAdam", vit),
    "compiled MLP": ("torch.compile, AdamW", compiled),
    "compiled MLP, inductor": ("torch.compile with its default backend, AdamW", inductor),
    "U-Net": ("capturable AdamW, evaluation after each step", unet),
    "diffusion U-Net": ("bf16 autocast, reentrant checkpointing, clipping, averages in a list, AdamW", diffusion),
    "DCGAN": ("two networks, two Adams", dcgan),
}
