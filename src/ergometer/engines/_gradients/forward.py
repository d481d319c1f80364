"""The forward pass in operations that have a gradient, or that every engine has."""

import math
from typing import Any

from ergometer.core.errors import UnavailableError
from ergometer.core.graph import Graph, Node
from ergometer.engines._gradients.writer import Writer


class Plain(Writer):
    """Groups of a convolution side by side, and batch_norm with fixed statistics as arithmetic."""

    def write(self) -> tuple[Graph, dict[str, Any]]:
        for node in self.graph.nodes:
            self.layer = node.layer
            if node.op == "conv" and not self._simple(node):
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


class Forward(Writer):
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
        attributes = as_conv(node)
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


def as_conv(node: Node) -> dict[str, Any]:
    """The convolution that a transposed one is the input gradient of."""
    height, width = node.attributes["padding"]
    padding = (height, width, height, width)
    return {"stride": node.attributes["stride"], "padding": padding, "dilation": (1, 1), "groups": 1}
