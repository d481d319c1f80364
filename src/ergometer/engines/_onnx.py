"""A canonical graph as an ONNX model. Every tensor keeps its name; a node is named after what it makes."""

from collections.abc import Callable, Iterable, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from ergometer.core.graph import Graph, Node


def model_of(
    graph: Graph, arrays: dict[str, Any], *, training_norm: bool = False, opset: int = 17, ir_version: int = 8
) -> Any:
    """The ModelProto. Its inputs: those of the graph, then its masks. Its outputs: those of the graph, then what
    its buffers become, in the order of `graph.updates`. Parameters, buffers and constants are initializers.

    training_norm: batch norm in training stays one node; otherwise it is spelled out, for runtimes without it.
    """
    return _Writer(graph, arrays, training_norm, opset).model(ir_version)


class _Writer:
    def __init__(self, graph: Graph, arrays: dict[str, Any], training_norm: bool, opset: int):
        self.graph, self.training_norm, self.opset = graph, training_norm, opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        for name in (*graph.parameters, *graph.buffers, *graph.constants):
            self._keep(name, arrays[name])

    def model(self, ir_version: int) -> Any:
        from onnx import helper

        for node in self.graph.nodes:
            rule: Callable[[Node], None] = getattr(self, f"_write_{node.op}", self._plain)
            rule(node)
        graph = self.graph
        results = (*graph.outputs, *graph.updates.values())
        between = {name for node in graph.nodes for name in node.outputs} - set(results)
        made = helper.make_graph(
            self.nodes,
            "ergometer",
            [self._info(name) for name in (*graph.inputs, *graph.masks)],
            [self._info(name) for name in results],
            self.initializers,
            value_info=[self._info(name) for name in sorted(between)],
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(made, opset_imports=imports, ir_version=ir_version, producer_name="ergometer")

    # Building blocks

    def _info(self, name: str) -> Any:
        from onnx import TensorProto, helper

        value = self.graph.values[name]
        kind = TensorProto.INT64 if value.dtype == "int64" else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, value.shape)

    def _keep(self, name: str, array: Any) -> str:
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name))
        return name

    def _numbers(self, name: str, numbers: Sequence[int]) -> str:
        return self._keep(name, np.array(numbers, np.int64))

    def _scalar(self, name: str, number: float) -> str:
        return self._keep(name, np.array(number, np.float32))

    def _add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes))
        return outputs[0]

    def _reduce(self, kind: str, x: str, out: str, axes: Sequence[int], keep: bool) -> str:
        if self.opset < (13 if kind == "ReduceSum" else 18):
            return self._add(kind, [x], [out], axes=axes, keepdims=int(keep))
        return self._add(kind, [x, self._numbers(f"{out}/axes", axes)], [out], keepdims=int(keep))

    def _shaped(self, x: str, out: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [x, self._numbers(f"{out}/shape", shape)], [out])

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.values[name].shape

    # The operations

    def _plain(self, node: Node) -> None:
        inputs = [self._cast(name, node.outputs[0]) for name in node.inputs]
        self._add(_PLAIN[node.op], inputs, node.outputs)

    def _cast(self, name: str, out: str) -> str:
        """ONNX, unlike torch, does not mix numbers of two types."""
        from onnx import TensorProto

        if self.graph.values[name].dtype == self.graph.values[out].dtype:
            return name
        return self._add("Cast", [name], [f"{out}/{name}"], to=TensorProto.FLOAT)

    def _write_conv(self, node: Node) -> None:
        a = node.attributes
        self._add(
            "Conv",
            node.inputs,
            node.outputs,
            kernel_shape=self._shape(node.inputs[1])[2:],
            strides=a["stride"],
            pads=a["padding"],
            dilations=a["dilation"],
            group=a["groups"],
        )

    def _write_conv_transpose(self, node: Node) -> None:
        a = node.attributes
        self._add(
            "ConvTranspose",
            node.inputs,
            node.outputs,
            kernel_shape=self._shape(node.inputs[1])[2:],
            strides=a["stride"],
            pads=(*a["padding"], *a["padding"]),
            output_padding=a["output_padding"],
        )

    def _write_linear(self, node: Node) -> None:
        x, weight, *bias = node.inputs
        (out,) = node.outputs
        if len(self._shape(x)) == 2:
            self._add("Gemm", node.inputs, node.outputs, transB=1)
            return
        turned = self._add("Transpose", [weight], [f"{out}/weight"], perm=(1, 0))
        product = self._add("MatMul", [x, turned], [f"{out}/product" if bias else out])
        if bias:
            self._add("Add", [product, *bias], [out])

    def _write_batch_norm(self, node: Node) -> None:
        if not node.attributes["training"]:
            self._add("BatchNormalization", node.inputs, node.outputs, epsilon=node.attributes["epsilon"])
        elif self.training_norm:
            self._batch_norm_whole(node)
        else:
            self._batch_norm_spelled(node)

    def _batch_norm_whole(self, node: Node) -> None:
        """ONNX's momentum is the share of the old value, and its running variance takes the biased one.

        With b biased, k = n / (n - 1): (1 - m) old + m k b = k ((1 - m) old + m b) + (1 - k) (1 - m) old.
        """
        x, _, _, _, variance = node.inputs
        out, new_mean, new_variance = node.outputs
        share = 1 - node.attributes["momentum"]
        unbiased = self._unbiased(x)
        biased = f"{new_variance}/biased"
        facts = {"epsilon": node.attributes["epsilon"], "momentum": share, "training_mode": 1}
        self._add("BatchNormalization", node.inputs, [out, new_mean, biased], **facts)
        grown = self._times(biased, unbiased, f"{new_variance}/grown")
        excess = self._times(variance, (1 - unbiased) * share, f"{new_variance}/excess")
        self._add("Add", [grown, excess], [new_variance])

    def _batch_norm_spelled(self, node: Node) -> None:
        x, scale, bias, old_mean, old_variance = node.inputs
        out, new_mean, new_variance = node.outputs
        rank, channels = len(self._shape(x)), self._shape(x)[1]
        axes = [axis for axis in range(rank) if axis != 1]
        wide = (1, channels, *[1] * (rank - 2))
        mean = self._reduce("ReduceMean", x, f"{out}/mean", axes, keep=True)
        centred = self._add("Sub", [x, mean], [f"{out}/centred"])
        square = self._add("Mul", [centred, centred], [f"{out}/square"])
        variance = self._reduce("ReduceMean", square, f"{out}/variance", axes, keep=True)
        epsilon = self._scalar(f"{out}/epsilon", node.attributes["epsilon"])
        root = self._add("Sqrt", [self._add("Add", [variance, epsilon], [f"{out}/safe"])], [f"{out}/root"])
        normal = self._add("Div", [centred, root], [f"{out}/normal"])
        scaled = self._add("Mul", [normal, self._shaped(scale, f"{out}/scale", wide)], [f"{out}/scaled"])
        self._add("Add", [scaled, self._shaped(bias, f"{out}/bias", wide)], [out])
        self._mixed(node, old_mean, mean, 1.0, new_mean)
        self._mixed(node, old_variance, variance, self._unbiased(x), new_variance)

    def _mixed(self, node: Node, old: str, found: str, factor: float, out: str) -> None:
        momentum = node.attributes["momentum"]
        flat = self._shaped(found, f"{out}/flat", self._shape(old))
        kept = self._times(old, 1 - momentum, f"{out}/kept")
        self._add("Add", [kept, self._times(flat, momentum * factor, f"{out}/fresh")], [out])

    def _times(self, x: str, factor: float, out: str) -> str:
        return self._add("Mul", [x, self._scalar(f"{out}/factor", factor)], [out])

    def _unbiased(self, x: str) -> float:
        count = prod(self._shape(x)) // self._shape(x)[1]
        return count / (count - 1)

    def _write_layer_norm(self, node: Node) -> None:
        self._add("LayerNormalization", node.inputs, node.outputs, axis=-1, epsilon=node.attributes["epsilon"])

    def _write_max_pool(self, node: Node) -> None:
        self._pool("MaxPool", node)

    def _write_avg_pool(self, node: Node) -> None:
        self._pool("AveragePool", node, count_include_pad=int(node.attributes["counts_padding"]))

    def _pool(self, kind: str, node: Node, **more: int) -> None:
        a = node.attributes
        facts = {"kernel_shape": a["kernel"], "strides": a["stride"], "pads": a["padding"]}
        self._add(kind, node.inputs, node.outputs, **facts, **more)

    def _write_gelu(self, node: Node) -> None:
        (x,), (out,) = node.inputs, node.outputs
        narrow = self._add("Div", [x, self._scalar(f"{out}/root", sqrt(2))], [f"{out}/narrow"])
        erf = self._add("Erf", [narrow], [f"{out}/erf"])
        more = self._add("Add", [erf, self._scalar(f"{out}/one", 1.0)], [f"{out}/more"])
        self._times(self._add("Mul", [x, more], [f"{out}/double"]), 0.5, out)

    def _write_clip(self, node: Node) -> None:
        (out,) = node.outputs
        low = self._scalar(f"{out}/low", node.attributes["low"])
        high = self._scalar(f"{out}/high", node.attributes["high"])
        self._add("Clip", [*node.inputs, low, high], node.outputs)

    def _write_leaky_relu(self, node: Node) -> None:
        self._add("LeakyRelu", node.inputs, node.outputs, alpha=node.attributes["slope"])

    def _write_power(self, node: Node) -> None:
        exponent = self._scalar(f"{node.outputs[0]}/exponent", node.attributes["exponent"])
        self._add("Pow", [*node.inputs, exponent], node.outputs)

    def _write_reshape(self, node: Node) -> None:
        self._shaped(node.inputs[0], node.outputs[0], node.attributes["shape"])

    def _write_transpose(self, node: Node) -> None:
        self._add("Transpose", node.inputs, node.outputs, perm=node.attributes["axes"])

    def _write_concat(self, node: Node) -> None:
        self._add("Concat", node.inputs, node.outputs, axis=node.attributes["axis"])

    def _write_slice(self, node: Node) -> None:
        (out,) = node.outputs
        bounds = [self._numbers(f"{out}/{name}", [node.attributes[name]]) for name in ("start", "stop", "axis")]
        self._add("Slice", [*node.inputs, *bounds], node.outputs)

    def _write_pad(self, node: Node) -> None:
        sides = (*node.attributes["before"], *node.attributes["after"])
        self._add("Pad", [*node.inputs, self._numbers(f"{node.outputs[0]}/sides", sides)], node.outputs)

    def _write_softmax(self, node: Node) -> None:
        self._add("Softmax", node.inputs, node.outputs, axis=-1)

    def _write_log_softmax(self, node: Node) -> None:
        self._add("LogSoftmax", node.inputs, node.outputs, axis=-1)

    def _write_reduce_mean(self, node: Node) -> None:
        self._reduce("ReduceMean", node.inputs[0], node.outputs[0], node.attributes["axes"], node.attributes["keep"])

    def _write_reduce_sum(self, node: Node) -> None:
        self._reduce("ReduceSum", node.inputs[0], node.outputs[0], node.attributes["axes"], node.attributes["keep"])

    def _write_gather_rows(self, node: Node) -> None:
        self._add("Gather", node.inputs, node.outputs, axis=0)

    def _write_pick(self, node: Node) -> None:
        x, indices = node.inputs
        (out,) = node.outputs
        rows = self._shape(indices)
        column = self._shaped(indices, f"{out}/column", (*rows, 1))
        self._shaped(self._add("GatherElements", [x, column], [f"{out}/picked"], axis=1), out, rows)

    def _write_cross_entropy(self, node: Node) -> None:
        self._add("SoftmaxCrossEntropyLoss", node.inputs, node.outputs, reduction="mean")


_PLAIN = {
    **{op: op.capitalize() for op in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "neg", "erf")},
    **{op: op.capitalize() for op in ("add", "sub", "mul", "div")},
    "matmul": "MatMul",
}


class Owners:
    """Which layer a kernel belongs to, by the names of the nodes that a runtime fused into it."""

    def __init__(self, graph: Graph):
        self.nodes = {name: node for node in graph.nodes for name in node.outputs}

    def layer(self, names: Iterable[str], *, weighted: bool) -> str | None:
        """weighted: the kernel multiplies with weights, so it is theirs. None: the runtime made it for itself."""
        found = [node for name in names if (node := self._node(name))]
        if weighted:
            found = [self._source(node) for node in found]
            found.sort(key=lambda node: node.op not in _WEIGHTED)
        return found[0].layer if found else None

    def _node(self, name: str) -> Node | None:
        while name and name not in self.nodes:
            name = name.rpartition("/")[0]
        return self.nodes.get(name)

    def _source(self, node: Node) -> Node:
        """The weighted operation that a fused one follows, or itself."""
        at = node
        while at.op not in _WEIGHTED and at.inputs[0] in self.nodes:
            at = self.nodes[at.inputs[0]]
        return at if at.op in _WEIGHTED else node


_WEIGHTED = ("conv", "conv_transpose", "linear", "matmul")
