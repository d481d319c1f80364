"""One training or inference step in eager PyTorch, on the CPU or on CUDA."""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ergometer.core.clock import now_ns
from ergometer.core.engine import Counts, Learning, MemoryParts, Step
from ergometer.core.errors import UsageError
from ergometer.core.model import Model
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.core.spec import Spec

if TYPE_CHECKING:
    import torch

LEARNING_RATE = 0.01
MOMENTUM = 0.9


class Torch:
    name = "torch"
    title = "PyTorch, eager; SGD with momentum"
    extra = "torch"
    devices = ("cpu", "cuda")

    def __init__(self) -> None:
        self.phases: tuple[str, ...] = ()

    def probe(self, device: str) -> Probe:
        if find_spec("torch") is None:
            return Probe(False, "torch is not installed", "pip install 'ergometer[torch]'")
        if device not in self.devices:
            return Probe(False, f"torch here runs on {' or '.join(self.devices)}, not on {device!r}")
        if device == "cuda":
            import torch

            if not torch.cuda.is_available():
                return Probe(False, "torch sees no CUDA device", "install the NVIDIA driver and a CUDA build of torch")
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

    def load(self, spec: Spec, model: Model, batch: Sequence[Any]) -> None:
        import torch

        torch.manual_seed(spec.seed)
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        self.layers: list[tuple[str, str]] | None = None
        self.training = spec.mode == "train"
        self.phases = ("forward", "backward", "optimizer") if self.training else ("forward",)
        self.device = torch.device(spec.device)
        self.module: torch.nn.Module = model.build(spec.classes or model.classes)
        if not isinstance(self.module, torch.nn.Module):
            raise UsageError(f"{spec.model} returned {type(self.module).__name__}, not a torch.nn.Module.")
        self.module.to(self.device).train(self.training)
        self.inputs, self.labels = (torch.from_numpy(array).to(self.device) for array in batch)
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if self.training and not self.parameters:
            raise UsageError(f"{spec.model} has no trainable parameter: use --mode infer.")
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = (
            torch.optim.SGD(self.parameters.values(), lr=LEARNING_RATE, momentum=MOMENTUM) if self.training else None
        )

    def forward(self) -> "torch.Tensor":
        """The loss in training, the output in inference."""
        import torch

        if not self.training:
            with torch.inference_mode():
                return self.module(self.inputs)  # type: ignore[no-any-return]
        scores = self.module(self.inputs)
        if not isinstance(scores, torch.Tensor):
            raise UsageError(f"the module returned {type(scores).__name__}: return one tensor, a score per class.")
        return self.loss(scores, self.labels)  # type: ignore[no-any-return]

    def update(self) -> None:
        assert self.optimizer is not None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> Step:
        if self.device.type == "cuda":
            return self._cuda_step()
        start = now_ns()
        loss = self.forward()
        after_forward = now_ns()
        if not self.training:
            return Step((start, after_forward))
        loss.backward()  # type: ignore[no-untyped-call]
        after_backward = now_ns()
        self.update()
        return Step((start, after_forward, after_backward, now_ns()))

    def _cuda_step(self) -> Step:
        """Phases end when the device has finished them: taken from device events, not from the host's clock."""
        import torch

        events = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(len(self.phases) + 1)
        ]
        issued = [start := now_ns()]
        events[0].record()
        loss = self.forward()
        events[1].record()
        issued.append(now_ns())
        if self.training:
            loss.backward()  # type: ignore[no-untyped-call]
            events[2].record()
            issued.append(now_ns())
            self.update()
            events[3].record()
            issued.append(now_ns())
        torch.cuda.synchronize()
        end = now_ns()
        inner = [start + int(events[0].elapsed_time(event) * 1e6) for event in events[1:-1]]
        return Step((start, *(min(mark, end) for mark in inner), end), tuple(issued))

    def sync(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize()

    def learn(self, steps: int) -> Learning:
        before = {name: _digest(p) for name, p in self.parameters.items()}
        largest = dict.fromkeys(self.parameters, 0.0)
        losses = []
        for _ in range(steps):
            loss = self.forward()
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
            for name, p in self.parameters.items():
                if p.grad is not None:
                    largest[name] = max(largest[name], float(p.grad.abs().max()))
            self.update()
        stuck = {}
        for name, p in self.parameters.items():
            if _digest(p) != before[name]:
                continue
            if largest[name] == 0.0:
                stuck[name] = "its gradient is zero or absent"
            elif largest[name] * LEARNING_RATE > float(p.detach().abs().max()) * 1e-6:
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

    def out_of_memory(self, error: BaseException) -> bool:
        words = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")
        return isinstance(error, MemoryError) or any(word in str(error) for word in words)

    def close(self) -> None:
        self.sync()

    def state_bytes(self) -> dict[str, int]:
        """Bytes of parameters, gradients (when they exist), optimizer state and one input batch."""
        trainable = sum(p.numel() * p.element_size() for p in self.parameters.values())
        everything = sum(p.numel() * p.element_size() for p in self.module.parameters())
        state = self.optimizer.state.values() if self.optimizer else ()
        optimizer = sum(
            t.numel() * t.element_size() for entry in state for t in entry.values() if hasattr(t, "element_size")
        )
        batch = sum(t.numel() * t.element_size() for t in (self.inputs, self.labels))
        return {
            "parameters": everything,
            "gradients": trainable if self.training else 0,
            "optimizer": optimizer,
            "input": batch,
        }


def _digest(parameter: "torch.Tensor") -> bytes:
    """A hash of the values: keeping a copy instead would raise the peak that is being measured."""
    import torch

    values = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(values.data, digest_size=16).digest()
