"""DCGAN (Radford et al. 2016): a generator of images from noise and a discriminator, trained against each other."""

from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ergometer.core.model import Field, Model, Pass

if TYPE_CHECKING:
    import torch
    from torch import nn

_NOISE = 100
_WIDTH = 64


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn

    channels, size = input[0], input[1]
    halvings = (size // 4).bit_length() - 1  # from the image's size down to 4x4
    widths = [_WIDTH << number for number in range(halvings)]

    def start(conv: nn.Module) -> nn.Module:
        nn.init.normal_(conv.weight, std=0.02)  # type: ignore[arg-type]
        return conv

    def generator() -> nn.Module:
        layers = {
            "project": start(nn.ConvTranspose2d(_NOISE, widths[-1], 4, bias=False)),
            "project_bn": nn.BatchNorm2d(widths[-1]),
            "project_relu": nn.ReLU(),
        }
        for number, (wide, narrow) in enumerate(zip(widths[:0:-1], widths[-2::-1], strict=True), 1):
            layers |= {
                f"up{number}": start(nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1, bias=False)),
                f"up{number}_bn": nn.BatchNorm2d(narrow),
                f"up{number}_relu": nn.ReLU(),
            }
        layers |= {
            "image": start(nn.ConvTranspose2d(widths[0], channels, 4, stride=2, padding=1, bias=False)),
            "tanh": nn.Tanh(),
        }
        return nn.Sequential(OrderedDict(layers))

    def discriminator() -> nn.Module:
        layers = {
            "down1": start(nn.Conv2d(channels, widths[0], 4, stride=2, padding=1, bias=False)),
            "down1_relu": nn.LeakyReLU(0.2),
        }
        for number, (narrow, wide) in enumerate(pairwise(widths), 2):
            layers |= {
                f"down{number}": start(nn.Conv2d(narrow, wide, 4, stride=2, padding=1, bias=False)),
                f"down{number}_bn": nn.BatchNorm2d(wide),
                f"down{number}_relu": nn.LeakyReLU(0.2),
            }
        layers |= {"real": start(nn.Conv2d(widths[-1], 1, 4, bias=False)), "flatten": nn.Flatten()}
        return nn.Sequential(OrderedDict(layers))

    class Dcgan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = generator()
            self.discriminator = discriminator()

        def forward(self, noise: "torch.Tensor") -> "torch.Tensor":
            return self.generator(noise[:, :, None, None])  # type: ignore[no-any-return]

    return Dcgan()


def layout(input: tuple[int, ...], classes: int) -> tuple[Field, ...]:
    return Field("image", input), Field("noise", (_NOISE,))


def _judged(scores: Any, real: bool) -> Any:
    import torch

    wanted = torch.full_like(scores, float(real))
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted)


def discriminator_loss(module: Any, companion: Any, batch: tuple[Any, ...]) -> Any:
    import torch

    image, noise = batch
    with torch.no_grad():
        made = module(noise)
    return _judged(module.discriminator(image), True) + _judged(module.discriminator(made), False)


def generator_loss(module: Any, companion: Any, batch: tuple[Any, ...]) -> Any:
    return _judged(module.discriminator(module(batch[1])), True)


def refuse(shape: tuple[int, ...]) -> str:
    fits = len(shape) == 3 and shape[1] == shape[2] and shape[1] in (16, 32, 64, 128, 256)
    return "" if fits else "square images of 16, 32, 64, 128 or 256 pixels a side (CxHxW)"


MODEL = Model(
    name="dcgan",
    title="DCGAN, generator and discriminator",
    task="image generation",
    input=(3, 32, 32),
    classes=0,
    build=build,
    parameters=1_732_224,
    macs=17_973_248,
    layout=layout,
    feeds=("noise",),
    passes=(
        Pass(name="discriminator", loss=discriminator_loss, parameters="discriminator."),
        Pass(name="generator", loss=generator_loss, parameters="generator."),
    ),
    refuse=refuse,
    papers={"TX2": "1M parameters and 30M operations stated, a copy of the DenseNet40 row"},
)
