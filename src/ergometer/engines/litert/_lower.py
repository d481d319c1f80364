"""A training step, or a forward pass, in TFLite's built-in operations.

TFLite wants images as NHWC. Every tensor here has an order: which axis of the graph each of its own axes is. An
operation takes its inputs in the order that suits it; only where orders meet is something transposed.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ergometer.core.errors import UnavailableError
from ergometer.core.graph import VELOCITY, Graph, Node
from ergometer.engines.litert._image import Image

Order = tuple[int, ...]
NHWC: Order = (0, 2, 3, 1)
DEPTHWISE: Order = (1, 2, 3, 0)
_UNARY = {
    **{"relu": "RELU", "sigmoid": "LOGISTIC", "tanh": "TANH", "exp": "EXP", "log": "LOG"},
    **{"sqrt": "SQRT", "neg": "NEG", "gelu": "GELU"},
}
_POWERS = {2.0: "SQUARE", 0.5: "SQRT", -0.5: "RSQRT"}


class Lowering(Image):
    """found: the number of every tensor in every order that was asked for. orders: the one it was made in."""

    def __init__(self, graph: Graph, arrays: dict[str, Any]):
        super().__init__()
        self.graph, self.arrays = graph, {name: arrays[name] for name in graph.constants}
        self.found: dict[tuple[str, Order], int] = {}
        self.orders: dict[str, Order] = {}
        self.weights = {node.inputs[1]: self._weight_order(node) for node in graph.nodes if node.op == "conv"}

    def run(self) -> None:
        for name in (*self.graph.inputs, *self.graph.masks, *self.graph.buffers):
            order = self._order_at_first(name)
            self._put(name, self.tensor(_moved(self._shape(name), order), self.graph.values[name].dtype), order)
        for node in self.graph.nodes:
            rule = getattr(self, f"_{node.op}", None)
            if rule is not None:
                rule(node, *node.inputs)
            elif node.op in _UNARY:
                self._unary(node, _UNARY[node.op])
            else:
                raise UnavailableError(f"LiteRT has no {node.op} (layer {node.layer!r}).")

    def _order_at_first(self, name: str) -> Order:
        """Images NHWC; weights and their velocities as their convolution wants them."""
        if name in self.graph.buffers:
            return self.weights.get(name.removeprefix(VELOCITY), self._plain(name))
        return NHWC if len(self._shape(name)) == 4 else self._plain(name)

    def first(self, name: str) -> tuple[int, Order]:
        """A tensor as it was made."""
        if name in self.arrays:
            return self._take(name, self._plain(name)), self._plain(name)
        order = self.orders[name]
        return self.found[name, order], order

    def take_as(self, name: str, other: str) -> int:
        """A tensor in the order of another."""
        return self._take(name, self.orders[other])

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.values[name].shape

    def _plain(self, name: str) -> Order:
        return tuple(range(len(self._shape(name))))

    def _put(self, name: str, tensor: int, order: Order) -> None:
        expected = _moved(self._shape(name), order)
        assert self.shapes[tensor] == expected, (name, self.shapes[tensor], expected)
        self.orders[name] = order
        self.found[name, order] = tensor

    def _take(self, name: str, order: Order | None = None) -> int:
        order = self._plain(name) if order is None else order
        if (name, order) in self.found:
            return self.found[name, order]
        if name in self.arrays:
            tensor = self.constant(np.transpose(self.arrays[name], order))
        else:
            source = self.orders[name]
            tensor = self.transpose(self.found[name, source], [source.index(axis) for axis in order])
        self.found[name, order] = tensor
        return tensor

    def _order(self, name: str) -> Order:
        return self.orders.get(name, self._plain(name))

    def _weight_order(self, node: Node) -> Order:
        return DEPTHWISE if self._depthwise(node) else NHWC

    def _depthwise(self, node: Node) -> bool:
        return bool(node.attributes["groups"] > 1)

    # Elementwise

    def _unary(self, node: Node, op: str) -> None:
        order = self._order(node.inputs[0])
        x = self._take(node.inputs[0], order)
        self._put(node.outputs[0], self.add(op, [x], self.shapes[x]), order)

    def _together(self, names: Sequence[str], output: str) -> tuple[list[int], Order]:
        """Operands in one order, that of the largest; each with as many axes as the output, or one value."""
        rank = len(self._shape(output))
        full = [name for name in names if len(self._shape(name)) == rank]
        moving = [name for name in full if name not in self.arrays] or full
        order = self._order(max(moving, key=lambda name: math.prod(self._shape(name)))) if moving else None
        order = order or tuple(range(rank))
        return [self._broadcast(name, order, self.graph.values[output].dtype) for name in names], order

    def _broadcast(self, name: str, order: Order, dtype: str) -> int:
        shape = self._shape(name)
        if name in self.arrays:
            array = self.arrays[name].astype(dtype)
            grown = array if array.size == 1 else array.reshape((1,) * (len(order) - len(shape)) + shape)
            return self.constant(grown.reshape(()) if grown.size == 1 else np.transpose(grown, order))
        if len(shape) == len(order):
            tensor = self._take(name, order)
        else:
            grown = (1,) * (len(order) - len(shape)) + shape
            tensor = self.transpose(self.reshape(self._take(name), grown), order)
        return tensor if self.dtypes[tensor] == dtype else self.add("CAST", [tensor], self.shapes[tensor], dtype=dtype)

    def _binary(self, node: Node, *_: str) -> None:
        (a, b), order = self._together(node.inputs, node.outputs[0])
        shape = _moved(self._shape(node.outputs[0]), order)
        dtype = self.graph.values[node.outputs[0]].dtype
        op = node.op
        self._put(node.outputs[0], self.add(op.upper(), [a, b], shape, f"{op.title()}Options", dtype), order)

    _add = _sub = _mul = _div = _binary

    def _power(self, node: Node, x: str) -> None:
        exponent = node.attributes["exponent"]
        if exponent in _POWERS:
            return self._unary(node, _POWERS[exponent])
        order = self._order(x)
        tensor = self._take(x, order)
        result = self.add("POW", [tensor, self.scalar(exponent)], self.shapes[tensor])
        return self._put(node.outputs[0], result, order)

    def _clip(self, node: Node, x: str) -> None:
        low, high = node.attributes["low"], node.attributes["high"]
        order = self._order(x)
        tensor = self._take(x, order)
        if (low, high) == (0.0, 6.0):
            result = self.add("RELU6", [tensor], self.shapes[tensor])
        else:
            raised = self.add("MAXIMUM", [tensor, self.scalar(low)], self.shapes[tensor])
            result = self.add("MINIMUM", [raised, self.scalar(high)], self.shapes[tensor])
        self._put(node.outputs[0], result, order)

    def _leaky_relu(self, node: Node, x: str) -> None:
        order = self._order(x)
        tensor = self._take(x, order)
        slope = node.attributes["slope"]
        result = self.add("LEAKY_RELU", [tensor], self.shapes[tensor], "LeakyReluOptions", alpha=slope)
        self._put(node.outputs[0], result, order)

    def _where_positive(self, node: Node, x: str, dy: str) -> None:
        order = self._order(x)
        tensor, gradient = self._take(x, order), self._take(dy, order)
        self._put(node.outputs[0], self.where("GREATER", tensor, self.scalar(0.0), gradient), order)

    def _where_equal(self, node: Node, a: str, b: str, dy: str) -> None:
        order = self._order(b)
        result = self.where("EQUAL", self._take(a, order), self._take(b, order), self._take(dy, order))
        self._put(node.outputs[0], result, order)

    def _normal_cdf(self, node: Node, x: str) -> None:
        order = self._order(x)
        self._put(node.outputs[0], self.normal_cdf(self._take(x, order)), order)

    def _erf(self, node: Node, x: str) -> None:
        order = self._order(x)
        chance = self.normal_cdf(self.scaled(self._take(x, order), math.sqrt(2)))
        self._put(node.outputs[0], self.shifted(self.scaled(chance, 2.0), -1.0), order)

    # Shapes

    def _reshape(self, node: Node, x: str) -> None:
        name, source, shape = node.outputs[0], self._order(x), self._shape(node.outputs[0])
        kept = [axis for axis, side in enumerate(self._shape(x)) if side > 1]
        fresh = [axis for axis, side in enumerate(shape) if side > 1]
        if [self._shape(x)[axis] for axis in kept] != [shape[axis] for axis in fresh]:
            return self._put(name, self.reshape(self._take(x), shape), self._plain(name))
        # Only axes of one come or go: the others stay in the order in which they are.
        wanted = [fresh[kept.index(axis)] for axis in source if axis in kept]
        ones = [axis for axis in range(len(shape)) if axis not in fresh]
        for order in ((NHWC,) if len(shape) == 4 else ()) + (self._plain(name), (*ones, *wanted)):
            if [axis for axis in order if axis in fresh] == wanted:
                break
        return self._put(name, self.reshape(self._take(x, source), _moved(shape, order)), order)

    def _transpose(self, node: Node, x: str) -> None:
        axes, order = node.attributes["axes"], self._order(x)
        self._put(node.outputs[0], self._take(x, order), tuple(axes.index(axis) for axis in order))

    def _concat(self, node: Node, *items: str) -> None:
        order = self._order(max(items, key=lambda name: (name not in self.arrays, math.prod(self._shape(name)))))
        axis = order.index(node.attributes["axis"])
        self._put(node.outputs[0], self.concat([self._take(item, order) for item in items], axis), order)

    def _slice(self, node: Node, x: str) -> None:
        order, a = self._order(x), node.attributes
        axis, tensor = order.index(a["axis"]), self._take(x, self._order(x))
        begin, size = [0] * len(order), list(self.shapes[tensor])
        begin[axis], size[axis] = a["start"], a["stop"] - a["start"]
        self._put(node.outputs[0], self.slice(tensor, begin, size), order)

    def _pad(self, node: Node, x: str) -> None:
        order, a = self._order(x), node.attributes
        result = self.pad(self._take(x, order), _moved(a["before"], order), _moved(a["after"], order))
        self._put(node.outputs[0], result, order)

    def _expand(self, node: Node, x: str) -> None:
        name = node.outputs[0]
        order = self._order(x) if len(self._shape(x)) == len(self._shape(name)) else self._plain(name)
        tensor = self._take(x, order) if len(self._shape(x)) == len(order) else self._take(x)
        self._put(name, self.expand(tensor, _moved(self._shape(name), order)), order)

    # Reductions

    def _reduce(self, node: Node, op: str) -> None:
        order, axes, keep = self._order(node.inputs[0]), node.attributes["axes"], node.attributes["keep"]
        tensor = self._take(node.inputs[0], order)
        result = self.reduce(op, tensor, [order.index(axis) for axis in axes], keep)
        if not keep:
            left = [axis for axis in order if axis not in axes]
            order = tuple(sorted(left).index(axis) for axis in left)
        self._put(node.outputs[0], result, order)

    def _reduce_mean(self, node: Node, x: str) -> None:
        self._reduce(node, "MEAN")

    def _reduce_sum(self, node: Node, x: str) -> None:
        self._reduce(node, "SUM")

    def _softmax(self, node: Node, x: str) -> None:
        tensor = self._take(x)
        result = self.add("SOFTMAX", [tensor], self.shapes[tensor], "SoftmaxOptions", beta=1.0)
        self._put(node.outputs[0], result, self._plain(x))

    def _log_softmax(self, node: Node, x: str) -> None:
        tensor = self._take(x)
        self._put(node.outputs[0], self.add("LOG_SOFTMAX", [tensor], self.shapes[tensor]), self._plain(x))

    # Products

    def _matmul(self, node: Node, a: str, b: str) -> None:
        name = node.outputs[0]
        left, right = self._factor(a), self._factor(b)
        self._put(name, self.matmul(*left, *right, shape=self._shape(name)), self._plain(name))

    def _factor(self, name: str) -> tuple[int, bool]:
        """A matrix, or its transpose if that is how it lies."""
        plain = self._plain(name)
        swapped = (*plain[:-2], plain[-1], plain[-2])
        if self._order(name) == swapped:
            return self._take(name, swapped), True
        return self._take(name), False

    def _linear(self, node: Node, x: str, weight: str, bias: str | None = None) -> None:
        name, shape = node.outputs[0], self._shape(node.outputs[0])
        flat = self.reshape(self._take(x), (math.prod(shape[:-1]), self._shape(x)[-1]))
        result = self.dense(flat, self._take(weight), self._take(bias) if bias else None, fixed=weight in self.arrays)
        self._put(name, self.reshape(result, shape), self._plain(name))

    def _conv(self, node: Node, x: str, weight: str, bias: str | None = None) -> None:
        image, kernel = self._take(x, NHWC), self._take(weight, self._weight_order(node))
        shape = _moved(self._shape(node.outputs[0]), NHWC)
        offset = self._take(bias) if bias else None
        if self._depthwise(node):
            result = self.depthwise(image, kernel, offset, shape, node.attributes)
        else:
            result = self.convolve(image, kernel, offset, shape, node.attributes, fixed=weight in self.arrays)
        self._put(node.outputs[0], result, NHWC)

    def _conv_input(self, node: Node, dy: str, weight: str) -> None:
        rule = self.depthwise_input if self._depthwise(node) else self.conv_input
        shape = _moved(self._shape(node.outputs[0]), NHWC)
        kernel = self._take(weight, self._weight_order(node))
        self._put(node.outputs[0], rule(self._take(dy, NHWC), kernel, shape, node.attributes), NHWC)

    def _conv_weight(self, node: Node, x: str, dy: str) -> None:
        order = self._weight_order(node)
        rule = self.depthwise_weight if self._depthwise(node) else self.conv_weight
        shape = _moved(self._shape(node.outputs[0]), order)
        self._put(node.outputs[0], rule(self._take(x, NHWC), self._take(dy, NHWC), shape, node.attributes), order)

    # Pools

    def _max_pool(self, node: Node, x: str) -> None:
        shape = _moved(self._shape(node.outputs[0]), NHWC)
        self._put(node.outputs[0], self.max_pool(self._take(x, NHWC), shape, node.attributes), NHWC)

    def _avg_pool(self, node: Node, x: str) -> None:
        shape = _moved(self._shape(node.outputs[0]), NHWC)
        self._put(node.outputs[0], self.avg_pool(self._take(x, NHWC), shape, node.attributes), NHWC)

    def _max_pool_input(self, node: Node, x: str, y: str, dy: str) -> None:
        image, largest, gradient = (self._take(name, NHWC) for name in (x, y, dy))
        self._put(node.outputs[0], self.max_pool_input(image, largest, gradient, node.attributes), NHWC)

    def _avg_pool_input(self, node: Node, dy: str) -> None:
        shape = _moved(self._shape(node.outputs[0]), NHWC)
        self._put(node.outputs[0], self.avg_pool_input(self._take(dy, NHWC), shape, node.attributes), NHWC)

    # Tables

    def _gather_rows(self, node: Node, table: str, indices: str) -> None:
        name = node.outputs[0]
        taken = [self._take(table), self._take(indices)]
        self._put(name, self.add("GATHER", taken, self._shape(name), "GatherOptions", axis=0), self._plain(name))

    def _scatter_rows(self, node: Node, indices: str, dy: str) -> None:
        name, count = node.outputs[0], math.prod(self._shape(indices))
        places = self.reshape(self.whole(self._take(indices)), (count, 1))
        rows = self.reshape(self._take(dy), (count, self._shape(dy)[-1]))
        taken = [places, rows, self.numbers(*self._shape(name))]
        self._put(name, self.add("SCATTER_ND", taken, self._shape(name)), self._plain(name))

    def _one_hot(self, node: Node, indices: str) -> None:
        name = node.outputs[0]
        depth = self.constant(np.array(self._shape(name)[1], np.int32))
        taken = [self.whole(self._take(indices)), depth, self.scalar(1.0), self.scalar(0.0)]
        self._put(name, self.add("ONE_HOT", taken, self._shape(name), "OneHotOptions", axis=-1), self._plain(name))


def _moved(items: Sequence[int], order: Order) -> tuple[int, ...]:
    return tuple(items[axis] for axis in order)
