"""An .onnx file as a torch module: its weights become parameters, its nodes torch functions.

Batch-norm and dropout follow the mode of the module, whatever the file was exported for.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from ergometer.core.errors import UnavailableError, UsageError

Arguments = dict[str, Any]
Function = Callable[..., Any]
Node = tuple[str, list[str], list[str], Arguments]

_MODAL = {"BatchNormalization", "Dropout"}  # what they do depends on the mode


def read_onnx(path: Path) -> torch.nn.Module:
    """The file's graph; UsageError if it is corrupt or has an op that is not known."""
    try:
        import onnx
    except ImportError:
        raise UnavailableError("onnx is not installed: pip install 'ergometer[onnx]'.") from None
    try:
        graph = onnx.load(path).graph
        nodes = [_node(onnx, node) for node in graph.node]
        constants = {item.name: torch.from_numpy(onnx.numpy_helper.to_array(item).copy()) for item in graph.initializer}
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path.name} is no readable ONNX file: {first}.") from error
    for kind, _, outputs, arguments in nodes:
        if kind == "Constant":
            constants[outputs[0]] = torch.as_tensor(next(iter(arguments.values())))
    nodes = [node for node in nodes if node[0] != "Constant"]
    unknown = sorted({kind for kind, *_ in nodes} - _FUNCTIONS.keys() - _MODAL)
    if unknown:
        raise UsageError(f"{path.name} has ops that the torch engine does not know: {', '.join(unknown)}.")
    inputs = [item.name for item in graph.input if item.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise UsageError(
            f"{path.name} has {len(inputs)} inputs and {len(graph.output)} outputs: a network of one input and one "
            "output is needed."
        )
    return _Graph(nodes, constants, inputs[0], graph.output[0].name)


def _node(onnx: Any, node: Any) -> Node:
    arguments = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    for name, value in arguments.items():
        if isinstance(value, bytes):
            arguments[name] = value.decode()
        elif isinstance(value, onnx.TensorProto):
            arguments[name] = torch.from_numpy(onnx.numpy_helper.to_array(value).copy())
    return node.op_type, list(node.input), list(node.output), arguments


class _Graph(torch.nn.Module):
    def __init__(self, nodes: list[Node], constants: dict[str, torch.Tensor], entry: str, output: str):
        super().__init__()
        self._nodes, self._entry, self._output = nodes, entry, output
        uses = [(kind, at, name) for kind, names, *_ in nodes for at, name in enumerate(names)]
        used = {name for _, _, name in uses}
        learnt = {name for kind, at, name in uses if not (kind == "BatchNormalization" and at in (3, 4))}
        self._fixed: dict[str, torch.Tensor] = {}  # shapes, axes, limits: they stay on the host
        self._named: dict[str, str] = {}
        for name, value in constants.items():
            if name not in used:
                continue
            attribute = name.replace(".", "/") or "unnamed"  # torch allows no dot in a name
            if not value.is_floating_point() or not value.ndim:
                self._fixed[name] = value
                continue
            self._named[name] = attribute
            if name in learnt:
                self.register_parameter(attribute, torch.nn.Parameter(value))
            else:
                self.register_buffer(attribute, value)
        for number, (kind, names, _, _) in enumerate(nodes):
            if kind == "BatchNormalization":  # its own, even where the file shares them
                self.register_buffer(f"mean_{number}", constants[names[3]].clone())
                self.register_buffer(f"variance_{number}", constants[names[4]].clone())
        last = {name: number for number, (_, names, _, _) in enumerate(nodes) for name in names}
        self._done = [
            [name for name, at in last.items() if at == number and name not in constants]
            for number in range(len(nodes))
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: dict[str, Any] = {self._entry: x, **self._fixed}
        values |= {name: getattr(self, attribute) for name, attribute in self._named.items()}
        for number, (kind, names, outputs, arguments) in enumerate(self._nodes):
            given = [values[name] if name else None for name in names]
            if kind == "BatchNormalization":
                values[outputs[0]] = self._batch_norm(number, *given[:3], **arguments)
            elif kind == "Dropout":
                values[outputs[0]] = self._dropout(*given, **arguments)
            else:
                values[outputs[0]] = _FUNCTIONS[kind](*given, **arguments)
            for name in self._done[number]:
                if name != self._output:
                    values.pop(name, None)  # so that memory is that of the network, and not of all its values
        found: torch.Tensor = values[self._output]
        return found

    def _batch_norm(self, number: int, x: Any, scale: Any, bias: Any, **arguments: Any) -> Any:
        momentum, epsilon = arguments.get("momentum", 0.9), arguments.get("epsilon", 1e-5)
        mean, variance = getattr(self, f"mean_{number}"), getattr(self, f"variance_{number}")
        return functional.batch_norm(x, mean, variance, scale, bias, self.training, 1 - momentum, epsilon)

    def _dropout(self, x: Any, ratio: Any = None, mode: Any = None, **arguments: Any) -> Any:
        return functional.dropout(x, float(arguments.get("ratio", 0.5) if ratio is None else ratio), self.training)


def _padded(x: Any, pads: list[int] | None, value: float = 0.0) -> tuple[Any, list[int]]:
    """(input, symmetric padding): what torch cannot pad by itself is padded here."""
    if not pads:
        return x, [0] * (x.ndim - 2)
    half = len(pads) // 2
    if pads[:half] == pads[half:]:
        return x, list(pads[:half])
    ends = [side for begin, end in reversed(list(zip(pads[:half], pads[half:], strict=True))) for side in (begin, end)]
    return functional.pad(x, ends, value=value), [0] * half


def _refuse_automatic(auto_pad: str) -> None:
    if auto_pad not in ("NOTSET", "VALID"):
        raise UsageError(f"auto_pad={auto_pad} is not known: export with explicit pads.")


def _conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    strides: Any = None,
    pads: Any = None,
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    auto_pad: str = "NOTSET",
) -> Any:
    _refuse_automatic(auto_pad)
    x, padding = _padded(x, pads)
    one = [1] * (weight.ndim - 2)
    convolve: Function = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[weight.ndim]
    return convolve(x, weight, bias, list(strides or one), padding, list(dilations or one), group)


def _max_pool(
    x: Any,
    *,
    kernel_shape: Any,
    strides: Any = None,
    pads: Any = None,
    ceil_mode: int = 0,
    dilations: Any = None,
    auto_pad: str = "NOTSET",
    storage_order: int = 0,
) -> Any:
    _refuse_automatic(auto_pad)
    x, padding = _padded(x, pads, float("-inf"))
    pool: Function = {3: functional.max_pool1d, 4: functional.max_pool2d, 5: functional.max_pool3d}[x.ndim]
    one = [1] * len(kernel_shape)
    return pool(x, list(kernel_shape), list(strides or one), padding, list(dilations or one), ceil_mode=bool(ceil_mode))


def _average_pool(
    x: Any,
    *,
    kernel_shape: Any,
    strides: Any = None,
    pads: Any = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    auto_pad: str = "NOTSET",
) -> Any:
    _refuse_automatic(auto_pad)
    half = len(pads or ()) // 2
    if pads and pads[:half] != pads[half:]:
        raise UsageError("AveragePool with uneven pads is not known: export with even pads.")
    pool: Function = {3: functional.avg_pool1d, 4: functional.avg_pool2d, 5: functional.avg_pool3d}[x.ndim]
    padding = list(pads[:half]) if pads else [0] * len(kernel_shape)
    strides = list(strides or [1] * len(kernel_shape))
    return pool(x, list(kernel_shape), strides, padding, bool(ceil_mode), bool(count_include_pad))


def _gemm(a: Any, b: Any, c: Any = None, **arguments: Any) -> Any:
    alpha, beta = arguments.get("alpha", 1.0), arguments.get("beta", 1.0)
    a = a.T if arguments.get("transA") else a
    b = b if arguments.get("transB") else b.T
    if alpha == beta == 1.0:
        return functional.linear(a, b, c)
    product = alpha * functional.linear(a, b)
    return product if c is None else product + beta * c


def _reshape(x: Any, shape: Any, *, allowzero: int = 0) -> Any:
    sizes = [x.shape[at] if size == 0 and not allowzero else size for at, size in enumerate(shape.tolist())]
    return x.reshape(sizes)


def _axes(axes: Any) -> list[int]:
    """From an input (newer files) or an attribute (older ones)."""
    return list(axes.tolist() if isinstance(axes, torch.Tensor) else axes or [])


def _reduce_mean(x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
    chosen = _axes(axes)
    if not chosen and noop_with_empty_axes:
        return x
    return x.mean(chosen or list(range(x.ndim)), keepdim=bool(keepdims))


def _unsqueeze(x: Any, axes: Any = None) -> Any:
    chosen = _axes(axes)
    for axis in sorted(axis % (x.ndim + len(chosen)) for axis in chosen):
        x = x.unsqueeze(axis)
    return x


def _squeeze(x: Any, axes: Any = None) -> Any:
    return x.squeeze(tuple(_axes(axes))) if _axes(axes) else x.squeeze()


def _flatten(x: Any, *, axis: int = 1) -> Any:
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _clip(x: Any, low: Any = None, high: Any = None, **old: Any) -> Any:
    low, high = (old.get("min") if low is None else low), (old.get("max") if high is None else high)
    return x.clamp(None if low is None else float(low), None if high is None else float(high))


def _softmax(x: Any, *, axis: int = -1) -> Any:
    return x.softmax(axis)


def _concat(*parts: Any, axis: int) -> Any:
    return torch.cat(parts, axis)


def _transpose(x: Any, *, perm: Any = None) -> Any:
    return x.permute(*(perm or reversed(range(x.ndim))))


def _gather(x: Any, index: Any, *, axis: int = 0) -> Any:
    axis %= x.ndim
    index = index.to(x.device)
    index = torch.where(index < 0, index + x.shape[axis], index)
    return x.index_select(axis, index.reshape(-1)).reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _div(a: Any, b: Any) -> Any:
    whole = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc" if whole else None)


def _lrn(x: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    return functional.local_response_norm(x, size, alpha, beta, bias)


def _leaky_relu(x: Any, *, alpha: float = 0.01) -> Any:
    return functional.leaky_relu(x, alpha)


def _global_average_pool(x: Any) -> Any:
    return x.mean(list(range(2, x.ndim)), keepdim=True)


def _shape(x: Any, *, start: int = 0, end: int | None = None) -> Any:
    return torch.tensor(x.shape[start:end])


_FUNCTIONS: dict[str, Function] = {
    "Add": torch.add,
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _div,
    "Erf": torch.erf,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "HardSwish": functional.hardswish,
    "Identity": lambda x: x,
    "LRN": _lrn,
    "LeakyRelu": _leaky_relu,
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "ReduceMean": _reduce_mean,
    "Relu": torch.relu,
    "Reshape": _reshape,
    "Shape": _shape,
    "Sigmoid": torch.sigmoid,
    "Softmax": _softmax,
    "Sqrt": torch.sqrt,
    "Squeeze": _squeeze,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
