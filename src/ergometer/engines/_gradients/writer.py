"""Adds operations to a graph."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ergometer.core.graph import Graph, Node, Value

Shape = tuple[int, ...]


class Writer:
    """Numbers become constants."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.values = dict(graph.values)
        self.nodes: list[Node] = []
        self.arrays: dict[str, Any] = {}
        self.layer = ""

    def shape(self, name: str) -> Shape:
        return self.values[name].shape

    def add(self, op: str, inputs: Sequence[str], shape: Shape, name: str = "", /, **attributes: Any) -> str:
        name = name or f"step/{len(self.values)}"
        self.values[name] = Value(tuple(shape))
        self.nodes.append(Node(op, tuple(inputs), (name,), self.layer, attributes))
        return name

    def number(self, value: float) -> str:
        name = f"number/{value!r}"
        self.values[name] = Value(())
        self.arrays[name] = np.float32(value)
        return name

    def unary(self, op: str, x: str, name: str = "", **attributes: Any) -> str:
        return self.add(op, [x], self.shape(x), name, **attributes)

    def binary(self, op: str, a: "str | float", b: "str | float", name: str = "") -> str:
        a, b = (item if isinstance(item, str) else self.number(item) for item in (a, b))
        return self.add(op, [a, b], np.broadcast_shapes(self.shape(a), self.shape(b)), name)

    def reshape(self, x: str, shape: Shape) -> str:
        return x if self.shape(x) == shape else self.add("reshape", [x], shape, shape=shape)

    def transpose(self, x: str, axes: Sequence[int]) -> str:
        return self.add("transpose", [x], tuple(self.shape(x)[axis] for axis in axes), axes=tuple(axes))

    def swap(self, x: str) -> str:
        rank = len(self.shape(x))
        return self.transpose(x, [*range(rank - 2), rank - 1, rank - 2])

    def slice(self, x: str, axis: int, start: int, stop: int) -> str:
        shape = list(self.shape(x))
        if (start, stop) == (0, shape[axis]):
            return x
        shape[axis] = stop - start
        return self.add("slice", [x], tuple(shape), axis=axis, start=start, stop=stop)

    def reduce(self, op: str, x: str, axes: Sequence[int], keep: bool = True) -> str:
        shape = [1 if axis in axes else side for axis, side in enumerate(self.shape(x))]
        if not keep:
            shape = [side for axis, side in enumerate(shape) if axis not in axes]
        return self.add(op, [x], tuple(shape), axes=tuple(axes), keep=keep)

    def matmul(self, a: str, b: str) -> str:
        outer = np.broadcast_shapes(self.shape(a)[:-2], self.shape(b)[:-2])
        return self.add("matmul", [a, b], (*outer, self.shape(a)[-2], self.shape(b)[-1]))

    def total(self, x: str, shape: Shape) -> str:
        """x summed to the shape that was broadcast to its own."""
        before = len(self.shape(x)) - len(shape)
        grown = [before + axis for axis, side in enumerate(shape) if side != self.shape(x)[before + axis]]
        axes = [*range(before), *grown]
        return self.reshape(self.reduce("reduce_sum", x, axes), shape) if axes else x

    def concat(self, items: Sequence[str], axis: int) -> str:
        if len(items) == 1:
            return items[0]
        shape = list(self.shape(items[0]))
        shape[axis] = sum(self.shape(item)[axis] for item in items)
        return self.add("concat", items, tuple(shape), axis=axis)

    def zeros(self, shape: Shape) -> str:
        return self.add("expand", [self.number(0.0)], shape)

    def finish(self, **changes: Any) -> tuple[Graph, dict[str, Any]]:
        constants = tuple(dict.fromkeys((*self.graph.constants, *self.arrays)))
        found = replace(self.graph, values=self.values, nodes=tuple(self.nodes), constants=constants, **changes)
        return found, self.arrays
