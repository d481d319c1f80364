"""An .onnx file as a torch module: its weights become parameters, its nodes torch functions.

Batch-norm and dropout follow the mode of the module, whatever the file was exported for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from ergometer.core.errors import UnavailableError, UsageError

Arguments = dict[str, Any]
Function = Callable[..., Any]


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
    unknown = sorted({kind for kind, *_ in nodes if kind not in _FUNCTIONS and kind != "BatchNormalization"})
    if unknown:
        raise UsageError(f"{path.name} has ops that the torch engine does not know: {', '.join(unknown)}.")
    inputs = [item.name for item in graph.input if item.name not in constants]
    if len(graph.output) != 1 or not inputs:
        raise UsageError(f"{path.name} has {len(inputs)} inputs and {len(graph.output)} outputs: one output is needed.")
    return _Graph(nodes, constants, inputs, graph.output[0].name)


def _node(onnx: Any, node: Any) -> tuple[str, list[str], list[str], Arguments]:
    arguments = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    for name, value in arguments.items():
        if isinstance(value, bytes):
            arguments[name] = value.decode()
        elif isinstance(value, onnx.TensorProto):
            arguments[name] = torch.from_numpy(onnx.numpy_helper.to_array(value).copy())
    return node.op_type, list(node.input), list(node.output), arguments


class _Graph(torch.nn.Module):
    def __init__(
        self,
        nodes: list[tuple[str, list[str], list[str], Arguments]],
        constants: dict[str, torch.Tensor],
        inputs: list[str],
        output: str,
    ):
        super().__init__()
        self._nodes, self._inputs, self._output = nodes, inputs, output
        statistics = {name for kind, names, *_ in nodes if kind == "BatchNormalization" for name in names[3:5]}
        self._names = {name: name.replace(".", "/") for name in constants}  # torch allows no dot in a name
        for name, value in constants.items():
            if value.is_floating_point() and value.ndim and name not in statistics:
                self.register_parameter(self._names[name], torch.nn.Parameter(value))
            else:
                self.register_buffer(self._names[name], value)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        values |= {name: getattr(self, attribute) for name, attribute in self._names.items()}
        for kind, names, outputs, arguments in self._nodes:
            given = [values[name] if name else None for name in names]
            if kind == "BatchNormalization":
                result = self._batch_norm(*given, **arguments)
            elif kind == "Dropout":
                result = self._dropout(*given, **arguments)
            else:
                result = _FUNCTIONS[kind](*given, **arguments)
            values[outputs[0]] = result
        found: torch.Tensor = values[self._output]
        return found

    def _batch_norm(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, **arguments: Any) -> Any:
        momentum, epsilon = arguments.get("momentum", 0.9), arguments.get("epsilon", 1e-5)
        return functional.batch_norm(x, mean, variance, scale, bias, self.training, 1 - momentum, epsilon)

    def _dropout(self, x: Any, ratio: Any = None, mode: Any = None, **_: Any) -> Any:
        return functional.dropout(x, float(ratio) if ratio is not None else 0.5, self.training)


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
    pool: Function = {3: functional.max_pool1d, 4: functional.max_pool2d}[x.ndim]
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
    pool: Function = {3: functional.avg_pool1d, 4: functional.avg_pool2d}[x.ndim]
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


def _reduce_mean(x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0, **old: Any) -> Any:
    chosen = axes.tolist() if axes is not None else old.get("axes")
    return x.mean(list(chosen) if chosen else list(range(x.ndim)), keepdim=bool(keepdims))


def _axes(axes: Any, old: Arguments) -> list[int]:
    return list(axes.tolist() if axes is not None else old.get("axes", []))


def _unsqueeze(x: Any, axes: Any = None, **old: Any) -> Any:
    for axis in sorted(_axes(axes, old)):
        x = x.unsqueeze(axis)
    return x


def _squeeze(x: Any, axes: Any = None, **old: Any) -> Any:
    return x.squeeze(tuple(_axes(axes, old))) if _axes(axes, old) else x.squeeze()


def _flatten(x: Any, *, axis: int = 1) -> Any:
    return x.reshape(int(torch.tensor(x.shape[:axis]).prod()) if axis else 1, -1)


def _clip(x: Any, low: Any = None, high: Any = None, **old: Any) -> Any:
    low, high = (old.get("min") if low is None else low), (old.get("max") if high is None else high)
    return x.clamp(None if low is None else float(low), None if high is None else float(high))


def _constant(**arguments: Any) -> Any:
    value = next(iter(arguments.values()))
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _softmax(x: Any, *, axis: int = -1) -> Any:
    return x.softmax(axis)


def _concat(*parts: Any, axis: int) -> Any:
    return torch.cat(parts, axis)


def _transpose(x: Any, *, perm: Any = None) -> Any:
    return x.permute(*(perm or reversed(range(x.ndim))))


def _gather(x: Any, index: Any, *, axis: int = 0) -> Any:
    return x.index_select(axis, index.reshape(-1)).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


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
    "Constant": _constant,
    "Conv": _conv,
    "Div": torch.div,
    "Dropout": lambda x: x,
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
