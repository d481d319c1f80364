"""A traced step of an engine that runs its phases as one piece."""

from collections.abc import Sequence
from itertools import groupby

from ergometer.core.engine import Step
from ergometer.core.span import Span


def spans_of(number: int, step: Step, ops: Sequence[Span]) -> list[Span]:
    """The step, its ops (in order of start) and its phases.

    Parameters are updated while the backward pass goes on, so a phase is where it has its turn: from its first
    op to the first of another phase.
    """
    start, end = step.marks[0], step.marks[-1]
    turns = [(phase, next(run).start_ns) for phase, run in groupby(ops, lambda op: op.phase)]
    edges = [start, *(begin for _, begin in turns[1:]), end]
    phases = [
        Span(begin, until, "phase", phase, number, phase)
        for (phase, _), begin, until in zip(turns, edges, edges[1:], strict=False)
    ]
    return [Span(start, end, "step", "traced", number), *phases, *ops]
