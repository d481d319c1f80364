"""A step on two devices: products go where they are placed, the rest follows its largest input, and what the
accelerator lacks is on the host.

The gradient is worked out operation by operation, so that the products of the forward pass, of the input gradient and
of the filter gradient can each be somewhere else; a tensor that is needed elsewhere is copied there once.
"""

from collections.abc import Collection, Sequence
from typing import Any

from ergometer.core.graph import Graph, Node
from ergometer.engines.tinygrad._devices import get_kernel
from ergometer.engines.tinygrad._products import Products
from ergometer.engines.tinygrad._rules import KEPT, rules

PRODUCTS = ("conv", "conv_transpose", "linear", "matmul")
_KINDS = {"float32": "float32", "int64": "int32", "int32": "int32", "bool": "bool"}
# What only moves values: tinygrad joins two of them into one, and the gradient of the first could not be asked for.
_MOVING = ("reshape", "transpose", "concat", "slice", "pad")


class Placed:
    """places: those of forward, input and filter whose products the accelerator gets. lacking: first results of nodes
    that it cannot run."""

    def __init__(
        self,
        graph: Graph,
        products: Products,
        host: str,
        accelerator: str,
        places: Sequence[str],
        lacking: Collection[str],
    ):
        self.graph, self.rules, self.host, self.lacking = graph, rules(products), host, lacking
        self.where = {kind: accelerator if kind in places else host for kind in ("forward", "input", "filter")}
        self._copies: dict[tuple[str, str], Any] = {}
        self.found: dict[str, Any] = {}
        self._moved = {name for node in graph.nodes if node.op in _MOVING for name in node.outputs}

    def forward(self, held: dict[str, Any]) -> dict[str, Any]:
        """Every tensor of the graph, from those that are held."""
        self.found = dict(held)
        for node in self.graph.nodes:
            where = self.where["forward"] if node.op in PRODUCTS else self._follow(node)
            where = self.host if node.outputs[0] in self.lacking else where
            results = self.rules[node.op](node, *self._given(node, where))
            self.found |= zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True)
        return self.found

    def gradients(self) -> list[Any]:
        """Of the parameters, in their order, after forward()."""
        from tinygrad import Tensor

        needed = self._needed()
        (loss, *_) = self.graph.outputs
        found = {loss: Tensor.ones(*self.found[loss].shape, device=self.found[loss].device)}
        for node in reversed(self.graph.nodes):
            gradient = found.pop(node.outputs[0], None)
            if gradient is None:
                continue
            gradient = gradient.contiguous() if node.op in PRODUCTS else gradient
            for name, where in self._wanted(node, needed, gradient.device).items():
                part = self._part(node, name, where, gradient.to(where))
                found[name] = found[name] + part.to(found[name].device) if name in found else part
        return [found[name].to(self.found[name].device) for name in self.graph.parameters]

    def _part(self, node: Node, name: str, where: str, gradient: Any) -> Any:
        """What this operation adds to the gradient of one of its inputs; the others are held, since they may have been
        made from that input."""
        given = self._given(node, where)
        chosen = [tensor if own == name else tensor.detach() for own, tensor in zip(node.inputs, given, strict=True)]
        results = self.rules[node.op](node, *chosen)
        result = results[0] if isinstance(results, tuple) else results
        return result.gradient(given[node.inputs.index(name)], gradient=gradient)[0]

    def _needed(self) -> set[str]:
        """What depends on a parameter."""
        needed = set(self.graph.parameters)
        for node in self.graph.nodes:
            if needed & set(node.inputs):
                needed.add(node.outputs[0])
        return needed

    def _wanted(self, node: Node, needed: set[str], follow: str) -> dict[str, str]:
        """Input -> where its gradient is worked out."""
        first = node.inputs[0]
        products = {name: self.where["input" if name == first else "filter"] for name in node.inputs}
        where = products if node.op in PRODUCTS else dict.fromkeys(node.inputs, follow)
        if node.outputs[0] in self.lacking:
            where = dict.fromkeys(node.inputs, self.host)
        return {name: place for name, place in where.items() if name in needed}

    def _given(self, node: Node, where: str) -> list[Any]:
        given = [self._at(name, where) for name in node.inputs]
        return [tensor.contiguous() for tensor in given] if node.op in KEPT else given

    def _at(self, name: str, where: str) -> Any:
        """The tensor on that device."""
        if (name, where) not in self._copies:
            tensor = self.found[name]
            moved = tensor if tensor.device == where else tensor.contiguous().to(where)
            self._copies[name, where] = moved.contiguous() if name in self._moved else moved
        return self._copies[name, where]

    def _follow(self, node: Node) -> str:
        return str(max((self.found[name] for name in node.inputs), key=lambda tensor: tensor.numel()).device)


def find_lacking(graph: Graph, products: Products, accelerator: str) -> dict[str, str]:
    """What the accelerator cannot run: first result of a node -> why. Each is compiled by itself."""
    from tinygrad import Tensor
    from tinygrad.device import CompileError
    from tinygrad.engine.realize import compile_linear

    found, known = {}, rules(products)
    for node in graph.nodes:
        values = [graph.values[name] for name in node.inputs]
        given = [Tensor.empty(*value.shape, dtype=_KINDS[value.dtype], device=accelerator) for value in values]
        try:
            results = known[node.op](node, *given)
            results = list(results) if isinstance(results, tuple) else [results]
            floats = [tensor for tensor in given if tensor.is_floating_point()]
            if floats and graph.parameters:
                results += results[0].sum().gradient(*floats)
            for call in compile_linear(results[0].schedule_linear(*results[1:])).src:
                get_kernel(accelerator, call.src[0])
        except (CompileError, RuntimeError) as error:
            found[node.outputs[0]] = (str(error).splitlines() or [type(error).__name__])[0]
    return found
