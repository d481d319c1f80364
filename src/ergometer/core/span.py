"""An interval on the monotonic clock and what it was spent on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """kind: stage, step, phase, op, memory (an op of the step that traced memory) or window.

    step is -1 outside of steps. memory_bytes (allocated by the op) is 0 except in spans of kind memory.
    """

    start_ns: int
    end_ns: int
    kind: str
    name: str
    step: int = -1
    phase: str = ""
    layer: str = ""
    memory_bytes: int = 0
