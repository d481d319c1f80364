"""LiteRT (TensorFlow Lite): the whole training step in its built-in operations, written without TensorFlow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.core.graph import Graph, Lowered
from ergometer.engines._portable import Portable

_MODEL, _PLACES = "step.tflite", "places.json"


class LiteRT(Portable):
    name = "litert"
    title = "LiteRT, built-in operations alone"
    extra = "litert"
    package = "ai_edge_litert"
    distribution = "ai-edge-litert"
    oldest = (2, 1)
    untraced = "its Python interface has no profiler: a step is one call"

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path) -> None:
        from ergometer.engines._fold import fold
        from ergometer.engines._gradients import inference_graph, training_graph
        from ergometer.engines.litert._lower import Lowering

        if graph.parameters:
            step, numbers = training_graph(graph)
        else:
            graph, arrays = fold(graph, arrays)
            step, numbers = inference_graph(graph)
        lowering = Lowering(step, arrays | numbers)
        lowering.run()
        given = {name: lowering.first(name) for name in (*step.inputs, *step.masks, *step.buffers)}
        made = {name: lowering.first(name) for name in step.outputs}
        updates = {name: lowering.take_as(source, name) for name, source in step.updates.items()}
        outputs = [*(tensor for tensor, _ in made.values()), *updates.values()]
        lowering.write(folder / _MODEL, [tensor for tensor, _ in given.values()], outputs)
        (folder / _PLACES).write_text(json.dumps({"given": given, "made": made, "updates": updates}))

    def open(self, lowered: Lowered, device: str, threads: int) -> "_Session":
        return _Session(lowered, threads)


class _Session:
    """State goes in and comes out of every step as tensors of the interpreter.

    Resource variables would save that copy, but XNNPACK reads garbage, without a word, where two handles of one
    variable meet in a graph (LiteRT 2.3.0).
    """

    def __init__(self, lowered: Lowered, threads: int):
        from ai_edge_litert.interpreter import Interpreter

        places = json.loads((lowered.folder / _PLACES).read_text())
        self.given: dict[str, tuple[int, list[int]]] = places["given"]
        self.made: dict[str, tuple[int, list[int]]] = places["made"]
        self.updates: dict[str, int] = places["updates"]
        self.graph = lowered.graph
        self.interpreter: Any = Interpreter(model_path=str(lowered.folder / _MODEL), num_threads=threads)
        self.interpreter.allocate_tensors()
        for name in self.given:
            if name in lowered.arrays:
                self._fill(name, lowered.arrays[name])
            elif name not in self.graph.inputs:
                self._fill(name, np.float32(0))

    def _view(self, tensor: int) -> Any:
        """The interpreter's own memory: not to be kept, it does not run while somebody holds it."""
        return self.interpreter.tensor(tensor)()

    def _fill(self, name: str, array: Any) -> None:
        """Straight into its memory: a copy in between would be part of the peak that is measured."""
        tensor, order = self.given[name]
        self._view(tensor)[...] = np.transpose(array, order) if array.ndim else array

    def feed(self, batch: dict[str, Any]) -> None:
        for name, array in batch.items():
            self._fill(name, array)

    def step(self, masks: dict[str, Any]) -> None:
        for name, mask in masks.items():
            self._fill(name, mask)
        self.interpreter.invoke()
        for name, tensor in self.updates.items():
            self.interpreter.set_tensor(self.given[name][0], self._view(tensor))

    def result(self) -> Any:
        ((tensor, order),) = self.made.values()
        return self._plain(tensor, order).copy()

    def state(self) -> Iterator[tuple[str, Any]]:
        for name, (tensor, order) in self.given.items():
            if name not in self.graph.inputs and name not in self.graph.masks:
                yield name, self._plain(tensor, order)

    def _plain(self, tensor: int, order: list[int]) -> Any:
        return np.transpose(self._view(tensor), np.argsort(order))


ENGINE = LiteRT

__all__ = ["ENGINE"]
