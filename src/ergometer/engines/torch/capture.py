"""A torch module, and its loss in training, as a canonical graph: torch.export, then the rules of aten.py."""

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ergometer.core.errors import UnavailableError
from ergometer.core.graph import Graph
from ergometer.engines.torch.aten import Rules, array_of

if TYPE_CHECKING:
    import torch
    from torch.fx import Node as Fx

Arrays = dict[str, Any]
_MODULE = "network"
_COMPANION = "companion"


def capture(
    module: "torch.nn.Module",
    batch: "Sequence[torch.Tensor]",
    names: Sequence[str],
    *,
    loss: Callable[[Any, Any, tuple[Any, ...]], Any] | None = None,
    companion: "torch.nn.Module | None" = None,
    trained: str = "",
) -> tuple[Graph, Arrays]:
    """The graph and its parameters, buffers and constants. With a loss: one training step's forward pass.

    names: of the fields in the batch. trained: the prefix of the parameters that this loss trains.
    """
    import torch

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = module
            self.companion = companion

        def forward(self, *fields: torch.Tensor) -> Any:
            return loss(self.network, self.companion, fields) if loss else self.network(*fields)

    before = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it remarks on what modules like LSTM keep for themselves
            program = torch.export.export(Whole(), tuple(batch), strict=False)
    except UnavailableError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnavailableError(f"torch.export cannot take this network: {first}") from error
    finally:
        for name, buffer in module.named_buffers():  # tracing must not move the running statistics
            buffer.data.copy_(before[name])
    return _Emitter(program, names, trained, training=loss is not None).emit()


class _Emitter(Rules):
    def __init__(self, program: Any, names: Sequence[str], trained: str, *, training: bool):
        self.program, self.training = program, training
        super().__init__()
        self.fields = names
        self.trained = trained

    def emit(self) -> tuple[Graph, Arrays]:
        signature = self.program.graph_signature
        found: dict[Any, Any] = {}
        inputs = dict(zip(signature.user_inputs, self.fields, strict=True))
        for node in self.program.graph.nodes:
            if node.op != "placeholder":
                continue
            if node.name in inputs:
                found[node] = self.declare(inputs[node.name], node.meta["val"])
            else:
                found[node] = self._state(node.name, node.meta["val"])
        (result,) = self._run(self.program.graph, found, self.program.graph_module)
        used = {name for node in self.nodes for name in node.inputs} | {result}
        graph = Graph(
            values=self.values,
            nodes=tuple(self.nodes),
            inputs=tuple(name for name in self.fields if name in used),
            outputs=(result,),
            updates=self.updates,
            masks=self.masks,
            **{role: tuple(name for name in found if name in used) for role, found in self.roles.items()},
        )
        kept = {*graph.inputs, *graph.masks, *graph.parameters, *graph.buffers, *graph.constants, *graph.outputs}
        kept |= {name for node in self.nodes for name in (*node.inputs, *node.outputs)}
        for name in set(self.values) - kept:
            self.values.pop(name)
            self.arrays.pop(name, None)
        graph.check()
        return graph, self.arrays

    def _state(self, placeholder: str, value: Any) -> str:
        signature = self.program.graph_signature
        path = (
            signature.inputs_to_parameters.get(placeholder)
            or signature.inputs_to_buffers.get(placeholder)
            or signature.inputs_to_lifted_tensor_constants[placeholder]
        )
        tensor = self.program.state_dict.get(path)
        if tensor is None:
            tensor = self.program.constants[path]
        name = path.removeprefix(f"{_MODULE}.")
        ours = path.startswith(f"{_MODULE}.")
        role = "constants"
        if ours and placeholder in signature.inputs_to_parameters and self.training:
            if tensor.requires_grad and name.startswith(self.trained):
                role = "parameters"
        elif ours and placeholder in signature.inputs_to_buffers and self.training:
            role = "buffers"
        self.roles[role].append(name)
        self.arrays[name] = array_of(tensor)
        return self.declare(name, value)

    def _run(self, graph: Any, found: dict[Any, Any], owner: Any) -> tuple[Any, ...]:
        for node in graph.nodes:
            if node.op == "get_attr":
                found[node] = getattr(owner, node.target)
            elif node.op == "call_function":
                self.layer = self._layer_of(node)
                found[node] = self._call(node, found)
            elif node.op == "output":
                return tuple(found[item] for item in node.args[0])
        raise AssertionError("a graph without an output")

    def _layer_of(self, node: "Fx") -> str:
        stack = node.meta.get("nn_module_stack") or {}
        path = next((path for path, _ in reversed(stack.values())), "")
        return str(path).removeprefix(_MODULE).removeprefix(".")

    def _call(self, node: "Fx", found: dict[Any, Any]) -> Any:
        import torch

        def given(item: Any) -> Any:
            if isinstance(item, torch.fx.Node):
                return found[item]
            if isinstance(item, (list, tuple)):
                return [given(entry) for entry in item]
            return item

        target: Any = node.target
        if target is operator.getitem:
            source, index = node.args
            return given(source)[index]
        if str(target) == "wrap_with_set_grad_enabled":
            return self._without_gradient(node, given)
        name = str(target).removeprefix("aten.")
        base = name.partition(".")[0]
        if base == "add_" and str(given(node.args[0])).endswith("num_batches_tracked"):
            return given(node.args[0])  # counts batches; enters no result
        if not hasattr(target, "_schema"):
            raise self.refusal(str(target))
        values = dict(
            zip((argument.name for argument in target._schema.arguments), map(given, node.args), strict=False)
        )
        for argument in target._schema.arguments:
            if argument.name not in values:
                values[argument.name] = given(node.kwargs.get(argument.name, argument.default_value))
        if base in _MADE:
            return self._constant(target(*self._concrete(node.args, found), **node.kwargs))
        rule = self.rule(base)
        if rule is None:
            raise self.refusal(name)
        return rule(values | {"meta": node.meta["val"]})

    def _concrete(self, args: Iterable[Any], found: dict[Any, Any]) -> list[Any]:
        import torch

        given = [found.get(item, item) if isinstance(item, torch.fx.Node) else item for item in args]
        return [
            torch.zeros(self.values[item].shape) if isinstance(item, str) and item in self.values else item
            for item in given
        ]

    def _without_gradient(self, node: "Fx", given: Callable[[Any], Any]) -> Any:
        """What runs without gradient is taken in as it is: nothing in it may be trained by this loss."""
        _, submodule, *args = node.args
        inner = given(submodule)
        placeholders = [item for item in inner.graph.nodes if item.op == "placeholder"]
        passed = [given(item) for item in args]
        if any(self._trains(name) for name in passed):
            raise UnavailableError(f"the loss stops a gradient in layer {self.layer!r}: only torch runs this network.")
        return self._run(inner.graph, dict(zip(placeholders, passed, strict=True)), inner)

    def _trains(self, name: Any) -> bool:
        reached = set(self.roles["parameters"])
        for node in self.nodes:
            if reached.intersection(node.inputs):
                reached.update(node.outputs)
        return name in reached


# Operations that make a tensor out of shapes and numbers alone: computed once.
_MADE = ("arange", "zeros", "ones", "full", "full_like", "zeros_like", "ones_like")
