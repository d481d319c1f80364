"""A network made ready: its state as variables, and its step as one function."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ergometer.core.engine import LEARNING_RATE, MOMENTUM
from ergometer.core.graph import VELOCITY, Graph, Lowered
from ergometer.engines._fold import fold
from ergometer.engines.tensorflow._interpret import FROM_KERNEL, TO_KERNEL, Interpreter
from ergometer.engines.tensorflow._load import tensorflow
from ergometer.engines.tensorflow._trace import NODE


class Session:
    """Parameters, velocities and buffers are variables.

    Constants stay outside of the function: a copy for each pass of its compiler would be several times their size.
    What the compiler would have gained from them, batch norm in the weights, is done before.
    """

    def __init__(self, lowered: Lowered):
        self.tf = tf = tensorflow()
        graph, arrays = lowered.graph, lowered.arrays
        if not graph.parameters:
            graph, arrays = fold(graph, dict(arrays))
        self.graph = graph
        self.kernels = _kernels(graph)
        self.variables = {
            name: tf.Variable(self._laid_out(name, arrays[name]), trainable=name in graph.parameters)
            for name in (*graph.parameters, *graph.buffers)
        }
        self.velocities = {
            name: tf.Variable(tf.zeros_like(self.variables[name]), trainable=False) for name in graph.parameters
        }
        self.constants = {name: tf.constant(self._laid_out(name, arrays[name])) for name in graph.constants}
        self.run = tf.function(self._train if graph.parameters else self._forward, autograph=False)

    def _laid_out(self, name: str, array: Any) -> Any:
        return np.ascontiguousarray(array.transpose(TO_KERNEL)) if name in self.kernels else array

    def feed(self, batch: dict[str, Any]) -> None:
        self.batch = {name: self.tf.constant(batch[name]) for name in self.graph.inputs}

    def step(self, masks: dict[str, Any]) -> None:
        self.last = self.run(self.batch | {name: self.tf.constant(mask) for name, mask in masks.items()})

    def result(self) -> Any:
        return self.last.numpy()

    def state(self) -> Iterator[tuple[str, Any]]:
        held = self.variables | {VELOCITY + name: variable for name, variable in self.velocities.items()}
        for name, variable in held.items():
            array = variable.numpy()
            yield name, array.transpose(FROM_KERNEL) if name.removeprefix(VELOCITY) in self.kernels else array

    def _found(self, given: dict[str, Any]) -> Interpreter:
        tf, graph = self.tf, self.graph
        found = Interpreter(graph)
        for name, held in (self.variables | self.constants | given).items():
            (found.kernels if name in self.kernels else found.first)[name] = held
        for number, node in enumerate(graph.nodes):
            with tf.name_scope(f"{NODE}{number}/"):
                found.add(node)
        return found

    def _forward(self, given: dict[str, Any]) -> Any:
        return self._found(given).plain(self.graph.outputs[0])

    def _train(self, given: dict[str, Any]) -> Any:
        tf = self.tf
        trained = [self.variables[name] for name in self.graph.parameters]
        with tf.GradientTape() as tape:
            found = self._found(given)
            loss = found.plain(self.graph.outputs[0])
        gradients = tape.gradient(loss, trained, unconnected_gradients="zero")
        with tf.name_scope("optimizer/"):
            for name, gradient in zip(self.graph.parameters, gradients, strict=True):
                tf.raw_ops.ResourceApplyMomentum(
                    var=self.variables[name].handle,
                    accum=self.velocities[name].handle,
                    lr=LEARNING_RATE,
                    grad=tf.convert_to_tensor(gradient),
                    momentum=MOMENTUM,
                )
            for name, source in self.graph.updates.items():
                self.variables[name].assign(found.plain(source))
        return loss


def _kernels(graph: Graph) -> set[str]:
    """Weights that only convolutions use."""
    kernels = {node.inputs[1] for node in graph.nodes if node.op in ("conv", "conv_transpose")}
    others = {
        name
        for node in graph.nodes
        for at, name in enumerate(node.inputs)
        if node.op not in ("conv", "conv_transpose") or at != 1
    }
    return kernels.intersection((*graph.parameters, *graph.constants)) - others
