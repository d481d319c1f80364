"""The canonical graph: one step of a network as a list of simple operations, the same for every engine.

Images are NCHW. Every shape is known. Elementwise operations broadcast as in numpy.

| op | inputs | attributes |
| --- | --- | --- |
| conv | x, weight[, bias] | stride (h, w), padding (top, left, bottom, right), dilation (h, w), groups |
| conv_transpose | x, weight (in, out, h, w)[, bias] | stride, padding (h, w), output_padding (h, w) |
| linear | x (..., in), weight (out, in)[, bias] | |
| matmul | a, b | |
| batch_norm | x, scale, bias, mean, variance | epsilon, momentum, training |
| layer_norm | x, scale, bias | epsilon; over the last axis |
| max_pool | x | kernel, stride, padding (top, left, bottom, right) |
| avg_pool | x | kernel, stride, padding, counts_padding |
| relu, sigmoid, tanh, exp, log, sqrt, neg, erf, gelu | x | |
| clip | x | low, high |
| leaky_relu | x | slope |
| power | x | exponent |
| add, sub, mul, div | a, b | |
| reshape | x | shape |
| transpose | x | axes |
| concat | x, ... | axis |
| slice | x | axis, start, stop |
| pad | x | before, after: zeros for each axis |
| softmax, log_softmax | x | over the last axis |
| reduce_mean, reduce_sum | x | axes, keep |
| gather_rows | table, indices | |
| pick | x (n, c), indices (n) | one value of each row |
| cross_entropy | scores (n, c), labels (n) | mean over n |

batch_norm in training has three outputs: y, and what the running mean and variance become:
(1 - momentum) * old + momentum * that of the batch, where the variance is the unbiased one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from ergometer.core.errors import StoreError

# Names beside those of the graph's own tensors, in what an engine says about a step.
RESULT = "/result"  # the loss, or the scores
VELOCITY = "velocity/"  # before a parameter's name

UNARY = ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "neg", "erf", "gelu", "clip", "leaky_relu", "power")
BINARY = ("add", "sub", "mul", "div")
OPS = (
    *("conv", "conv_transpose", "linear", "matmul", "batch_norm", "layer_norm", "max_pool", "avg_pool"),
    *(*UNARY, *BINARY, "reshape", "transpose", "concat", "slice", "pad", "softmax", "log_softmax"),
    *("reduce_mean", "reduce_sum", "gather_rows", "pick", "cross_entropy"),
)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: float32, or int64 for labels and indices."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. layer: the module of the network that it belongs to, empty for the loss."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layer: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """inputs: the fields of a batch that are used, in their order. outputs: the loss, or the scores in inference.

    parameters are trained. constants never change. buffers are state that `updates` replaces after a step.
    masks: further inputs, drawn anew for every step: 0 with the probability given, otherwise 1 / (1 - it).
    """

    values: dict[str, Value]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    updates: dict[str, str] = field(default_factory=dict)
    masks: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Graph":
        try:
            values = {name: Value(tuple(item["shape"]), item["dtype"]) for name, item in data["values"].items()}
            nodes = tuple(
                Node(item["op"], tuple(item["inputs"]), tuple(item["outputs"]), item["layer"], item["attributes"])
                for item in data["nodes"]
            )
            lists = {name: tuple(data[name]) for name in ("inputs", "outputs", "parameters", "constants", "buffers")}
            found = cls(values=values, nodes=nodes, updates=dict(data["updates"]), masks=dict(data["masks"]), **lists)
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"not a graph: {type(error).__name__} {error}.") from error
        found.check()
        return found

    def check(self) -> None:
        """StoreError unless every operation is known and every tensor exists before it is used."""
        there = {*self.inputs, *self.masks, *self.parameters, *self.constants, *self.buffers}
        for node in self.nodes:
            if node.op not in OPS:
                raise StoreError(f"not a graph of this version: it has an operation {node.op!r}.")
            for name in node.inputs:
                if name not in there:
                    raise StoreError(f"not a graph: {node.op} of {node.layer!r} uses {name!r} before it exists.")
            there.update(node.outputs)
        for name in (*there, *self.outputs, *self.updates, *self.updates.values()):
            if name not in self.values or name not in there:
                raise StoreError(f"not a graph: {name!r} is not one of its tensors.")

    def smooth(self) -> "Graph":
        """This graph with x * sigmoid(x) for every ReLU of the network.

        Rounding flips the mask of a ReLU and with it whole gradients; a smooth network can be compared strictly.
        """
        values, nodes = dict(self.values), []
        for node in self.nodes:
            if node.op not in ("relu", "clip", "leaky_relu") or not node.layer:
                nodes.append(node)
                continue
            gate = f"{node.outputs[0]}/gate"
            values[gate] = values[node.inputs[0]]
            nodes += [
                Node("sigmoid", node.inputs, (gate,), node.layer),
                Node("mul", (*node.inputs, gate), node.outputs, node.layer),
            ]
        return replace(self, values=values, nodes=tuple(nodes))

    def bytes_of(self, names: Iterable[str]) -> int:
        return sum(self.values[name].size * (8 if self.values[name].dtype == "int64" else 4) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A network made ready for one engine and one batch size.

    arrays: parameters, buffers and constants (numpy) by name. folder: the files that the engine made for itself.
    counts: parameters, multiply-accumulates and bytes, as counted where it was made.
    """

    graph: Graph
    arrays: Mapping[str, Any]
    folder: Path
    counts: dict[str, int] = field(default_factory=dict)
