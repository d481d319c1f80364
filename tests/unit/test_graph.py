"""The canonical graph: what is not one is refused, and a smooth network keeps its shapes."""

import json
from typing import Any

import pytest

from ergometer.core.errors import StoreError
from ergometer.core.graph import Graph, Node, Value


def graph() -> Graph:
    return Graph(
        values={
            "x": Value((2, 3)),
            "w": Value((4, 3)),
            "fc/linear": Value((2, 4)),
            "act/relu": Value((2, 4)),
            "y": Value((2,), "int64"),
            "loss": Value(()),
        },
        nodes=(
            Node("linear", ("x", "w"), ("fc/linear",), "fc"),
            Node("relu", ("fc/linear",), ("act/relu",), "act"),
            Node("cross_entropy", ("act/relu", "y"), ("loss",)),
        ),
        inputs=("x", "y"),
        outputs=("loss",),
        parameters=("w",),
    )


def test_a_graph_survives_json() -> None:
    assert Graph.from_json(json.loads(json.dumps(graph().to_json()))) == graph()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data.pop("nodes"), "not a graph"),
        (lambda data: data["nodes"][0].update(op="exec"), "operation 'exec'"),
        (lambda data: data["nodes"].reverse(), "before it exists"),
        (lambda data: data["values"].pop("w"), "'w' is not one of its tensors"),
        (lambda data: data.update(outputs=["elsewhere"]), "elsewhere"),
        (lambda data: data.update(updates={"w": "nothing"}), "nothing"),
        (lambda data: data.update(values=3), "not a graph"),
    ],
)
def test_what_is_not_a_graph_is_refused(damage: Any, words: str) -> None:
    data = json.loads(json.dumps(graph().to_json()))
    damage(data)
    with pytest.raises(StoreError, match=words):
        Graph.from_json(data)


def test_a_smooth_graph_has_no_relu_but_all_its_tensors() -> None:
    smooth = graph().smooth()
    smooth.check()
    assert [node.op for node in smooth.nodes] == ["linear", "sigmoid", "mul", "cross_entropy"]
    assert set(smooth.values) == set(graph().values) | {"act/relu/gate"}


def test_bytes_are_those_of_the_tensors() -> None:
    assert graph().bytes_of(("x", "w", "y")) == 4 * 6 + 4 * 12 + 8 * 2
