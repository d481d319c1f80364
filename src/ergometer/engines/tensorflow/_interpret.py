"""The operations of a graph, as TensorFlow's."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ergometer.core.graph import BINARY, UNARY, Graph, Node
from ergometer.engines.tensorflow._load import tensorflow

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
TO_KERNEL, FROM_KERNEL = (2, 3, 1, 0), (3, 2, 0, 1)  # out, in, h, w <-> h, w, in, out


class Interpreter:
    """The tensors of a graph as they are made: as in the graph (first), or images with channels last, or both."""

    def __init__(self, graph: Graph):
        self.tf = tensorflow()
        self.graph = graph
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.kernels: dict[str, Any] = {}

    def add(self, node: Node) -> None:
        rule: Callable[[Node], None] | None = getattr(self, f"_{node.op}", None)
        if rule:
            rule(node)
        elif node.op in UNARY:
            self._keep(node, self._unary(node), self._images(node))
        elif node.op in BINARY:
            self._binary(node)
        else:
            self._plain(node)

    def plain(self, name: str) -> Any:
        if name not in self.first:
            self.first[name] = self.tf.transpose(self.last[name], _TO_FIRST)
        return self.first[name]

    def image(self, name: str) -> Any:
        if name not in self.last:
            self.last[name] = self.tf.transpose(self.first[name], _TO_LAST)
        return self.last[name]

    def kernel(self, name: str) -> Any:
        if name not in self.kernels:
            self.kernels[name] = self.tf.transpose(self.plain(name), TO_KERNEL)
        return self.kernels[name]

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.values[name].shape

    def _images(self, node: Node) -> bool:
        """Whether an operation that takes either layout gets images with channels last."""
        return any(name in self.last for name in node.inputs)

    def _keep(self, node: Node, result: Any, images: bool) -> None:
        (self.last if images else self.first)[node.outputs[0]] = result

    def _take(self, node: Node) -> tuple[Any, Callable[[int], int]]:
        """The only input in the layout that it is in, and where an axis of the graph is in it."""
        (name,) = node.inputs
        if self._images(node):
            return self.image(name), _TO_LAST.index
        return self.plain(name), lambda axis: axis

    # Images

    def _conv(self, node: Node) -> None:
        tf, a = self.tf, node.attributes
        weight, groups = self.kernel(node.inputs[1]), a["groups"]
        height, width, _, out = weight.shape
        x, padding = self._padded(node, (height, width), a["dilation"])
        if is_depthwise(self.graph, node):
            weight = tf.reshape(weight, (height, width, groups, out // groups))
            made = tf.nn.depthwise_conv2d(x, weight, (1, *a["stride"], 1), padding, dilations=a["dilation"])
        elif groups == 1:
            made = tf.nn.conv2d(x, weight, a["stride"], padding, dilations=a["dilation"])
        else:
            parts = zip(tf.split(x, groups, 3), tf.split(weight, groups, 3), strict=True)
            made = tf.concat([tf.nn.conv2d(i, k, a["stride"], padding, dilations=a["dilation"]) for i, k in parts], 3)
        self.last[node.outputs[0]] = self._biased(node, made)

    def _padded(
        self, node: Node, kernel: Sequence[int], dilation: Sequence[int] = (1, 1), filling: float = 0.0
    ) -> tuple[Any, str]:
        """The image and how its edge is treated. TensorFlow's fast kernels take no padding in numbers."""
        x, a = self.image(node.inputs[0]), node.attributes
        sizes = self._shape(node.inputs[0])[2:]
        sides = [(a["padding"][axis], a["padding"][2 + axis]) for axis in range(2)]
        if sides == [_same(*each) for each in zip(sizes, kernel, a["stride"], dilation, strict=True)]:
            return x, "SAME"
        if any(a["padding"]):
            x = self.tf.pad(x, [(0, 0), *sides, (0, 0)], constant_values=filling)
        return x, "VALID"

    def _conv_transpose(self, node: Node) -> None:
        a = node.attributes
        samples, channels, height, width = self._shape(node.outputs[0])
        made = self.tf.nn.conv2d_transpose(
            self.image(node.inputs[0]),
            self.kernel(node.inputs[1]),
            (samples, height, width, channels),
            a["stride"],
            [(0, 0), *((side, side) for side in a["padding"]), (0, 0)],
        )
        self.last[node.outputs[0]] = self._biased(node, made)

    def _biased(self, node: Node, made: Any) -> Any:
        return self.tf.nn.bias_add(made, self.plain(node.inputs[2])) if len(node.inputs) > 2 else made

    def _max_pool(self, node: Node) -> None:
        a = node.attributes
        x, padding = self._padded(node, a["kernel"], filling=float("-inf"))
        self.last[node.outputs[0]] = self.tf.nn.max_pool2d(x, a["kernel"], a["stride"], padding)

    def _avg_pool(self, node: Node) -> None:
        tf, a = self.tf, node.attributes
        x, padding = self._padded(node, a["kernel"])
        made = tf.nn.avg_pool2d(x, a["kernel"], a["stride"], padding)
        # "SAME" counts no padding, and what was padded by hand counts all of it.
        if (padding == "VALID") != a["counts_padding"] and any(a["padding"]):
            counted = _counts(self._shape(node.inputs[0])[2:], a)
            made = made * counted if a["counts_padding"] else made / counted
        self.last[node.outputs[0]] = made

    def _batch_norm(self, node: Node) -> None:
        tf, a = self.tf, node.attributes
        x, images = node.inputs[0], len(self._shape(node.inputs[0])) == 4
        flat = self.image(x) if images else self._flattened(x)
        made = tf.raw_ops.FusedBatchNormV3(  # tf.nn's own raises epsilon to 1.001e-5
            x=flat,
            **dict(zip(("scale", "offset", "mean", "variance"), map(self.plain, node.inputs[1:]), strict=True)),
            epsilon=a["epsilon"],
            exponential_avg_factor=a["momentum"] if a["training"] else 1.0,
            is_training=a["training"],
        )
        if images:
            self.last[node.outputs[0]] = made.y
        else:
            self.first[node.outputs[0]] = self._unflattened(made.y, self._shape(x))
        if a["training"]:
            self.first |= zip(node.outputs[1:], (made.batch_mean, made.batch_variance), strict=True)

    def _flattened(self, name: str) -> Any:
        """(n, c) or (n, c, length) as images of height 1."""
        samples, channels, *length = self._shape(name)
        x = self.tf.reshape(self.plain(name), (samples, channels, 1, *(length or [1])))
        return self.tf.transpose(x, _TO_LAST)

    def _unflattened(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.tf.reshape(self.tf.transpose(x, _TO_FIRST), shape)

    # Either layout

    def _unary(self, node: Node) -> Any:
        tf, a = self.tf, node.attributes
        x, _ = self._take(node)
        if node.op == "clip":
            six = (a["low"], a["high"]) == (0.0, 6.0)
            return tf.nn.relu6(x) if six else tf.clip_by_value(x, a["low"], a["high"])
        if node.op == "leaky_relu":
            return tf.nn.leaky_relu(x, a["slope"])
        if node.op == "power":
            return tf.square(x) if a["exponent"] == 2 else tf.pow(x, a["exponent"])
        if node.op in ("relu", "gelu"):
            return getattr(tf.nn, node.op)(x)
        return getattr(tf.math, "negative" if node.op == "neg" else node.op)(x)

    def _binary(self, node: Node) -> None:
        images = self._images(node) and len(self._shape(node.outputs[0])) == 4
        a, b = (self._spread(name) if images else self.plain(name) for name in node.inputs)
        if a.dtype != b.dtype:
            a, b = (self.tf.cast(x, "float32") for x in (a, b))
        rule = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}[node.op]
        self._keep(node, getattr(self.tf, rule)(a, b), images)

    def _spread(self, name: str) -> Any:
        shape = self._shape(name)
        if len(shape) in (0, 4):
            return self.image(name) if shape else self.plain(name)
        return self.tf.transpose(self.tf.reshape(self.plain(name), (*[1] * (4 - len(shape)), *shape)), _TO_LAST)

    def _concat(self, node: Node) -> None:
        images = self._images(node)
        items = [self.image(name) if images else self.plain(name) for name in node.inputs]
        axis = node.attributes["axis"]
        self._keep(node, self.tf.concat(items, _TO_LAST.index(axis) if images else axis), images)

    def _slice(self, node: Node) -> None:
        a = node.attributes
        x, place = self._take(node)
        begin, size = [0] * len(x.shape), list(x.shape)
        begin[place(a["axis"])], size[place(a["axis"])] = a["start"], a["stop"] - a["start"]
        self._keep(node, self.tf.slice(x, begin, size), self._images(node))

    def _pad(self, node: Node) -> None:
        x, place = self._take(node)
        sides = [(0, 0)] * len(x.shape)
        for axis, pair in enumerate(zip(node.attributes["before"], node.attributes["after"], strict=True)):
            sides[place(axis)] = pair
        self._keep(node, self.tf.pad(x, sides), self._images(node))

    def _reduce_mean(self, node: Node) -> None:
        a = node.attributes
        images = self._images(node) and (a["keep"] or {2, 3} <= set(a["axes"]))
        x = self.image(node.inputs[0]) if images else self.plain(node.inputs[0])
        axes = [_TO_LAST.index(axis) for axis in a["axes"]] if images else a["axes"]
        self._keep(node, getattr(self.tf, node.op)(x, axes, keepdims=a["keep"]), images and a["keep"])

    _reduce_sum = _reduce_mean

    # As in the graph

    def _linear(self, node: Node) -> None:
        x, weight, *_ = map(self.plain, node.inputs)
        rows = self.tf.reshape(x, (-1, x.shape[-1]))
        made = self._biased(node, self.tf.matmul(rows, weight, transpose_b=True))
        self.first[node.outputs[0]] = self.tf.reshape(made, self._shape(node.outputs[0]))

    def _layer_norm(self, node: Node) -> None:
        tf = self.tf
        x, scale, bias = map(self.plain, node.inputs)
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        normal = (x - mean) * tf.math.rsqrt(variance + node.attributes["epsilon"])
        self.first[node.outputs[0]] = normal * scale + bias

    def _plain(self, node: Node) -> None:
        tf, a = self.tf, node.attributes
        rules: dict[str, Callable[..., Any]] = {
            "matmul": tf.matmul,
            "reshape": lambda x: tf.reshape(x, a["shape"]),
            "transpose": lambda x: tf.transpose(x, a["axes"]),
            "softmax": tf.nn.softmax,
            "log_softmax": tf.nn.log_softmax,
            "gather_rows": tf.gather,
            "pick": lambda x, indices: tf.gather(x, indices, axis=1, batch_dims=1),
            "cross_entropy": lambda scores, labels: tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            ),
        }
        self.first[node.outputs[0]] = rules[node.op](*map(self.plain, node.inputs))


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """The padding that TensorFlow's "SAME" stands for."""
    whole = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return whole // 2, whole - whole // 2


def _counts(sizes: Sequence[int], a: dict[str, Any]) -> Any:
    """Which share of each window lies in the image."""
    shares = []
    for axis, size in enumerate(sizes):
        before, after = a["padding"][axis], a["padding"][2 + axis]
        inside = np.pad(np.ones(size, np.float32), (before, after))
        windows = np.lib.stride_tricks.sliding_window_view(inside, a["kernel"][axis])[:: a["stride"][axis]]
        shares.append(windows.mean(1, dtype=np.float32))
    return np.multiply.outer(*shares)[None, :, :, None]


def is_depthwise(graph: Graph, node: Node) -> bool:
    return bool(node.attributes["groups"] == graph.values[node.inputs[0]].shape[1] > 1)
