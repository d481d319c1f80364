"""Batch normalisation of inference taken into the weights of the convolution before it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from ergometer.core.graph import Graph, Node, Value


def fold(graph: Graph, arrays: dict[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """The same function of its inputs. A folded convolution makes what its normalisation made, under that name."""
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    uses.update(graph.outputs)
    values, arrays = dict(graph.values), dict(arrays)
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        before = nodes.get(node.inputs[0])
        if node.op != "batch_norm" or before is None or before.op != "conv" or uses[node.inputs[0]] > 1:
            nodes[node.outputs[0]] = node
            continue
        made = _folded(before, node, arrays)
        values.update({name: Value(arrays[name].shape) for name in made.inputs[1:]})
        del nodes[node.inputs[0]], values[node.inputs[0]]
        nodes[node.outputs[0]] = made
    used = {name for node in nodes.values() for name in (*node.inputs, *node.outputs)} | {*graph.inputs, *graph.outputs}
    return (
        replace(
            graph,
            values={name: value for name, value in values.items() if name in used},
            nodes=tuple(nodes.values()),
            constants=tuple(name for name in arrays if name in used),
        ),
        {name: array for name, array in arrays.items() if name in used},
    )


def _folded(conv: Node, norm: Node, arrays: dict[str, Any]) -> Node:
    """Adds the new weight and bias to the arrays."""
    x, *state = conv.inputs
    weight, *bias = (arrays[name].astype(np.float64) for name in state)
    scale, shift, mean, variance = (arrays[name].astype(np.float64) for name in norm.inputs[1:])
    factor = scale / np.sqrt(variance + norm.attributes["epsilon"])
    name = norm.outputs[0]
    arrays[f"{name}/weight"] = (weight * factor[:, None, None, None]).astype(np.float32)
    arrays[f"{name}/bias"] = (shift + (sum(bias) - mean) * factor).astype(np.float32)
    return replace(conv, inputs=(x, f"{name}/weight", f"{name}/bias"), outputs=norm.outputs)
