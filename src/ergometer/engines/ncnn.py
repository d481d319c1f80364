"""ncnn on the CPU: its two files are written from the graph.

ncnn has no axis for the samples of a batch: they run one after the other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ergometer.core.errors import UnavailableError
from ergometer.core.graph import Graph, Lowered, Node
from ergometer.engines._fold import fold
from ergometer.engines._int8 import samples
from ergometer.engines._portable import Portable

_PARAM, _BIN = "model.param", "model.bin"
_MAGIC = 7767517
_LEVELS, _TINY = 127, 1e-30


class Ncnn(Portable):
    name = "ncnn"
    title = "ncnn, inference; the samples of a batch one after the other"
    extra = "ncnn"
    package = "ncnn"
    distribution = "ncnn"
    oldest = (1, 0, 20250503)
    modes = ("infer",)
    options: ClassVar = {"precision": ("float32", "int8")}

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path, *, precision: str = "float32") -> None:
        graph, arrays = fold(graph, arrays)
        self._write(folder, _Writer(graph, arrays, {}))
        if precision == "int8":
            self._write(folder, _Writer(graph, arrays, _ranges(graph, arrays, folder)))

    def _write(self, folder: Path, writer: "_Writer") -> None:
        param, weights = writer.files()
        (folder / _PARAM).write_text(param)
        (folder / _BIN).write_bytes(weights)

    def open(self, lowered: Lowered, device: str, threads: int) -> "NcnnSession":
        return NcnnSession(lowered.graph, lowered.folder, threads)


class NcnnSession:
    def __init__(self, graph: Graph, folder: Path, threads: int):
        import ncnn

        self.graph = graph
        self.net = ncnn.Net()
        options = self.net.opt
        options.num_threads = threads
        # Half precision is on by default where the processor has it.
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = False
        options.use_bf16_packed = options.use_bf16_storage = False
        for load, name in ((self.net.load_param, _PARAM), (self.net.load_model, _BIN)):
            if load(str(folder / name)):
                raise UnavailableError(f"ncnn cannot load the network: {name}.")

    def feed(self, batch: dict[str, Any]) -> None:
        import ncnn

        (name,) = self.graph.inputs
        self.samples = [ncnn.Mat(sample).clone() for sample in batch[name]]

    def step(self, masks: dict[str, Any]) -> None:
        self.scores = [self.run(sample, self.graph.outputs)[0] for sample in self.samples]

    def run(self, sample: Any, names: Sequence[str]) -> list[Any]:
        """These tensors for one sample."""
        extractor = self.net.create_extractor()
        extractor.input(self.graph.inputs[0], sample)
        found = []
        for name in names:
            failed, tensor = extractor.extract(name)
            if failed:
                raise RuntimeError(f"ncnn stopped with {failed}")
            found.append(tensor)
        return found

    def result(self) -> Any:
        return np.stack([np.array(scores) for scores in self.scores])

    def state(self) -> Iterator[tuple[str, Any]]:
        return iter(())


def _ranges(graph: Graph, arrays: dict[str, Any], folder: Path) -> dict[str, float]:
    """The largest magnitude of what each layer with weights reads, from the network in single precision."""
    session = NcnnSession(graph, folder, 1)
    session.net.opt.lightmode = False  # otherwise a tensor is gone once it has been read
    largest: dict[str, float] = {}
    for batch in samples(graph):
        session.feed(batch)
        for sample in session.samples:
            wanted = sorted({node.inputs[0] for node in graph.nodes if node.op in ("conv", "linear")} - {*graph.inputs})
            for name, tensor in zip(wanted, session.run(sample, wanted), strict=True):
                largest[name] = max(largest.get(name, 0.0), float(np.abs(np.array(tensor)).max()))
        (name,) = graph.inputs
        largest[name] = max(largest.get(name, 0.0), float(np.abs(batch[name]).max()))
    return largest


class _Writer:
    """A layer is a line: kind, name, numbers of inputs and outputs, their names, then parameters by number."""

    def __init__(self, graph: Graph, arrays: dict[str, Any], ranges: dict[str, float]):
        if len(graph.inputs) != 1 or graph.values[graph.inputs[0]].dtype != "float32":
            raise UnavailableError("ncnn here takes networks with one input, an image.")
        self.graph, self.arrays, self.ranges = graph, arrays, ranges
        self.batch = graph.values[graph.inputs[0]].shape[0]
        self.lines: list[str] = []
        self.blobs: set[str] = set()
        self.weights: list[bytes] = []
        self.copies = self._copies()

    def _copies(self) -> dict[str, list[str]]:
        """A blob can be read once: the names under which each of the others is read."""
        uses = Counter(name for node in self.graph.nodes for name in node.inputs if name not in self.arrays)
        return {name: [f"{name}/{number}" for number in range(count)] for name, count in uses.items() if count > 1}

    def files(self) -> tuple[str, bytes]:
        self._line("Input", self.graph.inputs[0], (), self.graph.inputs[0], {})
        for node in self.graph.nodes:
            rule: Callable[[Node], None] | None = getattr(self, f"_write_{node.op}", None)
            if rule is None:
                raise self._refusal(node, "")
            rule(node)
        head = f"{_MAGIC}\n{len(self.lines)} {len(self.blobs)}\n"
        return head + "".join(f"{line}\n" for line in self.lines), b"".join(self.weights)

    # Building blocks

    def _line(self, kind: str, name: str, inputs: tuple[str, ...], out: str, facts: dict[int, Any]) -> None:
        read = [self.copies[item].pop() if item in self.copies else item for item in inputs]
        self._write(kind, name, read, [out], facts)
        if out in self.copies:
            self._write("Split", f"{out}/split", [out], self.copies[out], {})

    def _write(self, kind: str, name: str, inputs: list[str], outputs: list[str], facts: dict[int, Any]) -> None:
        self.blobs.update(outputs)
        given = [f"{number}={value}" for number, value in facts.items()]
        self.lines.append(" ".join([kind, name, str(len(inputs)), str(len(outputs)), *inputs, *outputs, *given]))

    def _node(self, kind: str, node: Node, facts: dict[int, Any] | None = None) -> None:
        """Only of what is not stored: weights go into the other file."""
        inputs = tuple(name for name in node.inputs if name not in self.arrays)
        self._line(kind, node.outputs[0], inputs, node.outputs[0], facts or {})

    def _refusal(self, node: Node, why: str) -> UnavailableError:
        return UnavailableError(f"ncnn here does not do {node.op}{why} (layer {node.layer!r}).")

    def _shape(self, node: Node, name: str) -> tuple[int, ...]:
        """Of one sample."""
        batch, *shape = self.graph.values[name].shape or (0,)
        if batch != self.batch or not 1 <= len(shape) <= 4:
            raise self._refusal(node, f" of shape {self.graph.values[name].shape}")
        return tuple(shape)

    def _stored(self, name: str, *, tagged: bool = False) -> None:
        """tagged: a word before the numbers says that they are single precision."""
        self.weights.append((b"\0\0\0\0" if tagged else b"") + self.arrays[name].astype("<f4").tobytes())

    # The operations

    def _write_conv(self, node: Node) -> None:
        a = node.attributes
        _, weight, *bias = node.inputs
        out, _, height, width = self.arrays[weight].shape
        top, left, bottom, right = a["padding"]
        facts = {0: out, 1: width, 11: height, 2: a["dilation"][1], 12: a["dilation"][0]}
        facts |= {3: a["stride"][1], 13: a["stride"][0], 4: left, 14: top, 15: right, 16: bottom}
        facts |= {5: len(bias), 6: self.arrays[weight].size}
        if a["groups"] > 1:
            facts[7] = a["groups"]
        facts |= {8: 1} if self.ranges else {}
        self._node("ConvolutionDepthWise" if a["groups"] > 1 else "Convolution", node, facts)
        self._weights(node, a["groups"] if a["groups"] > 1 else out)

    def _write_linear(self, node: Node) -> None:
        x, weight, *bias = node.inputs
        if len(self._shape(node, x)) != 1:
            raise self._refusal(node, " of more than one axis")
        out, _ = self.arrays[weight].shape
        facts = {0: out, 1: len(bias), 2: self.arrays[weight].size} | ({8: 1} if self.ranges else {})
        self._node("InnerProduct", node, facts)
        self._weights(node, out)

    def _weights(self, node: Node, parts: int) -> None:
        """The weight, which ncnn rounds to 8 bits by itself if scales follow: one for each part of it, and of x."""
        x, weight, *bias = node.inputs
        self._stored(weight, tagged=True)
        for name in bias:
            self._stored(name)
        if self.ranges:
            largest = np.abs(self.arrays[weight].reshape(parts, -1)).max(1)
            scales = [*(_LEVELS / np.maximum(largest, _TINY)), _LEVELS / max(self.ranges[x], _TINY)]
            self.weights.append(np.array(scales, "<f4").tobytes())

    def _write_batch_norm(self, node: Node) -> None:
        _, scale, bias, mean, variance = node.inputs
        self._node("BatchNorm", node, {0: self.arrays[scale].size, 1: node.attributes["epsilon"]})
        for name in (scale, mean, variance, bias):
            self._stored(name)

    def _write_max_pool(self, node: Node) -> None:
        self._pool(node, {0: 0})

    def _write_avg_pool(self, node: Node) -> None:
        self._pool(node, {0: 1, 6: int(node.attributes["counts_padding"])})

    def _pool(self, node: Node, facts: dict[int, int]) -> None:
        a = node.attributes
        top, left, bottom, right = a["padding"]
        facts |= {1: a["kernel"][1], 11: a["kernel"][0], 2: a["stride"][1], 12: a["stride"][0]}
        facts |= {3: left, 13: top, 14: right, 15: bottom, 5: 1}  # 5: no padding of its own
        self._node("Pooling", node, facts)

    def _write_relu(self, node: Node) -> None:
        self._node("ReLU", node)

    def _write_leaky_relu(self, node: Node) -> None:
        self._node("ReLU", node, {0: node.attributes["slope"]})

    def _write_clip(self, node: Node) -> None:
        self._node("Clip", node, {0: node.attributes["low"], 1: node.attributes["high"]})

    def _write_sigmoid(self, node: Node) -> None:
        self._node("Sigmoid", node)

    def _write_tanh(self, node: Node) -> None:
        self._node("TanH", node)

    def _write_softmax(self, node: Node) -> None:
        self._node("Softmax", node, {0: len(self._shape(node, node.inputs[0])) - 1, 1: 1})

    def _write_power(self, node: Node) -> None:
        self._node("BinaryOp", node, {0: _BINARY["power"], 1: 1, 2: node.attributes["exponent"]})

    def _binary(self, node: Node) -> None:
        first, second = node.inputs
        if first in self.arrays or (second in self.arrays and self.arrays[second].size > 1):
            raise self._refusal(node, " with constants")
        if second in self.arrays:
            self._node("BinaryOp", node, {0: _BINARY[node.op], 1: 1, 2: float(self.arrays[second].item())})
        elif self._shape(node, first) != self._shape(node, second):
            raise self._refusal(node, " of two shapes")
        else:
            self._node("BinaryOp", node, {0: _BINARY[node.op]})

    _write_add = _write_sub = _write_mul = _write_div = _binary

    def _write_concat(self, node: Node) -> None:
        if node.attributes["axis"] == 0:
            raise self._refusal(node, " of samples")
        self._node("Concat", node, {0: node.attributes["axis"] - 1})

    def _write_reshape(self, node: Node) -> None:
        self._node("Reshape", node, self._sides(node))

    def _sides(self, node: Node) -> dict[int, int]:
        shape = self._shape(node, node.outputs[0])
        return dict(zip(_SIDES[len(shape)], shape, strict=True))

    def _write_pad(self, node: Node) -> None:
        shape = self._shape(node, node.inputs[0])
        before, after = node.attributes["before"], node.attributes["after"]
        rank = len(shape)
        if any(side for side in (*before[: max(1, rank - 2)], *after[: max(1, rank - 2)])):
            raise self._refusal(node, " of more than the last three axes")
        facts: dict[int, int] = {}
        for pair, low, high in zip(((2, 3), (0, 1), (7, 8)), before[:0:-1], after[:0:-1], strict=False):
            facts |= {pair[0]: low, pair[1]: high}
        self._node("Padding", node, facts)

    def _write_reduce_mean(self, node: Node) -> None:
        (x,), (out,) = node.inputs, node.outputs
        if len(self._shape(node, x)) != 3 or tuple(node.attributes["axes"]) != (2, 3):
            raise self._refusal(node, f" over axes {node.attributes['axes']}")
        self._line("Pooling", out, (x,), f"{out}/flat", {0: 1, 4: 1})
        self._line("Reshape", f"{out}/shape", (f"{out}/flat",), out, self._sides(node))


_BINARY = {"add": 0, "sub": 1, "mul": 2, "div": 3, "power": 6}
_SIDES = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}  # the numbers of channels, depth, height, width
ENGINE = Ncnn
