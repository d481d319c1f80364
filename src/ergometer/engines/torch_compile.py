"""PyTorch with torch.compile: the same modules, compiled to C++ (or to CUDA kernels) before the first step."""

import shutil
from collections.abc import Sequence
from typing import Any

from ergometer.core.dataset import Environment
from ergometer.core.engine import Counts, MemoryParts
from ergometer.core.errors import UsageError
from ergometer.core.model import Model
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.engines.torch.engine import Torch


class TorchCompile(Torch):
    name = "torch_compile"
    title = "PyTorch, torch.compile; SGD with momentum"
    slow_start = True
    untraced = "a compiled step has no single operations to time"

    def probe(self, device: str) -> Probe:
        found = super().probe(device)
        if found.ok and device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            return Probe(False, "torch.compile needs a C++ compiler", "install g++")
        return found

    def load(self, spec: Spec, model: Model, batch: Sequence[Any], environment: Environment | None = None) -> None:
        import torch

        super().load(spec, model, batch, environment)
        torch.compiler.reset()
        # Without this, torch 2.13 on the CPU runs the scatter of a max-pool's gradient after what reads it: every
        # convolution before it gets a gradient of zero.
        options: dict[str, Any] = {"max_fusion_size": 1} if self.device.type == "cpu" and self.training else {}
        self.call = torch.compile(self.module, options=options)

    def versions(self) -> dict[str, str]:
        found = super().versions()
        return found | {self.name: found["torch"]}

    def ops(self, steps: int) -> list[Span]:
        raise UsageError(self.untraced)

    def memory(self) -> tuple[MemoryParts, list[Span]]:
        state: dict[str, Any] = self.state_bytes() | {"gradients": None if self.training else 0}
        peak = None
        if self.device.type == "cuda":
            import torch

            peak = torch.cuda.max_memory_allocated()
        return MemoryParts(**state, activations=None, device_peak=peak), []

    def counts(self) -> Counts:
        compiled, self.call = self.call, self.module
        try:
            return super().counts()
        finally:
            self.call = compiled


ENGINE = TorchCompile
