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
        self._seen: set[int] = set()
        for name, child in module.named_modules():
            child.register_forward_pre_hook(self._enter(name))
            child.register_forward_hook(self._leave)

    def keep(self, tensors: Any) -> None:
        self._kept |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def _enter(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any) -> None:
            self._settle()
            call = _Call(name or "(model)", type(module).__name__, self._own_parameters(module))
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
            own = self._own_parameters(child)
            if own:
                self.calls.append(_Call(name, type(child).__name__, own))

    def _own_parameters(self, module: torch.nn.Module) -> int:
        """Those that no layer before had: a layer may run twice, or share its weights."""
        fresh = {id(p): p.numel() for p in module.parameters(recurse=False) if id(p) not in self._seen}
        self._seen |= fresh.keys()
        return sum(fresh.values())

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
    """Of one sample, in the order of execution. A module that only holds others is left out."""
    module = _make(model, "meta")
    if any(isinstance(child, torch.nn.RNNBase) for child in module.modules()):
        # On the meta device torch takes another way through these layers, which keeps less.
        return _walk(model, _make(model, "cpu"), "cpu", _SAMPLES)
    try:
        return _walk(model, module, "meta", _SAMPLES)
    except Exception:  # a network that looks at values, or is made for one sample
        if model.parameters is not None:
            raise
    try:
        return _walk(model, _make(model, "cpu"), "cpu", _SAMPLES)
    except Exception:  # noqa: BLE001 - likewise; what the last attempt says is shown
        return _walk(model, _make(model, "cpu"), "cpu", 1)


def _make(model: Model, device: str) -> torch.nn.Module:
    if model.file is not None:
        module = open_file(model, training=None)
    elif model.parameters is None:
        module = model.make()  # the user's code may look at values as it builds
    else:
        with torch.device(device):
            module = model.make()
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"{model.name} returned {type(module).__name__}, not a torch.nn.Module.")
    set_training(module, True)
    return module.to(device)


def _walk(model: Model, module: torch.nn.Module, device: str, samples: int) -> list[Layer]:
    fields = {item.name: item for item in model.fields()}
    inputs = [_blank(fields[name], device, samples) for name in model.feeds or list(fields)[:-1]]
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
            macs=call.macs // samples,
            activations=call.activations // samples,
        )
        for call in watch.calls
        if call.parameters or call.macs or call.activations
    ]


def _blank(item: Field, device: str, samples: int) -> torch.Tensor:
    kind = torch.float32 if item.high is None else torch.int64
    return torch.zeros((samples, *item.shape), dtype=kind, device=device)
