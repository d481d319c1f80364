"""Multiply-accumulates and bytes of one step, counted while it runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ergometer.core.engine import Counts

if TYPE_CHECKING:
    from ergometer.engines.torch.engine import Torch


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what every op that reaches the backend does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry:
            with self:  # in inference, composite ops (conv2d) arrive whole: count what they consist of
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        self.macs += _macs(func, args, kwargs, out)
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return out


def _macs(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    packet = func._overloadpacket
    if packet is torch.ops.aten.convolution_backward:
        return _convolution_backward_macs(args)
    formula: Callable[..., int] | None = flop_registry.get(packet)
    return formula(*args, **kwargs, out_val=out) // 2 if formula else 0


def _convolution_backward_macs(args: tuple[Any, ...]) -> int:
    """Each gradient costs what the forward pass costs; the layers whose input needs none skip theirs.

    torch's own formula miscounts grouped convolutions.
    """
    grad_output, inputs, weight = args[:3]
    transposed, mask = args[7], args[10]
    positions = (inputs if transposed else grad_output).shape
    per_position = weight[0].numel()
    forward = positions.numel() * per_position
    return int(forward) * (int(mask[0]) + int(mask[1]))


def count(engine: "Torch") -> Counts:
    """Counts of one step of the loaded model."""
    with _Counter() as forward:
        loss = engine.forward()
    backward = _Counter()
    if engine.training:
        with backward:
            loss.backward()  # type: ignore[no-untyped-call]
        assert engine.optimizer is not None
        engine.optimizer.zero_grad(set_to_none=True)
    return Counts(
        parameters=sum(p.numel() for p in engine.module.parameters()),
        macs_forward=forward.macs,
        macs_backward=backward.macs,
        bytes_forward=forward.bytes,
        bytes_backward=backward.bytes,
    )
