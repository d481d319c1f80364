"""Layers of a network with their shapes, parameters, multiply-accumulates and activations.

The network is built on torch's meta device, which knows shapes and holds no data: no weights are
allocated and nothing is computed, so that a network larger than the memory can be looked at.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ergometer.core.engine import Layer
from ergometer.core.errors import UsageError
from ergometer.core.model import Field, Model
from ergometer.engines.torch.count import Counter
from ergometer.engines.torch.files import open_file, set_training

_SAMPLES = 2  # one alone may leave batch-norm a single value per channel, which it refuses to train on


@dataclass(slots=True)
class _Call:
    """One execution of a module, without those inside of it."""

    name: str
    kind: str
    parameters: int
    output: tuple[int, ...] = ()
    macs: int = 0
    activations: int = 0


class _Watch:
    """Follows the modules as they run, and what each computes and keeps."""

    def __init__(self, module: torch.nn.Module, counter: Counter):
        self.calls: list[_Call] = []
        self._counter = counter
        self._stack: list[_Call] = []
        self._macs = 0
        self._kept: set[int] = {tensor.untyped_storage()._cdata for tensor in module.state_dict().values()}
        self._seen: set[str] = set()
        for name, child in module.named_modules():
            child.register_forward_pre_hook(self._enter(name))
            child.register_forward_hook(self._leave)

    def keep(self, tensors: Any) -> None:
        self._kept |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def _enter(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any) -> None:
            self._settle()
            own = 0 if name in self._seen else sum(p.numel() for p in module.parameters(recurse=False))
            self._seen.add(name)
            call = _Call(name or "(model)", type(module).__name__, own)
            self.calls.append(call)
            self._stack.append(call)

        return hook

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._settle()
        call = self._stack.pop()
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor):
            call.output = tuple(first.shape[1:])

    def add_uncalled(self, module: torch.nn.Module) -> None:
        """What holds parameters but took no part, as a discriminator does in making images."""
        for name, child in module.named_modules():
            own = sum(p.numel() for p in child.parameters(recurse=False))
            if own and name not in self._seen:
                self.calls.append(_Call(name, type(child).__name__, own))

    def _settle(self) -> None:
        """Multiply-accumulates since the last border belong to the module that was running."""
        if self._stack:
            self._stack[-1].macs += self._counter.macs - self._macs
        self._macs = self._counter.macs

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._kept and self._stack:
            self._kept.add(storage._cdata)
            self._stack[-1].activations += storage.nbytes()
        return tensor


def layers_of(model: Model) -> list[Layer]:
    """Of one sample (in a batch of two), in the order of execution. A module that only holds others is left out."""
    if model.file is not None:
        module = open_file(model, training=True).to("meta")
    else:
        with torch.device("meta"):
            module = model.make()
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"{model.name} returned {type(module).__name__}, not a torch.nn.Module.")
    set_training(module, True)
    fields = {item.name: item for item in model.fields()}
    inputs = [_blank(fields[name]) for name in model.feeds or list(fields)[:-1]]
    counter = Counter()
    watch = _Watch(module, counter)
    watch.keep(inputs)
    with torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda tensor: tensor), counter:
        module(*inputs)
    watch.add_uncalled(module)
    return [
        Layer(
            name=call.name,
            kind=call.kind,
            output=call.output,
            parameters=call.parameters,
            macs=call.macs // _SAMPLES,
            activations=call.activations // _SAMPLES,
        )
        for call in watch.calls
        if call.parameters or call.macs or call.activations
    ]


def _blank(item: Field) -> torch.Tensor:
    kind = torch.float32 if item.high is None else torch.int64
    return torch.empty((_SAMPLES, *item.shape), dtype=kind, device="meta")
