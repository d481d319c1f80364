"""One training or inference step in eager PyTorch, on the CPU or on CUDA."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from ergometer.core.clock import now_ns
from ergometer.core.dataset import Environment
from ergometer.core.engine import LEARNING_RATE, MOMENTUM, Counts, Layer, Learning, MemoryParts, Step
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.gpu import NVIDIA_DRIVER
from ergometer.core.graph import RESULT, VELOCITY, Graph
from ergometer.core.heap import is_glibc, keep_freed_memory
from ergometer.core.model import Model, Pass
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.engines.torch.files import open_file, set_training

if TYPE_CHECKING:
    import torch


class Torch:
    name = "torch"
    title = "PyTorch, eager; SGD with momentum"
    extra = "torch"
    devices: tuple[str, ...] = ("cpu", "cuda")
    modes: tuple[str, ...] = ("train", "infer")
    options: ClassVar[dict[str, tuple[str, ...]]] = {
        "layout": ("contiguous", "channels_last"),
        "precision": ("float32", "tf32", "bf16"),
    } | ({"memory": ("returned", "kept")} if is_glibc() else {})
    portable = False
    slow_start = False
    untraced = ""
    strict = 0.02
    loose = 0.1

    def __init__(self) -> None:
        self.phases: tuple[str, ...] = ()
        self.remarks: list[str] = []

    def probe(self, device: str) -> Probe:
        if find_spec("torch") is None:
            return Probe(False, "torch is not installed", "pip install 'ergometer[torch]'")
        if device not in self.devices:
            return Probe(False, f"torch here runs on {' or '.join(self.devices)}, not on {device!r}")
        if device == "cuda":
            import torch

            if not torch.cuda.is_available():
                return Probe(False, "torch sees no CUDA device", f"{NVIDIA_DRIVER} and a CUDA build of torch")
            return Probe(True, torch.cuda.get_device_name())
        return Probe(True, "installed")

    def prepare(self) -> None:
        import torch

        tiny = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.Flatten(), torch.nn.Linear(1, 2))
        optimizer = torch.optim.SGD(tiny.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        for _ in range(2):
            torch.nn.CrossEntropyLoss()(tiny(torch.zeros(2, 1, 3, 3)), torch.tensor([0, 1])).backward()
            optimizer.step()

    def versions(self) -> dict[str, str]:
        import torch

        found = {"torch": str(torch.__version__)}
        if torch.version.cuda and torch.cuda.is_available():
            found["cuda"] = str(torch.version.cuda)
        return found

    def threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def load(self, spec: Spec, model: Model, batch: Sequence[Any], environment: Environment | None = None) -> None:
        import torch

        torch.manual_seed(spec.seed)
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        if spec.options.get("memory") == "kept":
            keep_freed_memory()
        self.layers: list[tuple[str, str]] | None = None
        self.training = spec.mode == "train"
        self.device = torch.device(spec.device)
        self.environment = environment if self.training else None
        self.passes = model.passes or (Pass(name="", loss=cross_entropy),)
        if model.lowered is not None:
            self.passes = (Pass(name="", loss=lambda module, _, batch: module(*batch)),)
        acting = () if self.environment is None else ("environment",)
        learning = ("forward", "backward", "optimizer") * len(self.passes)
        self.phases = acting + learning if self.training else ("forward",)
        self.module: torch.nn.Module = self._module_of(model)
        if not isinstance(self.module, torch.nn.Module):
            raise UsageError(f"{spec.model} returned {type(self.module).__name__}, not a torch.nn.Module.")
        self.module.to(self.device)
        self.channels_last = spec.options.get("layout") == "channels_last"
        precision = spec.options.get("precision")
        self.half = precision == "bf16"
        if precision == "tf32" and self.device.type != "cuda":
            raise UsageError("precision=tf32 is of NVIDIA GPUs: use --device cuda.")
        # Of itself torch would round the operands of convolutions to 10 bits there, and call it float32.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.call: Any = self.module  # what is called, where that is not the module itself
        set_training(self.module, self.training)
        self.companion: torch.nn.Module | None = model.make_companion() if self.training else None
        if self.companion is not None:
            self.companion.to(self.device).eval().requires_grad_(False)
        self.refresh, self.updates = model.refresh, 0
        if self.refresh and self.companion is not None:
            self._refresh()
        self.model = model
        self.names = [item.name for item in model.fields()]
        self.fed = [self.names.index(name) for name in model.feeds or self.names[:-1]]
        self.feed(batch)
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if self.training and not self.parameters:
            raise UsageError(f"{spec.model} has no trainable parameter: use --mode infer.")
        self.trained = [
            {name: p for name, p in self.parameters.items() if name.startswith(part.parameters)} for part in self.passes
        ]
        self.optimizers = [
            torch.optim.SGD(group.values(), lr=LEARNING_RATE, momentum=MOMENTUM)
            for group in self.trained
            if self.training
        ]

    def _module_of(self, model: Model) -> "torch.nn.Module":
        if model.lowered is not None:
            from ergometer.engines.torch.reference import module_of

            return module_of(model.lowered, [item.name for item in model.fields()])
        return open_file(model, self.training) if model.file else model.make()

    def capture(self) -> tuple[Graph, dict[str, Any]]:
        """What is loaded as a canonical graph, with its parameters, buffers and constants."""
        from ergometer.engines.torch.capture import capture

        if not self.training:
            return capture(self.module, self.inputs, [self.names[at] for at in self.fed])
        if len(self.passes) > 1:
            raise UnavailableError("this network trains several parts by turns, which only torch does.")
        if self.refresh or self.environment is not None:
            raise UnavailableError("this network learns from what it does itself, which only torch does.")
        (only,) = self.passes
        return capture(self.module, self.batch, self.names, loss=only.loss, companion=self.companion)

    def reference(
        self, graph: Graph, arrays: dict[str, Any], batch: dict[str, Any], masks: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """What rehearsals of the graph must give, in double precision."""
        from ergometer.engines.torch import reference

        if not graph.parameters:
            return [{RESULT: reference.infer(graph, arrays, batch)}]
        return reference.train(graph, arrays, batch, masks, rate=LEARNING_RATE, momentum=MOMENTUM)

    def rehearse(self, masks: dict[str, Any]) -> dict[str, Any]:
        if self.model.lowered is not None:
            self.module.masks = masks  # type: ignore[assignment]
        else:
            _without_dropout(self.module)
        if not self.training:
            return {RESULT: _array(self.forward())}
        loss = self.forward()
        self.backward(loss, 0)
        (optimizer,) = self.optimizers
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found = {RESULT: _array(loss)}
        for name, parameter in self.parameters.items():
            kept = optimizer.state[parameter].get("momentum_buffer")
            found |= {name: _array(parameter), VELOCITY + name: _array(parameter * 0 if kept is None else kept)}
        return found | {name: _array(buffer) for name, buffer in self.module.named_buffers()}

    def feed(self, batch: Sequence[Any]) -> None:
        import torch

        fields = [torch.from_numpy(array).to(self.device) for array in batch]
        if self.channels_last:
            fields = [f.contiguous(memory_format=torch.channels_last) if f.ndim == 4 else f for f in fields]
        self.batch = tuple(fields)
        self.inputs = tuple(self.batch[at] for at in self.fed)

    def forward(self, number: int = 0) -> "torch.Tensor":
        """The loss of a pass in training, the output in inference."""
        import torch

        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            if not self.training:
                with torch.inference_mode():
                    return self.call(*self.inputs)  # type: ignore[no-any-return]
            return self.passes[number].loss(self.call, self.companion, self.batch)  # type: ignore[no-any-return]

    def backward(self, loss: "torch.Tensor", number: int) -> None:
        if len(self.passes) == 1:
            loss.backward()  # type: ignore[no-untyped-call]
        else:  # only what this pass trains gets a gradient
            loss.backward(inputs=list(self.trained[number].values()))  # type: ignore[no-untyped-call]

    def update(self, number: int) -> None:
        optimizer = self.optimizers[number]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        if self.refresh and self.updates % self.refresh == 0:
            self._refresh()

    def _refresh(self) -> None:
        assert self.companion is not None
        self.companion.load_state_dict(self.module.state_dict())

    def _play(self) -> None:
        """Let the network act, and take the next batch from what happened."""
        import torch

        def policy(states: Any) -> Any:
            with torch.inference_mode():
                return self.module(torch.from_numpy(states).to(self.device)).cpu().numpy()

        assert self.environment is not None
        self.environment.play(policy)
        self.feed(self.environment.batch())

    def step(self) -> Step:
        clock = _DeviceClock(len(self.phases)) if self.device.type == "cuda" else _HostClock()
        clock.mark()
        if not self.training:
            self.forward()
            clock.mark()
            return clock.step()
        if self.environment is not None:
            self._play()
            clock.mark()
        for number in range(len(self.passes)):
            loss = self.forward(number)
            clock.mark()
            self.backward(loss, number)
            clock.mark()
            self.update(number)
            clock.mark()
        return clock.step()

    def sync(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize()

    def learn(self, steps: int, number: int = 0) -> Learning:
        parameters = self.trained[number]
        before = {name: _digest(p) for name, p in parameters.items()}
        largest = dict.fromkeys(parameters, 0.0)
        losses = []
        for _ in range(steps):
            loss = self.forward(number)
            self.backward(loss, number)
            losses.append(float(loss.detach()))
            for name, p in parameters.items():
                if p.grad is not None:
                    largest[name] = max(largest[name], _magnitude(p.grad))
            self.update(number)
        stuck = {}
        for name, p in parameters.items():
            if _digest(p) != before[name]:
                continue
            if largest[name] == 0.0:
                stuck[name] = "its gradient is zero or absent"
            elif largest[name] * LEARNING_RATE > _magnitude(p.detach()) * 1e-6:
                stuck[name] = "it has a gradient but is not updated"
            # otherwise the update is below the precision of the parameter, as before a batch-norm
        return Learning(losses=tuple(losses), stuck=stuck)

    def ops(self, steps: int) -> list[Span]:
        from ergometer.engines.torch.trace import trace_ops

        return trace_ops(self, steps)

    def memory(self) -> tuple[MemoryParts, list[Span]]:
        from ergometer.engines.torch.trace import trace_memory

        return trace_memory(self)

    def counts(self) -> Counts:
        from ergometer.engines.torch.count import count

        return count(self)

    def layers_of(self, model: Model) -> list[Layer]:
        from ergometer.engines.torch.layers import layers_of

        return layers_of(model)

    def out_of_memory(self, error: BaseException) -> bool:
        words = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")
        return isinstance(error, MemoryError) or any(word in str(error) for word in words)

    def close(self) -> None:
        self.sync()

    def state_bytes(self) -> dict[str, int]:
        """Bytes of parameters (the companion's too), gradients (when they exist), optimizer state and one batch."""
        networks = [network for network in (self.module, self.companion) if network is not None]
        return {
            "parameters": _bytes(p for network in networks for p in network.parameters()),
            # Those of one pass are cleared before the next.
            "gradients": max(_bytes(group.values()) for group in self.trained) if self.training else 0,
            "optimizer": _bytes(
                tensor
                for optimizer in self.optimizers
                for entry in optimizer.state.values()
                for tensor in entry.values()
                if hasattr(tensor, "element_size")
            ),
            "input": _bytes(self.batch),
        }


class _HostClock:
    """Boundaries of a step that runs as it is issued."""

    def __init__(self) -> None:
        self.marks: list[int] = []

    def mark(self) -> None:
        self.marks.append(now_ns())

    def step(self) -> Step:
        return Step(tuple(self.marks))


class _DeviceClock:
    """Phases end when the device has finished them: taken from device events, not from the host's clock."""

    def __init__(self, phases: int) -> None:
        import torch

        self.issued: list[int] = []
        self.events = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(phases + 1)
        ]

    def mark(self) -> None:
        if not self.issued:
            self.issued.append(now_ns())
            self.events[0].record()
            return
        self.events[len(self.issued)].record()
        self.issued.append(now_ns())

    def step(self) -> Step:
        import torch

        torch.cuda.synchronize()
        end, start = now_ns(), self.issued[0]
        inner = [start + int(self.events[0].elapsed_time(event) * 1e6) for event in self.events[1:-1]]
        return Step((start, *(min(mark, end) for mark in inner), end), tuple(self.issued))


def cross_entropy(module: Any, companion: Any, batch: tuple[Any, ...]) -> Any:
    """Of the scores (classes last) and the last field of the batch, a class for each position that it has."""
    import torch

    *inputs, labels = batch
    scores = module(*inputs)
    if not isinstance(scores, torch.Tensor):
        raise UsageError(f"the module returned {type(scores).__name__}: return one tensor, a score per class.")
    if labels.ndim > 1:
        scores, labels = scores.flatten(0, labels.ndim - 1), labels.flatten()
    return torch.nn.functional.cross_entropy(scores, labels)


def _without_dropout(module: Any) -> None:
    """Its masks cannot be chosen in torch: where they are to be known, nothing is dropped."""
    for part in module.modules():
        if hasattr(part, "p") and "dropout" in type(part).__name__.lower():
            part.p = 0.0


def _array(tensor: "torch.Tensor") -> Any:
    return tensor.detach().cpu().numpy().copy()


def _magnitude(tensor: "torch.Tensor") -> float:
    """The largest absolute value, without a copy: the peak of memory is being measured."""
    low, high = tensor.aminmax()
    return max(-float(low), float(high))


def _bytes(tensors: "Iterable[torch.Tensor]") -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _digest(parameter: "torch.Tensor") -> bytes:
    """A hash of the values: keeping a copy instead would raise the peak that is being measured."""
    import torch

    values = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(values.data, digest_size=16).digest()
