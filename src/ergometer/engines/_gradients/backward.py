"""The backward pass and the update: a rule for each operation."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ergometer.core.engine import LEARNING_RATE, MOMENTUM
from ergometer.core.errors import UnavailableError
from ergometer.core.graph import VELOCITY, Graph, Node
from ergometer.engines._gradients.forward import Forward, as_conv
from ergometer.engines._gradients.writer import Shape

Thunk = Callable[[], "str | Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A gradient of a slice alone."""

    name: str
    axis: int
    start: int
    stop: int


class Step(Forward):
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
        attributes = as_conv(node)
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
