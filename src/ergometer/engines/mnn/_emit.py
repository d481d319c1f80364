"""A canonical graph as MNN's expressions, its gradients and its updates: needed where a network is made ready."""

import math
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.core.engine import LEARNING_RATE, MOMENTUM
from ergometer.core.errors import UnavailableError
from ergometer.core.graph import VELOCITY, Graph, Node
from ergometer.engines.mnn._names import BACKWARD, UPDATE, stored

_UNARY = {"neg": "negative"} | {name: name for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "erf")}
_BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


class Emitter:
    """A canonical graph written as MNN expressions.

    What MNN.expr offers casts its arguments, and MNN does not differentiate a cast: the functions below it are used.
    """

    def __init__(self, graph: Graph, arrays: dict[str, Any]) -> None:
        import MNN.expr
        import MNN.optim

        MNN.expr.lazy_eval(True)
        self.graph, self.f, self.optim = graph, MNN.expr._F, MNN.optim.Grad()
        self.known: dict[str, Any] = {}
        self.node = Node("", (), ())
        self.stage, self.count = "", 0
        self.gathered: list[tuple[str, Any, Any]] = []  # table, indices, rows
        for name in (*graph.inputs, *graph.masks):
            value = graph.values[name]
            kind = self.f.int if value.dtype == "int64" else self.f.float
            self.known[name] = self.f.placeholder(list(value.shape), self.f.NCHW, kind)
            self.known[name].name = name
        for name in (*graph.parameters, *graph.constants, *graph.buffers):
            self.known[name] = self.constant(arrays[name])
            if name not in graph.constants:
                self._make_state(name)

    def _make_state(self, name: str) -> None:
        self.known[name].fix_as_trainable()
        self.known[name].name = stored(name)

    def emit(self) -> None:
        for node in self.graph.nodes:
            self.node = node
            results = self._run(node, [self.known[name] for name in node.inputs])
            for name, result in zip(node.outputs, results, strict=True):
                shape = list(self.graph.values[name].shape)
                if list(result.shape) != shape:
                    raise self.refuse(f"MNN makes {list(result.shape)} of what should be {shape}")
                self.known[name] = result

    def _run(self, node: Node, inputs: list[Any]) -> tuple[Any, ...]:
        if node.op in _UNARY:
            return (self.unary(node.op, *inputs),)
        if node.op in _BINARY:
            return (self.named(_BINARY[node.op](*self.alike(inputs))),)
        results = getattr(self, f"_{node.op}")(node.attributes, *inputs)
        return results if isinstance(results, tuple) else (results,)

    def refuse(self, why: str) -> UnavailableError:
        return UnavailableError(f"mnn cannot run {self.node.op} of {self.node.layer or 'the loss'!r}: {why}.")

    def save(self, path: Path) -> None:
        outputs = [self.plain(self.known[name]) for name in self.graph.outputs]
        for name, result in zip(self.graph.outputs, outputs, strict=True):
            result.name = stored(name)
        if not self.graph.parameters:
            self.f.save(outputs, str(path))
            return
        gradients = self._gradients(outputs[0])
        self._name_all(gradients.values())
        self.stage, self.node = UPDATE, Node("", (), ())
        old, new = self._updates(gradients)
        # MNN runs the last first: no update may come before everything that reads what it overwrites.
        statistics = [self.known[source] for source in self.graph.updates.values()]
        barrier = self.concat([self._first(item) for item in (*outputs, *gradients.values(), *statistics)], 0)
        self.optim.save_graph(str(path), outputs, [*old, self.constant(np.zeros(1))], [*new, barrier])

    def _first(self, x: Any) -> Any:
        flat = self.reshape(x, [-1])
        return flat if not x.shape or x.size == 1 else self.slice(flat, 0, 0, 1)

    def _gradients(self, loss: Any) -> dict[str, Any]:
        wanted = {stored(name): self.known[name] for name in self.graph.parameters}
        wanted |= {rows.name: rows for _, _, rows in self.gathered}
        found, results = self.optim.grad([loss], [self.constant(np.ones(()))], list(wanted.values()))
        by_name = {item.name: result for item, result in zip(found, results, strict=True)}
        gradients = {name: by_name[stored(name)] for name in self.graph.parameters if stored(name) in by_name}
        for name, indices, rows in self.gathered:
            if rows.name in by_name:
                part = self._scattered(name, indices, by_name[rows.name])
                gradients[name] = gradients[name] + part if name in gradients else part
        missing = [name for name in self.graph.parameters if name not in gradients]
        if missing:
            raise UnavailableError(f"mnn finds no gradient of {', '.join(missing)}.")
        return gradients

    def _name_all(self, last: Iterable[Any]) -> None:
        """Give what MNN left without a name the layer of what reads it; a sum of gradients that of what it sums."""
        stack, seen = list(last), {""}
        while stack:
            x = stack.pop()
            if not x.name:
                x.name = self._fresh(BACKWARD)
            if x.name in seen:
                continue
            seen.add(x.name)
            for item in x.inputs:
                if not item.name:
                    item.name = self._fresh((_summed(item) or x.name).rpartition("@")[0])
                stack.append(item)

    def _scattered(self, name: str, indices: Any, rows: Any) -> Any:
        """The gradient of a table whose rows were read: MNN knows none, and its scatter_nd drops repeated rows."""
        count, width = self.known[name].shape
        chosen = self.f.one_hot(self.f.reshape(indices, [-1], self.f.NCHW), count, 1.0, 0.0, -1)
        return self.f.matmul(chosen, self.reshape(rows, [-1, width]), True, False)

    def _updates(self, gradients: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """What is overwritten, and by what."""
        old, new = [], []

        def overwrite(name: str, result: Any) -> None:
            result.name = UPDATE + name
            old.append(self.known[name])
            new.append(result)

        for name, gradient in gradients.items():
            speed = VELOCITY + name
            self.known[speed] = self.constant(np.zeros(self.graph.values[name].shape))
            self._make_state(speed)
            velocity = self.known[speed] * self.number(MOMENTUM) + self._shaped(gradient, self.known[name].shape)
            overwrite(speed, velocity)
            overwrite(name, self.known[name] - velocity * self.number(LEARNING_RATE))
        for name, source in self.graph.updates.items():
            overwrite(name, self.known[source])
        return old, new

    def _shaped(self, x: Any, shape: Sequence[int]) -> Any:
        return self.plain(x) if list(x.shape) == list(shape) else self.reshape(x, shape)

    # Tensors and layouts

    def constant(self, array: Any) -> Any:
        whole = np.asarray(array).dtype == np.int64
        array = np.asarray(array, dtype=np.int32 if whole else np.float32, order="C")
        return self.f.const(array, list(array.shape), self.f.NCHW, self.f.int if whole else self.f.float)

    def number(self, value: float) -> Any:
        return self.constant(float(value))

    def named(self, x: Any) -> Any:
        """x, with the layer in its name: traces say which layer an operation belongs to."""
        x.name = self._fresh(f"{self.stage}{self.node.layer}")
        return x

    def _fresh(self, start: str) -> str:
        self.count += 1
        return f"{start}@{self.count}:"  # MNN appends a number to it

    def plain(self, x: Any) -> Any:
        return self.named(self.f.convert(x, self.f.NCHW)) if x.data_format == self.f.NC4HW4 else x

    def packed(self, x: Any) -> Any:
        return x if x.data_format == self.f.NC4HW4 else self.named(self.f.convert(x, self.f.NC4HW4))

    def alike(self, items: Sequence[Any]) -> list[Any]:
        """The same layout for all: packed where one is packed already, and shapes agree."""
        same = len({tuple(item.shape) for item in items}) == 1
        if same and any(item.data_format == self.f.NC4HW4 for item in items):
            return [self.packed(item) for item in items]
        return [self.plain(item) for item in items]

    # Building blocks

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return self.named(self.f.reshape(self.plain(x), list(shape), self.f.NCHW))

    def concat(self, items: Sequence[Any], axis: int) -> Any:
        return self.named(self.f.concat([self.plain(item) for item in items], axis))

    def slice(self, x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
        begin, end, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        begin[axis], end[axis], steps[axis] = start, stop, step
        limits = [self.constant(np.array(item)) for item in (begin, end, steps)]
        return self.named(self.f.strided_slice(self.plain(x), *limits, 0, 0, 0, 0, 0))

    def unary(self, op: str, x: Any) -> Any:
        return self.named(self.f.relu(x, 0.0) if op == "relu" else getattr(self.f, _UNARY[op])(x))

    def mean(self, x: Any, axes: Sequence[int]) -> Any:
        return self.named(self.f.reduce_mean(x, list(axes), True))

    def total(self, x: Any, axes: Sequence[int]) -> Any:
        return self.named(self.f.reduce_sum(x, list(axes), True))

    def detached(self, x: Any) -> Any:
        return self.named(self.f.cast(x, self.f.float))

    def padded(self, x: Any, before: Sequence[int], after: Sequence[int]) -> Any:
        """Zeros around x, joined to it: MNN does not differentiate its own padding."""
        for axis, sides in enumerate(zip(before, after, strict=True)):
            first, last = ([self._zeros(x, axis, side)] if side else [] for side in sides)
            if first or last:
                x = self.concat([*first, x, *last], axis)
        return x

    def _zeros(self, x: Any, axis: int, size: int) -> Any:
        return self.constant(np.zeros([*x.shape[:axis], size, *x.shape[axis + 1 :]]))

    def image_padded(self, x: Any, padding: Sequence[int]) -> Any:
        top, left, bottom, right = padding
        return self.padded(x, (0, 0, top, left), (0, 0, bottom, right))

    # Operations

    def _conv(self, a: dict[str, Any], x: Any, weight: Any, bias: Any = None) -> Any:
        top, left, bottom, right = a["padding"]
        if (top, left) != (bottom, right):
            x, top, left = self.image_padded(x, a["padding"]), 0, 0
        out, groups = weight.shape[0], a["groups"]
        bias = self.constant(np.zeros(out)) if bias is None else bias
        stride, dilation = [*reversed(a["stride"])], [*reversed(a["dilation"])]

        def convolve(x: Any, weight: Any, bias: Any, groups: int) -> Any:
            result = self.f.conv2d(self.packed(x), weight, bias, stride, [left, top], dilation, groups, self.f.CAFFE)
            return self.named(result)

        if groups == 1 or (groups == out and weight.shape[1] == 1 and x.shape[1] == groups):
            return convolve(x, weight, bias, groups)
        inner, outer = x.shape[1] // groups, out // groups
        parts = [
            convolve(
                self.slice(x, 1, i * inner, (i + 1) * inner),
                self.slice(weight, 0, i * outer, (i + 1) * outer),
                self.slice(bias, 0, i * outer, (i + 1) * outer),
                1,
            )
            for i in range(groups)
        ]
        return self.concat(parts, 1)

    def _conv_transpose(self, a: dict[str, Any], x: Any, weight: Any, bias: Any = None) -> Any:
        bias = self.constant(np.zeros(weight.shape[1])) if bias is None else bias
        if any(more > less for more, less in zip(a["output_padding"], a["padding"], strict=True)):
            raise self.refuse("its output is padded more than cropped")
        stride = [*reversed(a["stride"])]
        x = self.named(self.f.conv2d_transpose(self.packed(x), weight, bias, stride, [0, 0], [1, 1], 1, self.f.CAFFE))
        for axis, (less, more) in enumerate(zip(a["padding"], a["output_padding"], strict=True), 2):
            x = self.slice(x, axis, less, x.shape[axis] - less + more)
        return x

    def _linear(self, a: dict[str, Any], x: Any, weight: Any, bias: Any = None) -> Any:
        shape = [*x.shape[:-1], weight.shape[0]]
        rows = x if len(shape) == 2 else self.reshape(x, [-1, x.shape[-1]])
        result = self.named(self.f.matmul(self.plain(rows), weight, False, True))
        if bias is not None:
            result = self.named(result + bias)
        return result if len(shape) == 2 else self.reshape(result, shape)

    def _matmul(self, a: dict[str, Any], x: Any, y: Any) -> Any:
        if len(x.shape) != len(y.shape) or list(x.shape[:-2]) != list(y.shape[:-2]):
            raise self.refuse("its operands have different batches")
        return self.named(self.f.matmul(self.plain(x), self.plain(y), False, False))

    def _batch_norm(self, a: dict[str, Any], x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        x = self.plain(x)
        axes = [axis for axis in range(len(x.shape)) if axis != 1]
        wide = [1, x.shape[1], *[1] * (len(x.shape) - 2)]
        scale, bias = self.reshape(scale, wide), self.reshape(bias, wide)
        if not a["training"]:
            spread = self.named(self.f.sqrt(self.reshape(variance, wide) + self.number(a["epsilon"])))
            gain = self.named(scale / spread)
            shift = self.named(bias - self.named(self.reshape(mean, wide) * gain))
            return self.named(self.named(x * gain) + shift)
        middle = self.mean(x, axes)
        centred = self.named(x - middle)
        power = self.mean(self.named(self.f.square(centred)), axes)
        gain = self.named(scale / self.named(self.f.sqrt(self.named(power + self.number(a["epsilon"])))))
        y = self.named(self.named(centred * gain) + bias)
        count = math.prod(x.shape) // x.shape[1]
        fresh = a["momentum"], a["momentum"] * count / (count - 1)
        after = [
            old * self.number(1 - a["momentum"]) + self.reshape(new, old.shape) * self.number(part)
            for old, new, part in zip((mean, variance), (middle, power), fresh, strict=True)
        ]
        return y, *after

    def _layer_norm(self, a: dict[str, Any], x: Any, scale: Any, bias: Any) -> Any:
        x, axes = self.plain(x), [len(x.shape) - 1]
        centred = self.named(x - self.mean(x, axes))
        power = self.mean(self.named(self.f.square(centred)), axes)
        spread = self.named(self.f.sqrt(self.named(power + self.number(a["epsilon"]))))
        return self.named(self.named(self.named(centred / spread) * scale) + bias)

    def _max_pool(self, a: dict[str, Any], x: Any) -> Any:
        """Of equal values in a window, MNN's own gradient goes to each instead of to one."""
        for axis in (1, 0):
            before, after = a["padding"][axis], a["padding"][2 + axis]
            x = self._edges_repeated(x, 2 + axis, before, after)
            x = self._running_max(x, 2 + axis, a["kernel"][axis], a["stride"][axis])
        return x

    def _edges_repeated(self, x: Any, axis: int, before: int, after: int) -> Any:
        if not before and not after:
            return x
        last = x.shape[axis] - 1
        edges = [self.slice(x, axis, at, at + 1) for at in (0, last)]
        return self.concat([*[edges[0]] * before, x, *[edges[1]] * after], axis)

    def _running_max(self, x: Any, axis: int, kernel: int, stride: int) -> Any:
        reach = x.shape[axis] - kernel + 1
        most = None
        for start in range(kernel):
            item = self.slice(x, axis, start, start + reach, stride)
            most = item if most is None else self.named(most + self.unary("relu", self.named(item - most)))
        return most

    def _avg_pool(self, a: dict[str, Any], x: Any) -> Any:
        kernel, stride = [*reversed(a["kernel"])], [*reversed(a["stride"])]
        inside = self.packed(self.image_padded(x, a["padding"]))
        pooled = self.named(self.f.avg_pool(inside, kernel, stride, self.f.VALID, [0, 0]))
        if a["counts_padding"] or not any(a["padding"]):
            return pooled
        return self.named(self.plain(pooled) * self.constant(_window_share(a, x.shape)))

    def _clip(self, a: dict[str, Any], x: Any) -> Any:
        low, high = a["low"], a["high"]
        if (low, high) == (0.0, 6.0):
            return self.named(self.f.relu6(x, low, high))
        above = [self.unary("relu", self.named(x - self.number(limit))) for limit in (low, high)]
        return self.named(self.named(above[0] - above[1]) + self.number(low))

    def _leaky_relu(self, a: dict[str, Any], x: Any) -> Any:
        below = self.unary("relu", self.unary("neg", x))
        return self.named(self.unary("relu", x) - self.named(below * self.number(a["slope"])))

    def _gelu(self, a: dict[str, Any], x: Any) -> Any:
        half = self.unary("erf", self.named(x * self.number(math.sqrt(0.5))))
        return self.named(self.named(x * self.number(0.5)) * self.named(half + self.number(1.0)))

    def _power(self, a: dict[str, Any], x: Any) -> Any:
        if a["exponent"] == 2:
            return self.named(self.f.square(x))
        return self.named(self.f.pow(x, self.number(a["exponent"])))

    def _reshape(self, a: dict[str, Any], x: Any) -> Any:
        return self.reshape(x, a["shape"])

    def _transpose(self, a: dict[str, Any], x: Any) -> Any:
        return self.named(self.f.transpose(self.plain(x), list(a["axes"])))

    def _concat(self, a: dict[str, Any], *items: Any) -> Any:
        return self.concat(items, a["axis"])

    def _slice(self, a: dict[str, Any], x: Any) -> Any:
        return self.slice(x, a["axis"], a["start"], a["stop"])

    def _pad(self, a: dict[str, Any], x: Any) -> Any:
        return self.padded(x, a["before"], a["after"])

    def _softmax(self, a: dict[str, Any], x: Any) -> Any:
        return self.named(self.f.softmax(self.plain(x), -1))

    def _log_softmax(self, a: dict[str, Any], x: Any) -> Any:
        x, last = self.plain(x), [len(x.shape) - 1]
        top = self.detached(self.f.reduce_max(x, last, True))
        below = self.named(x - top)
        return self.named(below - self.unary("log", self.total(self.unary("exp", below), last)))

    def _reduce_mean(self, a: dict[str, Any], x: Any) -> Any:
        return self.named(self.f.reduce_mean(self.plain(x), list(a["axes"]), a["keep"]))

    def _reduce_sum(self, a: dict[str, Any], x: Any) -> Any:
        return self.named(self.f.reduce_sum(self.plain(x), list(a["axes"]), a["keep"]))

    def _gather_rows(self, a: dict[str, Any], table: Any, indices: Any) -> Any:
        name, rows = self.node.inputs[0], self.named(self.f.gather(table, indices))
        if name in self.graph.parameters:
            self.gathered.append((name, indices, rows))
        elif name not in self.graph.constants:
            raise self.refuse("its table is neither a parameter nor a constant")
        return rows

    def _pick(self, a: dict[str, Any], x: Any, indices: Any) -> Any:
        chosen = self.f.one_hot(indices, x.shape[1], 1.0, 0.0, -1)
        return self.reshape(self.total(self.named(self.plain(x) * chosen), [1]), indices.shape)

    def _cross_entropy(self, a: dict[str, Any], scores: Any, labels: Any) -> Any:
        picked = self._pick(a, self._log_softmax(a, scores), labels)
        return self.unary("neg", self.named(self.f.reduce_mean(picked, [0], False)))


def _summed(x: Any) -> str:
    """The name of a gradient that x adds to others; empty if x is not such a sum."""
    named = [item.name for item in x.inputs if item.name]
    sums = all(item.name or item.op_type == "BinaryOp" for item in x.inputs)
    return named[0] if named and sums and all(name.startswith(BACKWARD) for name in named) else ""


def _window_share(a: dict[str, Any], shape: Sequence[int]) -> Any:
    """How much larger a window is than its part inside the image, for each place of an average pool."""
    counts = []
    for axis in range(2):
        size, kernel, stride = shape[2 + axis], a["kernel"][axis], a["stride"][axis]
        before, after = a["padding"][axis], a["padding"][2 + axis]
        starts = np.arange(0, before + size + after - kernel + 1, stride) - before
        counts.append(np.minimum(starts + kernel, size) - np.maximum(starts, 0))
    return math.prod(a["kernel"]) / np.outer(*counts)[None, None]
