"""What the networks made of one kind of layer share: their options, and labels as many as their width."""

from typing import TYPE_CHECKING

from ergometer.core.model import Field

if TYPE_CHECKING:
    from torch import nn

OPTIONS: dict[str, int | tuple[str, ...]] = {"width": 64, "depth": 1}


def layout(input: tuple[int, ...], classes: int, width: int, depth: int) -> tuple[Field, ...]:
    return Field("image", input), Field("label", (), width)


def mean_scores() -> "dict[str, nn.Module]":
    """The mean of each channel as the score of a class.

    SEC19's authors compare the first values of one channel with the label, so that most filters would never learn.
    """
    from torch import nn

    return {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
