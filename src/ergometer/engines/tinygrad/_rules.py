"""The operations of the canonical graph, said in tinygrad's tensors."""

from collections.abc import Callable
from math import prod
from typing import Any

from ergometer.core.graph import Node
from ergometer.engines.tinygrad._devices import limits_of
from ergometer.engines.tinygrad._products import Products, fits

# Their inputs, or the gradients of their outputs, are kept in memory. The rest is computed again wherever it is used,
# which takes long in the inner loops of a convolution; and the gradient of max_pool compares for equality.
KEPT = ("conv", "conv_transpose", "linear", "matmul", "max_pool")
KEPT_GRADIENTS = ("conv", "conv_transpose")


def rules(products: Products) -> dict[str, Callable[..., Any]]:
    from tinygrad import Tensor

    def sides(node: Node) -> tuple[int, ...]:
        top, left, bottom, right = node.attributes["padding"]
        return left, right, top, bottom

    def conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
        a = node.attributes
        top, left, bottom, right = a["padding"]
        places = (x.shape[2] + top + bottom) * (x.shape[3] + left + right)
        if a["groups"] == 1 and _ours(weight, x, rows=weight.shape[0], columns=x.shape[0] * places):
            return _biased(products.conv(x, weight, a["stride"], a["dilation"], a["padding"]), bias, 1)
        return x.conv2d(weight, bias, a["groups"], tuple(a["stride"]), tuple(a["dilation"]), sides(node))

    def conv_transpose(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
        stride, padding, more = (tuple(node.attributes[key]) for key in ("stride", "padding", "output_padding"))
        return x.conv_transpose2d(weight, bias, stride=stride, padding=padding, output_padding=more)

    def linear(_: Node, x: Any, weight: Any, bias: Any = None) -> Any:
        if not _ours(x, weight, rows=x.numel() // x.shape[-1], columns=weight.shape[0]):
            return x.linear(weight.T, bias)
        rows = products.linear(x.reshape(-1, x.shape[-1]), weight)
        return _biased(rows.reshape(*x.shape[:-1], weight.shape[0]), bias, -1)

    def matmul(_: Node, a: Any, b: Any) -> Any:
        alike = a.ndim == b.ndim >= 2 and a.shape[:-2] == b.shape[:-2]
        if alike and _ours(a, b, rows=a.shape[-2], columns=b.shape[-1], count=prod(a.shape[:-2])):
            return products.matmul(a, b)
        return a @ b

    def batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        a = node.attributes
        if not a["training"]:
            return x.batchnorm(scale, bias, mean, (variance + a["epsilon"]).rsqrt())
        count, keep = x.numel() // x.shape[1], 1 - a["momentum"]
        now = _mean(x)
        centred = x - _spread_out(now.detach(), x)
        spread = _mean(centred.square())
        factor = scale * (spread + a["epsilon"]).rsqrt()
        # What the mean does to the result, which is a sum over all of it, is known from the gradient of the bias.
        shift = bias - (now - now.detach()) * factor.detach()
        y = centred * _spread_out(factor, x) + _spread_out(shift, x)
        unbiased = spread * (count / (count - 1))
        return y, keep * mean + a["momentum"] * now, keep * variance + a["momentum"] * unbiased

    def max_pool(node: Node, x: Any) -> Any:
        return x.max_pool2d(tuple(node.attributes["kernel"]), tuple(node.attributes["stride"]), padding=sides(node))

    def avg_pool(node: Node, x: Any) -> Any:
        a = node.attributes
        counts = a["counts_padding"]
        return x.avg_pool2d(tuple(a["kernel"]), tuple(a["stride"]), padding=sides(node), count_include_pad=counts)

    def pad(node: Node, x: Any) -> Any:
        return x.pad(tuple(zip(node.attributes["before"], node.attributes["after"], strict=True)))

    def cut(node: Node, x: Any) -> Any:
        a = node.attributes
        return x.shrink(tuple((a["start"], a["stop"]) if i == a["axis"] else None for i in range(x.ndim)))

    def pick(_: Node, x: Any, indices: Any) -> Any:
        return x.gather(1, indices.unsqueeze(1)).squeeze(1)

    def unary(name: str) -> Callable[..., Any]:
        return lambda _, x: getattr(x, name)()

    def reduce(name: str) -> Callable[..., Any]:
        return lambda n, x: getattr(x, name)(tuple(n.attributes["axes"]), keepdim=n.attributes["keep"])

    return {
        "conv": conv,
        "conv_transpose": conv_transpose,
        "linear": linear,
        "matmul": matmul,
        "batch_norm": batch_norm,
        "layer_norm": lambda n, x, scale, bias: x.layernorm(eps=n.attributes["epsilon"]) * scale + bias,
        "max_pool": max_pool,
        "avg_pool": avg_pool,
        **{name: unary(name) for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "neg", "erf")},
        **{name: unary(name) for name in ("softmax", "log_softmax")},
        "gelu": lambda _, x: x.gelu("none"),
        "clip": lambda n, x: x.clamp(n.attributes["low"], n.attributes["high"]),
        "leaky_relu": lambda n, x: x.leaky_relu(n.attributes["slope"]),
        "power": lambda n, x: x ** n.attributes["exponent"],
        "add": lambda _, a, b: a + b,
        "sub": lambda _, a, b: a - b,
        "mul": lambda _, a, b: a * b,
        "div": lambda _, a, b: a / b,
        "reshape": lambda n, x: x.reshape(tuple(n.attributes["shape"])),
        "transpose": lambda n, x: x.permute(tuple(n.attributes["axes"])),
        "concat": lambda n, *items: Tensor.cat(*items, dim=n.attributes["axis"]),
        "slice": cut,
        "pad": pad,
        "reduce_mean": reduce("mean"),
        "reduce_sum": reduce("sum"),
        "gather_rows": lambda _, table, indices: table[indices],
        "pick": pick,
        "cross_entropy": lambda n, scores, labels: -pick(n, scores.log_softmax(), labels).mean(),
    }


def _ours(a: Any, b: Any, *, rows: int, columns: int, count: int = 1) -> bool:
    """Whether the device can run our kernel, which is faster than those that tinygrad makes."""
    if a.device.partition(":")[0] not in ("CL", "CUDA"):
        return False
    return fits(limits_of(a.device), max(a.numel(), b.numel(), rows * columns * count), rows, count)


def _mean(x: Any) -> Any:
    """Of each channel. Rows are summed up first: a sum over all at once leaves most of a GPU without work, and one over
    each image lets neighbouring threads read far from each other."""
    rows = x.mean(2).contiguous() if x.ndim > 3 else x
    return rows.mean(tuple(axis for axis in range(rows.ndim) if axis != 1))


def _spread_out(channels: Any, x: Any) -> Any:
    """A value of each channel, in the shape of x; the gradient is summed up as in _mean."""
    whole = channels.reshape(1, -1, *[1] * (x.ndim - 2))
    if x.ndim > 3:
        batch, count, _, *row = x.shape
        whole = whole.expand(batch, count, 1, *row).contiguous_backward()
    return whole.expand(x.shape)


def _biased(y: Any, bias: Any, axis: int) -> Any:
    return y if bias is None else y + bias.reshape([-1 if i == axis % y.ndim else 1 for i in range(y.ndim)])
