"""A whole training step as one graph, for engines that cannot differentiate: forward, backward, update.

The graph that comes out has the operations of the canonical one, less batch_norm, layer_norm, conv_transpose, pick
and cross_entropy, which are taken apart, and convolutions have one group, or one per channel. To them it adds:

| op | inputs | attributes |
| --- | --- | --- |
| conv_input | dy, weight | those of conv: the gradient of its input |
| conv_weight | x, dy | those of conv: the gradient of its weight |
| max_pool_input | x, y, dy | those of max_pool; where several are the maximum, the first takes all |
| avg_pool_input | dy | those of avg_pool |
| where_positive | x, dy | dy where x > 0, elsewhere 0 |
| where_equal | a, b, dy | dy where a == b, elsewhere 0 |
| expand | x | to the shape of the output |
| one_hot | indices (n) | the output is (n, c) |
| scatter_rows | indices, dy | the rows of dy added to those of a table of zeros |
| normal_cdf | x | |
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ergometer.core.engine import LEARNING_RATE, MOMENTUM
from ergometer.core.errors import UnavailableError
from ergometer.core.graph import VELOCITY, Graph, Node, Value

Shape = tuple[int, ...]
Thunk = Callable[[], "str | Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A gradient of a slice alone."""

    name: str
    axis: int
    start: int
    stop: int


def training_graph(graph: Graph) -> tuple[Graph, dict[str, Any]]:
    """The step and its new constants. Every parameter, velocity and buffer is a buffer of it, with its update."""
    plain, numbers = _Plain(graph).write()
    step, more = _Step(plain).write()
    return step, numbers | more


def inference_graph(graph: Graph) -> tuple[Graph, dict[str, Any]]:
    """The forward pass alone, in the same operations."""
    plain, numbers = _Plain(graph).write()
    forward, more = _Forward(plain).write()
    return forward, numbers | more


class _Writer:
    """Adds operations to a graph; numbers become constants."""

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


class _Plain(_Writer):
    """Groups of a convolution side by side, and batch_norm with fixed statistics as arithmetic."""

    def write(self) -> tuple[Graph, dict[str, Any]]:
        for node in self.graph.nodes:
            self.layer = node.layer
            if (node.op == "conv" and node.attributes["groups"] not in (1, self.shape(node.outputs[0])[1])) or (
                node.op == "conv" and node.attributes["groups"] not in (1, self.shape(node.inputs[0])[1])
            ):
                self._grouped(node, *node.inputs)
            elif node.op == "batch_norm" and not node.attributes["training"]:
                self._fixed(node, *node.inputs)
            else:
                self.nodes.append(node)
        return self.finish()

    def _simple(self, node: Node) -> bool:
        groups, inner, outer = node.attributes["groups"], self.shape(node.inputs[0])[1], self.shape(node.outputs[0])[1]
        return bool(groups == 1 or groups == inner == outer)

    def _grouped(self, node: Node, x: str, weight: str, bias: str | None = None) -> None:
        groups, shape = node.attributes["groups"], self.shape(node.outputs[0])
        inner, outer = self.shape(x)[1] // groups, shape[1] // groups
        pieces = []
        for group in range(groups):
            start, stop = group * outer, (group + 1) * outer
            inputs = [self.slice(x, 1, group * inner, (group + 1) * inner), self.slice(weight, 0, start, stop)]
            inputs += [self.slice(bias, 0, start, stop)] if bias else []
            attributes = node.attributes | {"groups": 1}
            pieces.append(self.add("conv", inputs, (shape[0], outer, *shape[2:]), **attributes))
        self.add("concat", pieces, shape, node.outputs[0], axis=1)

    def _fixed(self, node: Node, x: str, scale: str, bias: str, mean: str, variance: str) -> None:
        across = (1, self.shape(x)[1], *[1] * (len(self.shape(x)) - 2))
        spread = self.binary("add", variance, node.attributes["epsilon"])
        factor = self.binary("mul", scale, self.unary("power", spread, exponent=-0.5))
        centre = self.binary("sub", x, self.reshape(mean, across))
        scaled = self.binary("mul", centre, self.reshape(factor, across))
        self.binary("add", scaled, self.reshape(bias, across), node.outputs[0])


class _Forward(_Writer):
    """What has no operation of its own, in simpler ones. `kept`: what the backward pass wants again, by output."""

    def __init__(self, graph: Graph):
        super().__init__(graph)
        self.kept: dict[str, tuple[str, ...]] = {}

    def write(self) -> tuple[Graph, dict[str, Any]]:
        for node in self.graph.nodes:
            self.forward(node)
        return self.finish()

    def forward(self, node: Node) -> None:
        self.layer = node.layer
        rule = getattr(self, f"_forward_{node.op}", None)
        if rule is None:
            self.nodes.append(node)
        else:
            rule(node, *node.inputs)

    def _forward_conv_transpose(self, node: Node, x: str, weight: str, bias: str | None = None) -> None:
        attributes = _as_conv(node)
        shape, name = self.shape(node.outputs[0]), node.outputs[0]
        if bias is None:
            self.add("conv_input", [x, weight], shape, name, **attributes)
        else:
            y = self.add("conv_input", [x, weight], shape, **attributes)
            self.binary("add", y, self.reshape(bias, (1, shape[1], 1, 1)), name)

    def _forward_batch_norm(self, node: Node, x: str, scale: str, bias: str, mean: str, variance: str) -> None:
        a, rank = node.attributes, len(self.shape(x))
        across = (1, self.shape(x)[1], *[1] * (rank - 2))
        axes = [axis for axis in range(rank) if axis != 1]
        count = math.prod(self.shape(x)[axis] for axis in axes)
        if count < 2:
            raise UnavailableError(f"batch_norm of layer {node.layer!r} has one value per channel: no training.")
        average = self.reduce("reduce_mean", x, axes)
        centre = self.binary("sub", x, average)
        spread = self.reduce("reduce_mean", self.unary("power", centre, exponent=2.0), axes)
        inverse = self._inverse_root(spread, a["epsilon"])
        factor = self.binary("mul", inverse, self.reshape(scale, across))
        self.binary("add", self.binary("mul", centre, factor), self.reshape(bias, across), node.outputs[0])
        self.kept[node.outputs[0]] = (centre, factor, inverse)
        share = a["momentum"]
        for old, new, name, weight in (
            (mean, average, node.outputs[1], share),
            (variance, spread, node.outputs[2], share * count / (count - 1)),
        ):
            fresh = self.binary("mul", self.reshape(new, self.shape(old)), weight)
            self.binary("add", self.binary("mul", old, 1 - share), fresh, name)

    def _inverse_root(self, variance: str, epsilon: float) -> str:
        return self.unary("power", self.binary("add", variance, epsilon), exponent=-0.5)

    def _forward_layer_norm(self, node: Node, x: str, scale: str, bias: str) -> None:
        axes = [len(self.shape(x)) - 1]
        centre = self.binary("sub", x, self.reduce("reduce_mean", x, axes))
        spread = self.reduce("reduce_mean", self.unary("power", centre, exponent=2.0), axes)
        inverse = self._inverse_root(spread, node.attributes["epsilon"])
        normal = self.binary("mul", centre, inverse)
        self.binary("add", self.binary("mul", normal, scale), bias, node.outputs[0])
        self.kept[node.outputs[0]] = (normal, inverse)

    def _forward_pick(self, node: Node, x: str, indices: str) -> None:
        chosen = self.add("one_hot", [indices], self.shape(x))
        picked = self.binary("mul", x, chosen)
        self.add("reduce_sum", [picked], self.shape(indices), node.outputs[0], axes=(1,), keep=False)
        self.kept[node.outputs[0]] = (chosen,)

    def _forward_cross_entropy(self, node: Node, scores: str, labels: str) -> None:
        chosen = self.add("one_hot", [labels], self.shape(scores))
        likely = self.binary("mul", self.unary("log_softmax", scores), chosen)
        whole = self.reduce("reduce_sum", likely, (0, 1), keep=False)
        self.binary("mul", whole, -1 / self.shape(scores)[0], node.outputs[0])
        self.kept[node.outputs[0]] = (chosen,)


class _Step(_Forward):
    """Each backward rule gives, for each input of its node, a function that writes the gradient, or None."""

    def write(self) -> tuple[Graph, dict[str, Any]]:
        for node in self.graph.nodes:
            self.forward(node)
        reached = set(self.graph.parameters)
        first: dict[str, int] = {}
        for number, node in enumerate(self.graph.nodes):
            for name in node.inputs:
                first.setdefault(name, number)
            if reached.intersection(node.inputs):
                reached.update(node.outputs[:1])
        found: dict[str, list[str | Part]] = {self.graph.outputs[0]: [self.number(1.0)]}
        updates = dict(self.graph.updates)
        for number, node in reversed(list(enumerate(self.graph.nodes))):
            if node.outputs[0] in found and node.outputs[0] in reached:
                self.layer = node.layer
                dy = self._sum(found.pop(node.outputs[0]), self.shape(node.outputs[0]))
                thunks = getattr(self, f"_{node.op}")(node, dy, *node.inputs)
                for name, thunk in zip(node.inputs, thunks, strict=False):
                    if name in reached and thunk is not None:
                        found.setdefault(name, []).append(thunk())
            for name in dict.fromkeys(node.inputs):
                if first[name] == number and name in self.graph.parameters and name in found:
                    updates |= self._update(name, self._sum(found.pop(name), self.shape(name)))
        velocities = tuple(f"{VELOCITY}{name}" for name in self.graph.parameters)
        self.values |= {f"{VELOCITY}{name}": self.values[name] for name in self.graph.parameters}
        buffers = (*self.graph.parameters, *velocities, *self.graph.buffers)
        return self.finish(parameters=(), buffers=buffers, updates=updates)

    def _update(self, name: str, gradient: str) -> dict[str, str]:
        self.layer = ""
        velocity = f"{VELOCITY}{name}"
        self.values[velocity] = self.values[name]
        moved = self.binary("add", self.binary("mul", velocity, MOMENTUM), gradient)
        return {velocity: moved, name: self.binary("sub", name, self.binary("mul", moved, LEARNING_RATE))}

    def _sum(self, found: list[str | Part], shape: Shape) -> str:
        parts = [item for item in found if isinstance(item, Part)]
        whole = [item for item in found if isinstance(item, str)]
        for axis in dict.fromkeys(part.axis for part in parts):
            whole += self._joined([part for part in parts if part.axis == axis], shape)
        result = whole[0]
        for item in whole[1:]:
            result = self.binary("add", result, item)
        return result

    def _joined(self, parts: list[Part], shape: Shape) -> list[str]:
        """Gradients of slices along one axis: side by side where they do not overlap."""
        joined = []
        while parts:
            end, pieces, rest = 0, [], []
            for part in sorted(parts, key=lambda part: part.start):
                if part.start < end:
                    rest.append(part)
                    continue
                pieces += [*self._gap(shape, part.axis, end, part.start), part.name]
                end = part.stop
            axis = parts[0].axis
            joined.append(self.concat([*pieces, *self._gap(shape, axis, end, shape[axis])], axis))
            parts = rest
        return joined

    def _gap(self, shape: Shape, axis: int, start: int, stop: int) -> list[str]:
        return [self.zeros((*shape[:axis], stop - start, *shape[axis + 1 :]))] if stop > start else []

    # Backward, by operation

    def _conv(self, node: Node, dy: str, x: str, weight: str, bias: str | None = None) -> tuple[Thunk, ...]:
        return (
            lambda: self.add("conv_input", [dy, weight], self.shape(x), **node.attributes),
            lambda: self.add("conv_weight", [x, dy], self.shape(weight), **node.attributes),
            lambda: self.reduce("reduce_sum", dy, (0, 2, 3), keep=False),
        )

    def _conv_transpose(self, node: Node, dy: str, x: str, weight: str, bias: str | None = None) -> tuple[Thunk, ...]:
        attributes = _as_conv(node)
        return (
            lambda: self.add("conv", [dy, weight], self.shape(x), **attributes),
            lambda: self.add("conv_weight", [dy, x], self.shape(weight), **attributes),
            lambda: self.reduce("reduce_sum", dy, (0, 2, 3), keep=False),
        )

    def _linear(self, node: Node, dy: str, x: str, weight: str, bias: str | None = None) -> tuple[Thunk, ...]:
        def flat(name: str) -> str:
            return self.reshape(name, (math.prod(self.shape(name)[:-1]), self.shape(name)[-1]))

        return (
            lambda: self.reshape(self.matmul(flat(dy), weight), self.shape(x)),
            lambda: self.matmul(self.swap(flat(dy)), flat(x)),
            lambda: self.reduce("reduce_sum", flat(dy), (0,), keep=False),
        )

    def _matmul(self, node: Node, dy: str, a: str, b: str) -> tuple[Thunk, ...]:
        if len(self.shape(a)) < 2 or len(self.shape(b)) < 2:
            raise UnavailableError(f"matmul with a vector in layer {node.layer!r} has no gradient here.")
        return (
            lambda: self.total(self.matmul(dy, self.swap(b)), self.shape(a)),
            lambda: self.total(self.matmul(self.swap(a), dy), self.shape(b)),
        )

    def _batch_norm(self, node: Node, dy: str, x: str, scale: str, *_: str) -> tuple[Thunk, ...]:
        centre, factor, inverse = self.kept[node.outputs[0]]
        shape = self.shape(scale)
        across = (1, *shape, *[1] * (len(self.shape(x)) - 2))
        axes = [axis for axis in range(len(across)) if axis != 1]
        mean = self.reduce("reduce_mean", dy, axes)
        joint = self.binary("mul", self.reduce("reduce_mean", self.binary("mul", dy, centre), axes), inverse)
        count = float(math.prod(self.shape(x)) // shape[0])

        def to_input() -> str:
            along = self.binary("mul", centre, self.binary("mul", joint, inverse))
            return self.binary("mul", self.binary("sub", self.binary("sub", dy, mean), along), factor)

        return (
            to_input,
            lambda: self.reshape(self.binary("mul", joint, count), shape),
            lambda: self.reshape(self.binary("mul", mean, count), shape),
        )

    def _layer_norm(self, node: Node, dy: str, x: str, scale: str, bias: str) -> tuple[Thunk, ...]:
        normal, inverse = self.kept[node.outputs[0]]
        axes = [len(self.shape(x)) - 1]

        def to_input() -> str:
            scaled = self.binary("mul", dy, scale)
            mean = self.reduce("reduce_mean", scaled, axes)
            joint = self.reduce("reduce_mean", self.binary("mul", scaled, normal), axes)
            along = self.binary("mul", normal, joint)
            return self.binary("mul", self.binary("sub", self.binary("sub", scaled, mean), along), inverse)

        return (
            to_input,
            lambda: self.total(self.binary("mul", dy, normal), self.shape(scale)),
            lambda: self.total(dy, self.shape(bias)),
        )

    def _max_pool(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.add("max_pool_input", [x, node.outputs[0], dy], self.shape(x), **node.attributes),)

    def _avg_pool(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.add("avg_pool_input", [dy], self.shape(x), **node.attributes),)

    def _relu(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.add("where_positive", [node.outputs[0], dy], self.shape(x)),)

    def _clip(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.add("where_equal", [x, node.outputs[0], dy], self.shape(x)),)

    def _leaky_relu(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        def to_input() -> str:
            slope = node.attributes["slope"]
            more = self.add("where_positive", [x, self.binary("mul", dy, 1 - slope)], self.shape(x))
            return self.binary("add", more, self.binary("mul", dy, slope))

        return (to_input,)

    def _sigmoid(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        y = node.outputs[0]
        return (lambda: self.binary("mul", dy, self.binary("mul", y, self.binary("sub", 1.0, y))),)

    def _tanh(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        y = node.outputs[0]
        return (lambda: self.binary("mul", dy, self.binary("sub", 1.0, self.binary("mul", y, y))),)

    def _exp(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.binary("mul", dy, node.outputs[0]),)

    def _log(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.binary("div", dy, x),)

    def _sqrt(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.binary("div", self.binary("mul", dy, 0.5), node.outputs[0]),)

    def _neg(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.unary("neg", dy),)

    def _bell(self, x: str, steep: float, height: float) -> str:
        """height * exp(-steep * x * x)"""
        return self.binary("mul", self.unary("exp", self.binary("mul", self.binary("mul", x, x), -steep)), height)

    def _erf(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.binary("mul", dy, self._bell(x, 1.0, 2 / math.sqrt(math.pi))),)

    def _gelu(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        def to_input() -> str:
            density = self._bell(x, 0.5, 1 / math.sqrt(2 * math.pi))
            slope = self.binary("add", self.unary("normal_cdf", x), self.binary("mul", x, density))
            return self.binary("mul", dy, slope)

        return (to_input,)

    def _power(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        exponent = node.attributes["exponent"]

        def to_input() -> str:
            slope = x if exponent == 2 else self.unary("power", x, exponent=exponent - 1)
            return self.binary("mul", dy, self.binary("mul", slope, exponent))

        return (to_input,)

    def _add(self, node: Node, dy: str, a: str, b: str) -> tuple[Thunk, ...]:
        return (lambda: self.total(dy, self.shape(a)), lambda: self.total(dy, self.shape(b)))

    def _sub(self, node: Node, dy: str, a: str, b: str) -> tuple[Thunk, ...]:
        return (lambda: self.total(dy, self.shape(a)), lambda: self.unary("neg", self.total(dy, self.shape(b))))

    def _mul(self, node: Node, dy: str, a: str, b: str) -> tuple[Thunk, ...]:
        return (
            lambda: self.total(self.binary("mul", dy, b), self.shape(a)),
            lambda: self.total(self.binary("mul", dy, a), self.shape(b)),
        )

    def _div(self, node: Node, dy: str, a: str, b: str) -> tuple[Thunk, ...]:
        def to_divisor() -> str:
            share = self.binary("div", self.binary("mul", dy, node.outputs[0]), b)
            return self.unary("neg", self.total(share, self.shape(b)))

        return (lambda: self.total(self.binary("div", dy, b), self.shape(a)), to_divisor)

    def _reshape(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: self.reshape(dy, self.shape(x)),)

    def _transpose(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        axes = node.attributes["axes"]
        return (lambda: self.transpose(dy, [axes.index(axis) for axis in range(len(axes))]),)

    def _concat(self, node: Node, dy: str, *items: str) -> tuple[Thunk, ...]:
        axis, start = node.attributes["axis"], 0
        thunks: list[Thunk] = []
        for item in items:
            stop = start + self.shape(item)[axis]
            thunks.append(lambda start=start, stop=stop: self.slice(dy, axis, start, stop))  # type: ignore[misc]
            start = stop
        return tuple(thunks)

    def _slice(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        return (lambda: Part(dy, node.attributes["axis"], node.attributes["start"], node.attributes["stop"]),)

    def _pad(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        def to_input() -> str:
            inner = dy
            for axis, (start, side) in enumerate(zip(node.attributes["before"], self.shape(x), strict=True)):
                inner = self.slice(inner, axis, start, start + side)
            return inner

        return (to_input,)

    def _softmax(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        def to_input() -> str:
            y = node.outputs[0]
            joint = self.reduce("reduce_sum", self.binary("mul", dy, y), [len(self.shape(x)) - 1])
            return self.binary("mul", y, self.binary("sub", dy, joint))

        return (to_input,)

    def _log_softmax(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        def to_input() -> str:
            whole = self.reduce("reduce_sum", dy, [len(self.shape(x)) - 1])
            return self.binary("sub", dy, self.binary("mul", self.unary("exp", node.outputs[0]), whole))

        return (to_input,)

    def _reduce_sum(self, node: Node, dy: str, x: str, share: float = 1.0) -> tuple[Thunk]:
        axes, shape = node.attributes["axes"], self.shape(x)

        def to_input() -> str:
            kept = tuple(1 if axis in axes else side for axis, side in enumerate(shape))
            scaled = dy if share == 1 else self.binary("mul", dy, share)
            return self.add("expand", [self.reshape(scaled, kept)], shape)

        return (to_input,)

    def _reduce_mean(self, node: Node, dy: str, x: str) -> tuple[Thunk]:
        count = math.prod(self.shape(x)[axis] for axis in node.attributes["axes"])
        return self._reduce_sum(node, dy, x, 1 / count)

    def _gather_rows(self, node: Node, dy: str, table: str, indices: str) -> tuple[Thunk]:
        return (lambda: self.add("scatter_rows", [indices, dy], self.shape(table)),)

    def _pick(self, node: Node, dy: str, x: str, indices: str) -> tuple[Thunk]:
        (chosen,) = self.kept[node.outputs[0]]
        return (lambda: self.binary("mul", chosen, self.reshape(dy, (*self.shape(dy), 1))),)

    def _cross_entropy(self, node: Node, dy: str, scores: str, labels: str) -> tuple[Thunk]:
        (chosen,) = self.kept[node.outputs[0]]

        def to_scores() -> str:
            apart = self.binary("sub", self.unary("softmax", scores), chosen)
            return self.binary("mul", apart, self.binary("mul", dy, 1 / self.shape(scores)[0]))

        return (to_scores,)


def _as_conv(node: Node) -> dict[str, Any]:
    """The convolution that a transposed one is the input gradient of."""
    height, width = node.attributes["padding"]
    padding = (height, width, height, width)
    return {"stride": node.attributes["stride"], "padding": padding, "dilation": (1, 1), "groups": 1}
