"""PyTorch, eager."""

from ergometer.engines.torch.engine import Torch

ENGINE = Torch

__all__ = ["ENGINE"]
