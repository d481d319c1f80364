"""A canonical graph run by torch, in any precision: what other engines are compared with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ergometer.core.graph import RESULT, VELOCITY, Graph, Lowered, Node

if TYPE_CHECKING:
    import torch


def train(
    graph: Graph,
    arrays: Mapping[str, Any],
    batch: dict[str, Any],
    masks: Sequence[dict[str, Any]],
    *,
    rate: float,
    momentum: float,
) -> "list[dict[str, Any]]":
    """Train on one batch in double precision, a step for each set of masks.

    After each step what Engine.rehearse gives.
    """
    import torch

    state = {name: _double(array) for name, array in arrays.items()}
    inputs = [_double(batch[name]) for name in graph.inputs]
    velocity = {name: torch.zeros_like(state[name]) for name in graph.parameters}
    after = []
    for drawn in masks:
        for name in graph.parameters:
            state[name] = state[name].detach().requires_grad_(True)
        found = run(graph, state | {name: _double(mask) for name, mask in drawn.items()}, inputs)
        (loss,) = (found[name] for name in graph.outputs)
        gradients = torch.autograd.grad(loss, [state[name] for name in graph.parameters], allow_unused=True)
        for name, gradient in zip(graph.parameters, gradients, strict=True):
            velocity[name] = momentum * velocity[name] + (0.0 if gradient is None else gradient)
            state[name] = state[name].detach() - rate * velocity[name]
        state |= {name: found[source].detach() for name, source in graph.updates.items()}
        kept = {name: state[name] for name in (*graph.parameters, *graph.updates)}
        kept |= {VELOCITY + name: tensor for name, tensor in velocity.items()}
        after.append({name: t.numpy().copy() for name, t in kept.items()} | {RESULT: loss.detach().numpy()})
    return after


def infer(graph: Graph, arrays: Mapping[str, Any], batch: dict[str, Any]) -> Any:
    """The scores in double precision."""
    state = {name: _double(array) for name, array in arrays.items()}
    return run(graph, state, [_double(batch[name]) for name in graph.inputs])[graph.outputs[0]].detach().numpy()


def module_of(lowered: Lowered, names: Sequence[str]) -> "torch.nn.Module":
    """A torch module that runs the graph. names: of the fields that it is called with. Masks are set from outside."""
    import torch

    class GraphModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masks: dict[str, Any] = {}
            self.known: dict[str, torch.Tensor] = {}
            graph = lowered.graph
            for number, name in enumerate((*graph.parameters, *graph.buffers, *graph.constants)):
                tensor = torch.from_numpy(lowered.arrays[name].copy())
                if name in graph.parameters:
                    self.register_parameter(f"p{number}", torch.nn.Parameter(tensor))
                else:
                    self.register_buffer(f"b{number}", tensor)
                self.known[name] = self.get_parameter(f"p{number}") if name in graph.parameters else tensor

        def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
            return ((name, t) for name, t in self.known.items() if isinstance(t, torch.nn.Parameter))

        def named_buffers(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.Tensor]]:
            return ((name, t) for name, t in self.known.items() if not isinstance(t, torch.nn.Parameter))

        def forward(self, *fields: torch.Tensor) -> torch.Tensor:
            given = dict(zip(names, fields, strict=False))
            masks = {name: torch.from_numpy(mask) for name, mask in self.masks.items()}
            found = run(lowered.graph, self.known | masks, [given[name] for name in lowered.graph.inputs])
            for name, source in lowered.graph.updates.items():
                self.known[name].copy_(found[source].detach())
            return found[lowered.graph.outputs[0]]

    return GraphModule()


def _double(array: Any) -> "torch.Tensor":
    import torch

    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def run(graph: Graph, state: "dict[str, torch.Tensor]", inputs: "Sequence[torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Every tensor of the graph by its name. state: parameters, buffers, constants and masks."""
    found = dict(state) | dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        results = _RULES[node.op](node, *(found[name] for name in node.inputs))
        found |= zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True)
    return found


def _rules() -> dict[str, Callable[..., Any]]:
    import torch
    from torch.nn import functional as F  # noqa: N812 - torch's own convention

    def padded(x: Any, padding: Sequence[int], value: float) -> Any:
        top, left, bottom, right = padding
        return F.pad(x, (left, right, top, bottom), value=value)

    def conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
        a = node.attributes
        x = padded(x, a["padding"], 0.0)
        return F.conv2d(x, weight, bias, stride=a["stride"], dilation=a["dilation"], groups=a["groups"])

    def conv_transpose(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
        a = node.attributes
        return F.conv_transpose2d(x, weight, bias, a["stride"], a["padding"], a["output_padding"])

    def batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        a = node.attributes
        if not a["training"]:
            return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, a["epsilon"])
        mean, variance = mean.detach().clone(), variance.detach().clone()
        return F.batch_norm(x, mean, variance, scale, bias, True, a["momentum"], a["epsilon"]), mean, variance

    def avg_pool(node: Node, x: Any) -> Any:
        a = node.attributes
        sums = F.avg_pool2d(padded(x, a["padding"], 0.0), a["kernel"], a["stride"])
        if a["counts_padding"]:
            return sums
        return sums / F.avg_pool2d(padded(torch.ones_like(x), a["padding"], 0.0), a["kernel"], a["stride"])

    def unary(name: str) -> Callable[..., Any]:
        rule: Callable[[Any], Any] = getattr(torch, name)
        return lambda _, x: rule(x)

    def pad(node: Node, x: Any) -> Any:
        before, after = node.attributes["before"], node.attributes["after"]
        return F.pad(x, [side for pair in zip(reversed(before), reversed(after), strict=True) for side in pair])

    def cut(node: Node, x: Any) -> Any:
        a = node.attributes
        return x.narrow(a["axis"], a["start"], a["stop"] - a["start"])

    return {
        "conv": conv,
        "conv_transpose": conv_transpose,
        "linear": lambda _, x, weight, bias=None: F.linear(x, weight, bias),
        "matmul": lambda _, a, b: a @ b,
        "batch_norm": batch_norm,
        "layer_norm": lambda n, x, s, b: F.layer_norm(x, x.shape[-1:], s, b, n.attributes["epsilon"]),
        "max_pool": lambda n, x: F.max_pool2d(
            padded(x, n.attributes["padding"], float("-inf")), n.attributes["kernel"], n.attributes["stride"]
        ),
        "avg_pool": avg_pool,
        **{name: unary(name) for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "neg", "erf")},
        "gelu": lambda _, x: F.gelu(x),
        "clip": lambda n, x: x.clamp(n.attributes["low"], n.attributes["high"]),
        "leaky_relu": lambda n, x: F.leaky_relu(x, n.attributes["slope"]),
        "power": lambda n, x: x ** n.attributes["exponent"],
        "add": lambda _, a, b: a + b,
        "sub": lambda _, a, b: a - b,
        "mul": lambda _, a, b: a * b,
        "div": lambda _, a, b: a / b,
        "reshape": lambda n, x: x.reshape(n.attributes["shape"]),
        "transpose": lambda n, x: x.permute(n.attributes["axes"]),
        "concat": lambda n, *items: torch.cat(items, n.attributes["axis"]),
        "slice": cut,
        "pad": pad,
        "softmax": lambda _, x: x.softmax(-1),
        "log_softmax": lambda _, x: x.log_softmax(-1),
        "reduce_mean": lambda n, x: x.mean(n.attributes["axes"], n.attributes["keep"]),
        "reduce_sum": lambda n, x: x.sum(n.attributes["axes"], n.attributes["keep"]),
        "gather_rows": lambda _, table, indices: F.embedding(indices, table),
        "pick": lambda _, x, indices: x.gather(1, indices[:, None])[:, 0],
        "cross_entropy": lambda _, scores, labels: F.cross_entropy(scores, labels),
    }


_RULES = _rules()
