"""TFLite operations and what is made of several of them: convolutions, pools and their gradients, all in NHWC."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ergometer.engines.litert._model import Model

Shape = tuple[int, ...]
_VALID = 1  # Padding of TFLite: SAME is 0
_LOWEST = float(np.finfo(np.float32).min)
_NEAR = 0.1


class Image(Model):
    """a: the attributes of the graph's node. The padding at the end follows from the shapes."""

    def scalar(self, value: float) -> int:
        return self.constant(np.float32(value))

    def reshape(self, x: int, shape: Sequence[int]) -> int:
        shape = tuple(shape)
        if shape == self.shapes[x]:
            return x
        return self.add("RESHAPE", [x, self.numbers(*shape)], shape, dtype=self.dtypes[x])

    def transpose(self, x: int, axes: Sequence[int]) -> int:
        shape = tuple(self.shapes[x][axis] for axis in axes)
        moving = [axis for axis in axes if self.shapes[x][axis] > 1]
        if moving == sorted(moving):
            return self.reshape(x, shape)
        return self.add("TRANSPOSE", [x, self.numbers(*axes)], shape, dtype=self.dtypes[x])

    def binary(self, op: str, a: int, b: int) -> int:
        shape = np.broadcast_shapes(self.shapes[a], self.shapes[b])
        return self.add(op.upper(), [a, b], shape, f"{op.title()}Options")

    def scaled(self, x: int, factor: float) -> int:
        return self.binary("mul", x, self.scalar(factor))

    def shifted(self, x: int, offset: float) -> int:
        return self.binary("add", x, self.scalar(offset))

    def where(self, comparison: str, a: int, b: int, x: int) -> int:
        """x where the comparison holds, elsewhere 0."""
        holds = self.add(comparison, [a, b], self.shapes[x], dtype="bool")
        return self.add("SELECT_V2", [holds, x, self.scalar(0.0)], self.shapes[x], "SelectV2Options")

    def whole(self, x: int) -> int:
        return self.add("CAST", [x], self.shapes[x], dtype="int32")

    def reduce(self, op: str, x: int, axes: Sequence[int], keep: bool = False) -> int:
        shape = [1 if axis in axes else side for axis, side in enumerate(self.shapes[x]) if keep or axis not in axes]
        return self.add(op, [x, self.numbers(*sorted(axes))], tuple(shape), "ReducerOptions", keepDims=keep)

    def concat(self, items: Sequence[int], axis: int) -> int:
        if len(items) == 1:
            return items[0]
        shape = list(self.shapes[items[0]])
        shape[axis] = sum(self.shapes[item][axis] for item in items)
        return self.add("CONCATENATION", list(items), tuple(shape), "ConcatenationOptions", axis=axis)

    def slice(self, x: int, begin: Sequence[int], size: Sequence[int]) -> int:
        if tuple(size) == self.shapes[x]:
            return x
        return self.add("SLICE", [x, self.numbers(*begin), self.numbers(*size)], tuple(size), dtype=self.dtypes[x])

    def expand(self, x: int, shape: Shape) -> int:
        return x if shape == self.shapes[x] else self.add("BROADCAST_TO", [x, self.numbers(*shape)], shape)

    def pad(self, x: int, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> int:
        """Padded; where a number is negative, cut."""
        begin = [max(-side, 0) for side in before]
        size = [side - start + min(end, 0) for side, start, end in zip(self.shapes[x], begin, after, strict=True)]
        x = self.slice(x, begin, size)
        pads = np.maximum(np.stack([before, after], 1), 0).astype(np.int32)
        if not pads.any():
            return x
        shape = tuple(side + int(pair.sum()) for side, pair in zip(self.shapes[x], pads, strict=True))
        if value:
            return self.add("PADV2", [x, self.constant(pads), self.scalar(value)], shape)
        return self.add("PAD", [x, self.constant(pads)], shape)

    def matmul(self, a: int, turned_a: bool, b: int, turned_b: bool, shape: Shape) -> int:
        return self.add("BATCH_MATMUL", [a, b], shape, "BatchMatMulOptions", adjX=turned_a, adjY=turned_b)

    def dense(self, x: int, weight: int, bias: int | None, *, fixed: bool) -> int:
        shape = (self.shapes[x][0], self.shapes[weight][0])
        if fixed:
            taken = [x, weight, -1 if bias is None else bias]
            return self.add("FULLY_CONNECTED", taken, shape, "FullyConnectedOptions")
        product = self._times(x, weight)
        return product if bias is None else self.binary("add", product, bias)

    def _times(self, x: int, weight: int) -> int:
        """x times the transposed weight. XNNPACK copies the second factor first: that is to be the smaller one."""
        rows, outer = self.shapes[x][0], self.shapes[weight][0]
        if rows >= outer:
            return self.matmul(x, False, weight, True, (rows, outer))
        return self.transpose(self.matmul(weight, False, x, True, (outer, rows)), (1, 0))

    def normal_cdf(self, x: int) -> int:
        """gelu(x) / x, and a series where x is near 0."""
        shape = self.shapes[x]
        near = self.add("LESS", [self.add("ABS", [x], shape), self.scalar(_NEAR)], shape, dtype="bool")
        near = self.add("CAST", [near], shape)
        far = self.binary("sub", self.scalar(1.0), near)
        ratio = self.binary("div", self.add("GELU", [x], shape), self.binary("add", x, near))
        square = self.add("SQUARE", [x], shape)
        series = self.shifted(self.binary("mul", square, self.shifted(self.scaled(square, 1 / 40), -1 / 6)), 1.0)
        series = self.shifted(self.scaled(self.binary("mul", x, series), 1 / math.sqrt(2 * math.pi)), 0.5)
        return self.binary("add", self.binary("mul", series, near), self.binary("mul", ratio, far))

    # Windows: what one place of a kernel sees, with the stride taken out

    def framed(self, x: int, sides: Shape, a: dict[str, Any], kernel: Shape, value: float = 0.0) -> int:
        """x with its padding, as large as the windows need, rounded up to whole strides."""
        reach = self._reach(sides, a, kernel)
        up = [-(-side // stride) * stride for side, stride in zip(reach, a["stride"], strict=True)]
        return self._fitted(x, up, a["padding"][:2], value)

    def _reach(self, sides: Sequence[int], a: dict[str, Any], kernel: Shape) -> list[int]:
        """How far the last window goes."""
        dilation = a.get("dilation", (1, 1))
        return [
            (side - 1) * stride + (k - 1) * spread + 1
            for side, stride, k, spread in zip(sides, a["stride"], kernel, dilation, strict=True)
        ]

    def _fitted(self, x: int, sides: Sequence[int], before: Sequence[int], value: float = 0.0) -> int:
        """x padded, or cut, to these sides."""
        after = [wanted - side - start for wanted, side, start in zip(sides, self.shapes[x][1:3], before, strict=True)]
        return self.pad(x, (0, *before, 0), (0, *after, 0), value)

    def _padded(self, x: int, sides: Shape, a: dict[str, Any], kernel: Shape, value: float = 0.0) -> int:
        """x as far as the windows of an output with these sides go."""
        return self._fitted(x, self._reach(sides, a, kernel), a["padding"][:2], value)

    def _inside(self, x: int, shape: Shape, a: dict[str, Any]) -> int:
        """What lies in the image, without its padding."""
        return self._fitted(x, shape[1:3], [-side for side in a["padding"][:2]])

    def window(self, frame: int, start: Shape, sides: Shape, stride: Shape) -> int:
        samples, height, width, channels = self.shapes[frame]
        (down, right), (by, bx) = stride, start
        if start == (0, 0) and (*sides, 1, 1) == (height, width, *stride):
            return frame
        split = self.reshape(frame, (samples, height // down, down, width // right, right * channels))
        begin = (0, by // down, by % down, bx // right, bx % right * channels)
        cut = self.slice(split, begin, (samples, sides[0], 1, sides[1], channels))
        return self.reshape(cut, (samples, *sides, channels))

    def spread(self, x: int, stride: Shape) -> int:
        """Zeros between the values, and after the last."""
        samples, height, width, channels = self.shapes[x]
        if tuple(stride) == (1, 1):
            return x
        split = self.reshape(x, (samples * height, 1, width, 1, channels))
        grown = self.pad(split, (0, 0, 0, 0, 0), (0, stride[0] - 1, 0, stride[1] - 1, 0))
        return self.reshape(grown, (samples, height * stride[0], width * stride[1], channels))

    # Convolutions. weight: (out, h, w, in); of depthwise ones (1, h, w, channels)

    def convolve(self, x: int, weight: int, bias: int | None, shape: Shape, a: dict[str, Any], *, fixed: bool) -> int:
        """XNNPACK convolves with fixed weights alone; its matrix products are twice as fast as LiteRT's CONV_2D."""
        outer, height, width, inner = self.shapes[weight]
        if fixed:
            x = self._padded(x, shape[1:3], a, (height, width))
            return self.add("CONV_2D", [x, weight, self._bias(bias, shape)], shape, "Conv2DOptions", **_options(a))
        split = self.reshape(weight, (outer, height, width * inner))
        total = None
        for i, seen in enumerate(self._kernel_rows(x, shape[1:3], (height, width), a)):
            part = self.reshape(self.slice(split, (0, i, 0), (outer, 1, width * inner)), (outer, width * inner))
            product = self._times(seen, part)
            total = product if total is None else self.binary("add", total, product)
        assert total is not None
        return self.reshape(total if bias is None else self.binary("add", total, bias), shape)

    def _kernel_rows(self, x: int, sides: Shape, kernel: Shape, a: dict[str, Any]) -> Iterator[int]:
        """For each row of the kernel, a matrix: what it sees from each place."""
        (height, width), (down, right), (dh, dw) = kernel, a["stride"], a["dilation"]
        frame = self.framed(x, sides, a, kernel)
        tall = self.shapes[frame][1]
        wide = self.concat([self.window(frame, (0, j * dw), (tall, sides[1]), (1, right)) for j in range(width)], 3)
        for i in range(height):
            yield self._rows(self.window(wide, (i * dh, 0), sides, (down, 1)))

    def _bias(self, bias: int | None, shape: Shape) -> int:
        return self.constant(np.zeros(shape[3], np.float32)) if bias is None else bias

    def _rows(self, x: int) -> int:
        return self.reshape(x, (math.prod(self.shapes[x][:-1]), self.shapes[x][-1]))

    def depthwise(self, x: int, weight: int, bias: int | None, shape: Shape, a: dict[str, Any]) -> int:
        x = self._padded(x, shape[1:3], a, self.shapes[weight][1:3])
        taken = [x, weight, self._bias(bias, shape)]
        options = "DepthwiseConv2DOptions"
        return self.add("DEPTHWISE_CONV_2D", taken, shape, options, depthMultiplier=1, **_options(a))

    def _mirrored(self, weight: int) -> int:
        outer, height, width, inner = self.shapes[weight]
        flat = self.reshape(weight, (outer, height * width, inner))
        turned = self.add("REVERSE_V2", [flat, self.numbers(1)], self.shapes[flat])
        return self.reshape(turned, (outer, height, width, inner))

    def _full(self, dy: int, shape: Shape, kernel: Shape, a: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """dy so that a convolution of it with the mirrored weight gives the gradient of the input."""
        dy = self.spread(dy, a["stride"])
        edge = [(k - 1) * spread for k, spread in zip(kernel, a["dilation"], strict=True)]
        before = [side - start for side, start in zip(edge, a["padding"][:2], strict=True)]
        wanted = [side + more for side, more in zip(shape[1:3], edge, strict=True)]
        dy = self._fitted(dy, wanted, before)
        return dy, {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": a["dilation"], "groups": 1}

    def conv_input(self, dy: int, weight: int, shape: Shape, a: dict[str, Any]) -> int:
        kernel = self.shapes[weight][1:3]
        if kernel == (1, 1):
            outer, inner = self.shapes[weight][0], self.shapes[weight][3]
            rows = self._rows(dy)
            flat = self.reshape(weight, (outer, inner))
            product = self.matmul(rows, False, flat, False, (self.shapes[rows][0], inner))
            spread = self.spread(self.reshape(product, (*self.shapes[dy][:3], inner)), a["stride"])
            return self._inside(spread, shape, a)
        if math.prod(shape[1:3]) > 2 * math.prod(self.shapes[dy][1:3]) and tuple(a["dilation"]) == (1, 1):
            return self._transposed(dy, weight, shape, a)  # slower per place, but there are fewer places
        dy, plain = self._full(dy, shape, kernel, a)
        turned = self.transpose(self._mirrored(weight), (3, 1, 2, 0))
        return self.convolve(dy, turned, None, shape, plain, fixed=False)

    def _transposed(self, dy: int, weight: int, shape: Shape, a: dict[str, Any]) -> int:
        reach = self._reach(self.shapes[dy][1:3], a, self.shapes[weight][1:3])
        whole = (shape[0], *reach, shape[3])
        taken = [self.numbers(*whole), self.transpose(weight, (3, 1, 2, 0)), dy]
        down, right = a["stride"]
        options: dict[str, Any] = {"padding": _VALID, "strideH": down, "strideW": right}
        result = self.add("TRANSPOSE_CONV", taken, whole, "TransposeConvOptions", **options)
        return self._inside(result, shape, a)

    def depthwise_input(self, dy: int, weight: int, shape: Shape, a: dict[str, Any]) -> int:
        dy, plain = self._full(dy, shape, self.shapes[weight][1:3], a)
        return self.depthwise(dy, self._mirrored(weight), None, shape, plain)

    def conv_weight(self, x: int, dy: int, shape: Shape, a: dict[str, Any]) -> int:
        outer, height, width, inner = shape
        turned = self.transpose(self._rows(dy), (1, 0))
        pieces = [
            self.matmul(turned, False, seen, False, (outer, width * inner))
            for seen in self._kernel_rows(x, self.shapes[dy][1:3], (height, width), a)
        ]
        return self.reshape(self.concat(pieces, 1), shape)

    def depthwise_weight(self, x: int, dy: int, shape: Shape, a: dict[str, Any]) -> int:
        _, height, width, _ = shape
        sides, (dh, dw) = self.shapes[dy][1:3], a["dilation"]
        frame = self.framed(x, sides, a, (height, width))
        pieces = []
        for i, j in np.ndindex(height, width):
            seen = self.window(frame, (i * dh, j * dw), sides, a["stride"])
            pieces.append(self.reduce("SUM", self.binary("mul", seen, dy), (0, 1, 2), True))
        return self.reshape(self.concat(pieces, 2), shape)

    # Pools

    def _pool(self, op: str, x: int, shape: Shape, kernel: Shape, stride: Shape) -> int:
        (height, width), (down, right) = kernel, stride
        options: dict[str, Any] = {"strideH": down, "strideW": right, "padding": _VALID}
        return self.add(op, [x], shape, "Pool2DOptions", filterHeight=height, filterWidth=width, **options)

    def max_pool(self, x: int, shape: Shape, a: dict[str, Any]) -> int:
        x = self._padded(x, shape[1:3], a, a["kernel"], _LOWEST)
        return self._pool("MAX_POOL_2D", x, shape, a["kernel"], a["stride"])

    def max_pool_input(self, x: int, y: int, dy: int, a: dict[str, Any]) -> int:
        """Every window in turn takes what is left of dy where it holds the maximum."""
        kernel, sides = a["kernel"], self.shapes[y][1:3]
        frame = self.framed(x, sides, a, kernel, _LOWEST)
        places = [(i, j) for i in range(kernel[0]) for j in range(kernel[1])]
        pieces: dict[Shape, int] = {}
        left = dy
        for place in places:
            pieces[place] = self.where("EQUAL", self.window(frame, place, sides, a["stride"]), y, left)
            if place != places[-1]:
                left = self.binary("sub", left, pieces[place])
        whole = self._unwindowed(pieces, self.shapes[frame], a["stride"])
        return self._inside(whole, self.shapes[x], a)

    def _unwindowed(self, pieces: dict[Shape, int], shape: Shape, stride: Shape) -> int:
        """The sum of the pieces, each at the places of the frame that its window shows."""
        samples, tall, wide, channels = shape
        down, right = stride
        grid = (tall // down, wide // right)
        rows = []
        for r in range(down):
            across = [self._phase(pieces, (r, q), (samples, *grid, channels), stride) for q in range(right)]
            rows.append(self.reshape(self.concat(across, 3), (samples, grid[0], 1, grid[1], right * channels)))
        return self.reshape(self.concat(rows, 2), shape)

    def _phase(self, pieces: dict[Shape, int], phase: Shape, shape: Shape, stride: Shape) -> int:
        """The sum of the pieces at every stride-th place, beginning with this one."""
        total = None
        for (i, j), piece in pieces.items():
            if (i % stride[0], j % stride[1]) != phase:
                continue
            before = (0, i // stride[0], j // stride[1], 0)
            after = [whole - start - side for whole, start, side in zip(shape, before, self.shapes[piece], strict=True)]
            placed = self.pad(piece, before, after)
            total = placed if total is None else self.binary("add", total, placed)
        return self.expand(self.scalar(0.0), shape) if total is None else total

    def avg_pool(self, x: int, shape: Shape, a: dict[str, Any]) -> int:
        sides = self.shapes[x][1:3]
        x = self._padded(x, shape[1:3], a, a["kernel"])
        return self._by_count(self._pool("AVERAGE_POOL_2D", x, shape, a["kernel"], a["stride"]), sides, a)

    def _by_count(self, y: int, sides: Shape, a: dict[str, Any]) -> int:
        """y divided by the share of each window that lies in the image, unless padding counts."""
        if a["counts_padding"]:
            return y
        seen = []
        for axis in range(2):
            starts = np.arange(self.shapes[y][1 + axis]) * a["stride"][axis] - a["padding"][axis]
            ends = np.minimum(starts + a["kernel"][axis], sides[axis])
            seen.append((ends - np.maximum(starts, 0)) / a["kernel"][axis])
        share = np.outer(*seen)
        if (share == 1).all():
            return y
        return self.binary("mul", y, self.constant((1 / share).astype(np.float32)[None, :, :, None]))

    def avg_pool_input(self, dy: int, shape: Shape, a: dict[str, Any]) -> int:
        dy = self._by_count(dy, shape[1:3], a)
        kernel, (samples, height, width, channels) = a["kernel"], self.shapes[dy]
        if tuple(kernel) == tuple(a["stride"]):
            split = self.scaled(self.reshape(dy, (samples * height, 1, width, 1, channels)), 1 / math.prod(kernel))
            grown = self.expand(split, (samples * height, kernel[0], width, kernel[1], channels))
            whole = self.reshape(grown, (samples, height * kernel[0], width * kernel[1], channels))
            return self._inside(whole, shape, a)
        plain = {"stride": a["stride"], "padding": a["padding"], "dilation": (1, 1)}
        dy, _ = self._full(dy, shape, kernel, plain)
        return self._pool("AVERAGE_POOL_2D", dy, shape, kernel, (1, 1))


def _options(a: dict[str, Any]) -> dict[str, Any]:
    (down, right), (height, width) = a["stride"], a["dilation"]
    return {"padding": _VALID, "strideH": down, "strideW": right, "dilationHFactor": height, "dilationWFactor": width}
