"""Multiply-accumulates and bytes of one step, counted while it runs."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ergometer.core.engine import Counts

if TYPE_CHECKING:
    from ergometer.engines.torch.engine import Torch


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what every op that reaches the backend does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry and func._overloadpacket not in _FORMULAS:
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
    if packet in _FORMULAS:
        return _FORMULAS[packet](args)
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


def _recurrent(inputs: Any, weights: Iterable[Any]) -> int:
    """Every weight matrix meets every time step of every sample once."""
    matrices = sum(int(weight.numel()) for weight in weights if weight.ndim == 2)
    return int(inputs.shape[0] * inputs.shape[1]) * matrices


def _attention(query: Any, key: Any, value: Any) -> tuple[int, int]:
    """(query x key, weights x value)."""
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return int(pairs * query.shape[-1]), int(pairs * value.shape[-1])


def _attention_backward(args: tuple[Any, ...]) -> int:
    """The scores once more, and two gradients for each of the two products."""
    scores, mixed = _attention(*args[1:4])
    return 3 * scores + 2 * mixed


_ATEN = torch.ops.aten
# What torch's own formulas miscount or leave out.
_FORMULAS: dict[Any, Callable[[tuple[Any, ...]], int]] = {
    _ATEN.convolution_backward: _convolution_backward_macs,
    _ATEN.mv: lambda args: int(args[0].numel()),
    _ATEN.addmv: lambda args: int(args[1].numel()),
    _ATEN.mkldnn_rnn_layer: lambda args: _recurrent(args[0], args[1:3]),
    _ATEN.mkldnn_rnn_layer_backward: lambda args: 2 * _recurrent(args[0], args[1:3]),
    _ATEN._cudnn_rnn: lambda args: _recurrent(args[0], args[1]),
    _ATEN._cudnn_rnn_backward: lambda args: 2 * _recurrent(args[0], args[1]),
    _ATEN._scaled_dot_product_flash_attention_for_cpu: lambda args: sum(_attention(*args[:3])),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def count(engine: "Torch") -> Counts:
    """Counts of one step of the loaded model, all its passes together."""
    forward, backward = Counter(), Counter()
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # a fused layer would arrive whole and count as nothing
    try:
        for number in range(len(engine.passes) if engine.training else 1):
            with forward:
                loss = engine.forward(number)
            if engine.training:
                with backward:
                    engine.backward(loss, number)
                engine.optimizers[number].zero_grad(set_to_none=True)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return Counts(
        parameters=sum(p.numel() for p in engine.module.parameters()),
        macs_forward=forward.macs,
        macs_backward=backward.macs,
        bytes_forward=forward.bytes,
        bytes_backward=backward.bytes,
    )
