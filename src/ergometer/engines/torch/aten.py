"""One rule for each ATen operation: what it is in the operations of the canonical graph."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ergometer.core.errors import UnavailableError
from ergometer.core.graph import Node, Value

if TYPE_CHECKING:
    import torch


class Rules:
    """The graph that is being written. Rules are named after their operation and take its arguments by name."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.arrays: dict[str, Any] = {}
        self.roles: dict[str, list[str]] = {"parameters": [], "buffers": [], "constants": []}
        self.masks: dict[str, float] = {}
        self.updates: dict[str, str] = {}
        self.layer = ""

    def rule(self, base: str) -> Callable[[dict[str, Any]], Any] | None:
        """What writes this operation; None if there is no such rule."""
        op = _SIMPLE.get(base)
        if op in ("mul", "div"):
            return lambda a: self.binary(op, a["self"], a["other"])
        if op is not None:
            return lambda a: self.unary(op, a["self"])
        found: Callable[[dict[str, Any]], Any] | None = getattr(self, f"_{base}", None)
        return found

    def refusal(self, name: str) -> UnavailableError:
        where = f"layer {self.layer!r}" if self.layer else "the loss"
        return UnavailableError(f"the bridge does not know {name} (in {where}): only torch runs this network.")

    def declare(self, name: str, value: Any) -> str:
        import torch

        self.values[name] = Value(tuple(value.shape), "float32" if value.dtype.is_floating_point else "int64")
        if value.dtype not in (torch.float32, torch.int64, torch.bool):
            raise UnavailableError(f"{name} is {value.dtype}: the bridge takes float32 and int64.")
        return name

    # Building blocks

    def _add_node(self, op: str, inputs: Sequence[str], shapes: Sequence[tuple[int, ...]], **attributes: Any) -> Any:
        stem = f"{self.layer}/{op}" if self.layer else op
        outputs = []
        for shape in shapes:
            name, number = stem, 1
            while name in self.values:
                number += 1
                name = f"{stem}_{number}"
            dtype = "int64" if inputs and all(self.values[item].dtype == "int64" for item in inputs) else "float32"
            self.values[name] = Value(tuple(int(side) for side in shape), dtype)
            outputs.append(name)
        self.nodes.append(Node(op, tuple(inputs), tuple(outputs), self.layer, attributes))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _constant(self, value: Any) -> str:
        import torch

        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        name, number = "constant", 1
        while name in self.values:
            number += 1
            name = f"constant_{number}"
        self.arrays[name] = array_of(tensor)
        self.roles["constants"].append(name)
        return self.declare(name, tensor if not tensor.dtype.is_floating_point else tensor.float())

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def _tensor(self, item: Any) -> str:
        return item if isinstance(item, str) else self._constant(item)

    def unary(self, op: str, x: str, **attributes: Any) -> str:
        return str(self._add_node(op, [x], [self._shape(x)], **attributes))

    def binary(self, op: str, a: Any, b: Any) -> str:
        a, b = self._tensor(a), self._tensor(b)
        return str(self._add_node(op, [a, b], [np.broadcast_shapes(self._shape(a), self._shape(b))]))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        shape = tuple(int(side) for side in shape)
        if shape == self._shape(x):
            return x
        return str(self._add_node("reshape", [x], [shape], shape=shape))

    def slice(self, x: str, axis: int, start: int, stop: int) -> str:
        shape = list(self._shape(x))
        shape[axis] = stop - start
        return str(self._add_node("slice", [x], [tuple(shape)], axis=axis, start=start, stop=stop))

    def concat(self, items: Sequence[str], axis: int) -> str:
        shape = list(self._shape(items[0]))
        axis %= len(shape)
        shape[axis] = sum(self._shape(item)[axis] for item in items)
        return str(self._add_node("concat", items, [tuple(shape)], axis=axis))

    def linear(self, x: str, weight: str, bias: str | None) -> str:
        shape = (*self._shape(x)[:-1], self._shape(weight)[0])
        return str(self._add_node("linear", [x, weight, *([bias] if bias else [])], [shape]))

    def mean(self, x: str) -> str:
        axes = tuple(range(len(self._shape(x))))
        return str(self._add_node("reduce_mean", [x], [()], axes=axes, keep=False)) if axes else x

    def absolute(self, x: str) -> str:
        return self.binary("add", self.unary("relu", x), self.unary("relu", self.unary("neg", x)))

    # ATen, by name

    def _conv2d(self, a: dict[str, Any]) -> str:
        height, width = _pair(a["padding"])
        return str(
            self._add_node(
                "conv",
                [a["input"], a["weight"], *([a["bias"]] if a["bias"] else [])],
                [tuple(a["meta"].shape)],
                stride=_pair(a["stride"]),
                padding=(height, width, height, width),
                dilation=_pair(a["dilation"]),
                groups=a["groups"],
            )
        )

    def _conv1d(self, a: dict[str, Any]) -> str:
        samples, channels, length = self._shape(a["input"])
        out, inner, kernel = self._shape(a["weight"])
        (stride,), (padding,), (dilation,) = a["stride"], a["padding"], a["dilation"]
        result = self._add_node(
            "conv",
            [
                self.reshape(a["input"], (samples, channels, 1, length)),
                self.reshape(a["weight"], (out, inner, 1, kernel)),
                *([a["bias"]] if a["bias"] else []),
            ],
            [(*a["meta"].shape[:2], 1, a["meta"].shape[2])],
            stride=(1, stride),
            padding=(0, padding, 0, padding),
            dilation=(1, dilation),
            groups=a["groups"],
        )
        return self.reshape(result, a["meta"].shape)

    def _conv_transpose2d(self, a: dict[str, Any]) -> str:
        if a["groups"] != 1 or _pair(a["dilation"]) != (1, 1):
            raise self.refusal("conv_transpose2d with groups or dilation")
        return str(
            self._add_node(
                "conv_transpose",
                [a["input"], a["weight"], *([a["bias"]] if a["bias"] else [])],
                [tuple(a["meta"].shape)],
                stride=_pair(a["stride"]),
                padding=_pair(a["padding"]),
                output_padding=_pair(a["output_padding"]),
            )
        )

    def _linear(self, a: dict[str, Any]) -> str:
        return self.linear(a["input"], a["weight"], a["bias"])

    def _matmul(self, a: dict[str, Any]) -> str:
        return str(self._add_node("matmul", [a["self"], a["other"]], [tuple(a["meta"].shape)]))

    def _batch_norm(self, a: dict[str, Any]) -> str:
        # A layer that runs twice in a step goes on from where its statistics are.
        mean_now, variance_now = (self.updates.get(a[name], a[name]) for name in ("running_mean", "running_var"))
        inputs = [a["input"], a["weight"], a["bias"], mean_now, variance_now]
        if None in inputs:
            raise self.refusal("batch_norm without scale or running statistics")
        shape, training = self._shape(a["input"]), bool(a["training"])
        channels = (shape[1],)
        shapes = [shape, channels, channels] if training else [shape]
        facts = {"epsilon": a["eps"], "momentum": a["momentum"], "training": training}
        result = self._add_node("batch_norm", inputs, shapes, **facts)
        if not training:
            return str(result)
        y, mean, variance = result
        self.updates |= {a["running_mean"]: mean, a["running_var"]: variance}
        return str(y)

    def _layer_norm(self, a: dict[str, Any]) -> str:
        if len(a["normalized_shape"]) != 1 or a["weight"] is None or a["bias"] is None:
            raise self.refusal("layer_norm over several axes or without scale")
        return str(
            self._add_node(
                "layer_norm", [a["input"], a["weight"], a["bias"]], [self._shape(a["input"])], epsilon=a["eps"]
            )
        )

    def _max_pool2d(self, a: dict[str, Any]) -> str:
        if _pair(a["dilation"]) != (1, 1):
            raise self.refusal("max_pool2d with dilation")
        return self._pool("max_pool", a)

    def _avg_pool2d(self, a: dict[str, Any]) -> str:
        if a["ceil_mode"] or a["divisor_override"]:
            raise self.refusal("avg_pool2d with ceil_mode or divisor_override")
        return self._pool("avg_pool", a, counts_padding=bool(a["count_include_pad"]))

    def _pool(self, op: str, a: dict[str, Any], **attributes: Any) -> str:
        x = a.get("self") or a["input"]
        kernel, before = _pair(a["kernel_size"]), _pair(a["padding"])
        stride = _pair(a["stride"]) if a["stride"] else kernel
        shape = tuple(a["meta"].shape)
        # What ceil mode reads beyond the edge is padding, said outright.
        after = tuple(
            max(before[i], (shape[2 + i] - 1) * stride[i] + kernel[i] - self._shape(x)[2 + i] - before[i])
            for i in range(2)
        )
        facts = {"kernel": kernel, "stride": stride, "padding": (*before, *after)}
        return str(self._add_node(op, [x], [shape], **facts, **attributes))

    def _avg_pool3d(self, a: dict[str, Any]) -> str:
        """Over channels alone, as local response normalisation does it."""
        samples, one, channels, *rest = self._shape(a["self"])
        depth, *sides = a["kernel_size"]
        if one != 1 or sides != [1, 1] or any(a["padding"]) or a["stride"] not in ([], [1, 1, 1], [1], 1):
            raise self.refusal("avg_pool3d other than over channels")
        flat = self.reshape(a["self"], (samples, 1, channels, rest[0] * rest[1]))
        shape = tuple(a["meta"].shape)
        pooled = self._add_node(
            "avg_pool",
            [flat],
            [(samples, 1, shape[2], rest[0] * rest[1])],
            kernel=(depth, 1),
            stride=(1, 1),
            padding=(0, 0, 0, 0),
            counts_padding=True,
        )
        return self.reshape(pooled, shape)

    def _adaptive_avg_pool2d(self, a: dict[str, Any]) -> str:
        samples, channels, *sides = self._shape(a["self"])
        out = _pair(a["output_size"])
        if out == (1, 1):
            facts = {"axes": (2, 3), "keep": True}
            return str(self._add_node("reduce_mean", [a["self"]], [(samples, channels, 1, 1)], **facts))
        kernel = tuple(side // o for side, o in zip(sides, out, strict=True))
        if any(side % o for side, o in zip(sides, out, strict=True)):
            raise self.refusal(f"adaptive_avg_pool2d of {sides} to {list(out)}")
        return self._pool("avg_pool", a | {"kernel_size": kernel, "stride": [], "padding": [0]}, counts_padding=True)

    def _hardtanh(self, a: dict[str, Any]) -> str:
        return self.unary("clip", a["self"], low=float(a["min_val"]), high=float(a["max_val"]))

    def _leaky_relu(self, a: dict[str, Any]) -> str:
        return self.unary("leaky_relu", a["self"], slope=float(a["negative_slope"]))

    def _gelu(self, a: dict[str, Any]) -> str:
        if a["approximate"] != "none":
            raise self.refusal("gelu by approximation")
        return self.unary("gelu", a["self"])

    def _silu(self, a: dict[str, Any]) -> str:
        return self.binary("mul", a["self"], self.unary("sigmoid", a["self"]))

    def _pow(self, a: dict[str, Any]) -> str:
        return self.unary("power", a["self"], exponent=float(a["exponent"]))

    def _add(self, a: dict[str, Any]) -> str:
        return self.binary("add", a["self"], self._scaled(a))

    def _sub(self, a: dict[str, Any]) -> str:
        return self.binary("sub", a["self"], self._scaled(a))

    def _rsub(self, a: dict[str, Any]) -> str:
        return self.binary("sub", a["other"], a["self"])

    def _scaled(self, a: dict[str, Any]) -> Any:
        return a["other"] if a.get("alpha", 1) == 1 else self.binary("mul", a["other"], a["alpha"])

    def _reshaped(self, a: dict[str, Any]) -> str:
        return self.reshape(a["self"], a["meta"].shape)

    _view = _reshape = _flatten = _squeeze = _unsqueeze = _contiguous = _reshaped

    def _dropout(self, a: dict[str, Any]) -> str:
        if not a["train"] or not a["p"]:
            return str(a["input"])
        name, number = f"{self.layer or 'dropout'}/mask", 1
        while name in self.values:
            number += 1
            name = f"{self.layer or 'dropout'}/mask_{number}"
        self.values[name] = Value(self._shape(a["input"]))
        self.masks[name] = float(a["p"])
        return self.binary("mul", a["input"], name)

    def _transpose(self, a: dict[str, Any]) -> str:
        axes = list(range(len(self._shape(a["self"]))))
        axes[a["dim0"]], axes[a["dim1"]] = axes[a["dim1"]], axes[a["dim0"]]
        return self._permuted(a["self"], axes)

    def _permute(self, a: dict[str, Any]) -> str:
        return self._permuted(a["self"], [axis % len(a["dims"]) for axis in a["dims"]])

    def _permuted(self, x: str, axes: Sequence[int]) -> str:
        shape = tuple(self._shape(x)[axis] for axis in axes)
        return str(self._add_node("transpose", [x], [shape], axes=tuple(axes)))

    def _cat(self, a: dict[str, Any]) -> str:
        return self.concat(a["tensors"], a["dim"])

    def _select(self, a: dict[str, Any]) -> str:
        axis = a["dim"] % len(self._shape(a["self"]))
        at = a["index"] % self._shape(a["self"])[axis]
        return self.reshape(self.slice(a["self"], axis, at, at + 1), a["meta"].shape)

    def _pad(self, a: dict[str, Any]) -> str:
        if a["mode"] != "constant" or a["value"]:
            raise self.refusal(f"pad with {a['mode']}")
        rank = len(self._shape(a["self"]))
        before, after = [0] * rank, [0] * rank
        for i in range(len(a["pad"]) // 2):
            before[rank - 1 - i], after[rank - 1 - i] = a["pad"][2 * i], a["pad"][2 * i + 1]
        return str(
            self._add_node("pad", [a["self"]], [tuple(a["meta"].shape)], before=tuple(before), after=tuple(after))
        )

    def _softmax(self, a: dict[str, Any], op: str = "softmax") -> str:
        if a["dim"] not in (-1, len(self._shape(a["self"])) - 1):
            raise self.refusal(f"{op} over an axis that is not the last")
        return self.unary(op, a["self"])

    def _log_softmax(self, a: dict[str, Any]) -> str:
        return self._softmax(a, "log_softmax")

    def _mean(self, a: dict[str, Any]) -> str:
        rank = len(self._shape(a["self"]))
        axes = tuple(sorted(axis % rank for axis in a.get("dim") or range(rank)))
        keep = bool(a.get("keepdim"))
        return str(self._add_node("reduce_mean", [a["self"]], [tuple(a["meta"].shape)], axes=axes, keep=keep))

    def _embedding(self, a: dict[str, Any]) -> str:
        return str(self._add_node("gather_rows", [a["weight"], a["indices"]], [tuple(a["meta"].shape)]))

    def _gather(self, a: dict[str, Any]) -> str:
        rows, one = self._shape(a["index"])
        if len(self._shape(a["self"])) != 2 or a["dim"] not in (1, -1) or one != 1:
            raise self.refusal("gather other than one value of each row")
        picked = self._add_node("pick", [a["self"], self.reshape(a["index"], (rows,))], [(rows,)])
        return self.reshape(picked, (rows, 1))

    def _broadcast_tensors(self, a: dict[str, Any]) -> list[str]:
        if len({self._shape(item) for item in a["tensors"]}) > 1:
            raise self.refusal("broadcast_tensors of different shapes")
        return list(a["tensors"])

    def _cross_entropy_loss(self, a: dict[str, Any]) -> str:
        plain = a["weight"] is None and a["reduction"] == 1 and not a["label_smoothing"]
        if not plain or len(self._shape(a["self"])) != 2 or self.values[a["target"]].dtype != "int64":
            raise self.refusal("cross_entropy other than the mean over classes")
        return str(self._add_node("cross_entropy", [a["self"], a["target"]], [()]))

    def _binary_cross_entropy_with_logits(self, a: dict[str, Any]) -> str:
        if a["weight"] is not None or a["pos_weight"] is not None or a["reduction"] != 1:
            raise self.refusal("binary_cross_entropy_with_logits with weights")
        x, target = a["self"], a["target"]
        rest = self.unary("log", self.unary("sigmoid", self.absolute(x)))
        return self.mean(
            self.binary("sub", self.binary("sub", self.unary("relu", x), self.binary("mul", x, target)), rest)
        )

    def _smooth_l1_loss(self, a: dict[str, Any]) -> str:
        if a["reduction"] != 1 or a["beta"] != 1:
            raise self.refusal("smooth_l1_loss other than the mean with beta 1")
        size = self.absolute(self.binary("sub", a["self"], a["target"]))
        capped = self.unary("clip", size, low=0.0, high=1.0)
        return self.mean(self.binary("mul", capped, self.binary("sub", size, self.binary("mul", capped, 0.5))))

    def _kl_div(self, a: dict[str, Any]) -> str:
        if a["reduction"] != 2 or not a["log_target"]:  # 2: the sum; "batchmean" divides in a node of its own
            raise self.refusal("kl_div other than the sum over logarithmic targets")
        apart = self.binary("sub", a["target"], a["self"])
        each = self.binary("mul", self.unary("exp", a["target"]), apart)
        axes = tuple(range(len(self._shape(each))))
        return str(self._add_node("reduce_sum", [each], [()], axes=axes, keep=False))

    def _lstm(self, a: dict[str, Any]) -> tuple[str, str, str]:
        if a["bidirectional"] or a["dropout"] or not a["has_biases"] or not a["batch_first"]:
            raise self.refusal("lstm other than one way, batch first, with biases and no dropout")
        x = a["input"]
        samples, length, _ = self._shape(x)
        last: list[tuple[str, str]] = []
        for number in range(a["num_layers"]):
            weight_x, weight_h, bias_x, bias_h = a["params"][4 * number : 4 * number + 4]
            width = self._shape(weight_h)[1]
            hidden, cell = (
                self.reshape(self.slice(state, 0, number, number + 1), (samples, width)) for state in a["hx"]
            )
            projected = self.linear(x, weight_x, bias_x)
            steps = []
            for at in range(length):
                now = self.reshape(self.slice(projected, 1, at, at + 1), (samples, 4 * width))
                gates = self.binary("add", now, self.linear(hidden, weight_h, bias_h))
                i, f, g, o = (self.slice(gates, 1, k * width, (k + 1) * width) for k in range(4))
                kept = self.binary("mul", self.unary("sigmoid", f), cell)
                fresh = self.binary("mul", self.unary("sigmoid", i), self.unary("tanh", g))
                cell = self.binary("add", kept, fresh)
                hidden = self.binary("mul", self.unary("sigmoid", o), self.unary("tanh", cell))
                steps.append(self.reshape(hidden, (samples, 1, width)))
            x = self.concat(steps, 1)
            last.append((hidden, cell))
        hidden, cell = (
            self.concat([self.reshape(layer[k], (1, *self._shape(layer[k]))) for layer in last], 0) for k in range(2)
        )
        return x, hidden, cell


_SIMPLE = {
    **{name: name for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "neg", "erf")},
    **{name: name for name in ("mul", "div")},
    "relu_": "relu",
}


def _pair(item: Any) -> tuple[int, int]:
    if isinstance(item, int):
        return item, item
    return (item[0], item[0]) if len(item) == 1 else (item[0], item[1])


def array_of(tensor: "torch.Tensor") -> Any:
    array = tensor.detach().cpu().numpy().copy()
    return array if array.dtype == np.int64 else array.astype(np.float32)
