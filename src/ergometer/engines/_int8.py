"""Inference in 8 bits: static, weights per channel, ranges of activations from random inputs."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ergometer.core.errors import UnavailableError
from ergometer.core.graph import Graph
from ergometer.core.random import Random
from ergometer.engines._fold import fold
from ergometer.engines._onnx import model_of

_SAMPLES = 16


def samples(graph: Graph) -> list[dict[str, Any]]:
    """Batches to find ranges with."""
    for name in graph.inputs:
        if graph.values[name].dtype != "float32":
            raise UnavailableError(f"int8 needs samples of {name}: it is not an image.")
    random = Random(0)
    return [{name: random.normal(graph.values[name].shape) for name in graph.inputs} for _ in range(_SAMPLES)]


def write_int8(graph: Graph, arrays: dict[str, Any], path: Path) -> None:
    """An ONNX model whose tensors pass through 8 bits, quantized by ONNX Runtime."""
    from onnx.helper import set_model_props
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(samples(graph))

        def get_next(self) -> dict[str, Any] | None:
            return next(self.left, None)

    model = model_of(*fold(graph, arrays))
    set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})  # folded, every shape known: nothing to do
    with TemporaryDirectory() as folder:
        plain = Path(folder, "plain.onnx")
        plain.write_bytes(model.SerializeToString())
        # Unsigned activations: x86 multiplies unsigned by signed bytes, and is much slower with two signed ones.
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(plain, path, Reader(), per_channel=True, **types)
