"""ONNX files as torch modules: every op against ONNX's own reference implementation."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ergometer.engines.torch.onnx import read_onnx

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.standard_normal((2, 3, 7, 6)).astype(np.float32)
ROWS = RANDOM.standard_normal((2, 5)).astype(np.float32)


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


# op, input, constants, attributes, opset
CASES: list[tuple[str, np.ndarray, list[np.ndarray], dict[str, Any], int]] = [
    ("Add", ROWS, [weights(5)], {}, 18),
    ("Sub", ROWS, [weights(5)], {}, 18),
    ("Mul", ROWS, [weights(2, 5)], {}, 18),
    ("Div", ROWS, [weights(5) + 3], {}, 18),
    ("Pow", np.abs(ROWS), [np.array(2.0, np.float32)], {}, 18),
    ("MatMul", ROWS, [weights(5, 4)], {}, 18),
    ("Gemm", ROWS, [weights(4, 5), weights(4)], {"transB": 1}, 18),
    ("Gemm", ROWS, [weights(5, 4), weights(4)], {"alpha": 0.5, "beta": 2.0}, 18),
    ("Relu", ROWS, [], {}, 18),
    ("Sigmoid", ROWS, [], {}, 18),
    ("Tanh", ROWS, [], {}, 18),
    ("Erf", ROWS, [], {}, 18),
    ("Sqrt", np.abs(ROWS), [], {}, 18),
    ("Identity", ROWS, [], {}, 18),
    ("HardSwish", ROWS, [], {}, 18),
    ("HardSigmoid", ROWS, [], {"alpha": 0.3}, 18),
    ("LeakyRelu", ROWS, [], {"alpha": 0.2}, 18),
    ("Softmax", ROWS, [], {"axis": 1}, 18),
    ("Clip", ROWS, [np.array(-0.5, np.float32), np.array(0.5, np.float32)], {}, 18),
    ("Clip", ROWS, [], {"min": -0.5, "max": 0.5}, 6),
    ("Conv", IMAGE, [weights(4, 3, 3, 3), weights(4)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}, 18),
    ("Conv", IMAGE, [weights(4, 3, 3, 3)], {"pads": [1, 0, 2, 1]}, 18),
    ("Conv", IMAGE, [weights(3, 1, 3, 3)], {"group": 3, "dilations": [2, 2]}, 18),
    ("MaxPool", IMAGE, [], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 18),
    ("AveragePool", IMAGE, [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, 18),
    ("AveragePool", IMAGE, [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 18),
    ("GlobalAveragePool", IMAGE, [], {}, 18),
    ("Flatten", IMAGE, [], {"axis": 1}, 18),
    ("Flatten", IMAGE, [], {"axis": 3}, 18),
    ("Reshape", IMAGE, [whole(0, -1)], {}, 18),
    ("Transpose", IMAGE, [], {"perm": [0, 2, 3, 1]}, 18),
    ("Concat", ROWS, [weights(2, 3)], {"axis": 1}, 18),
    ("Gather", IMAGE, [whole(1, -1)], {"axis": -1}, 18),
    ("Gather", IMAGE, [np.array(2, np.int64)], {"axis": 1}, 18),
    ("ReduceMean", IMAGE, [whole(2, 3)], {"keepdims": 0}, 18),
    ("ReduceMean", IMAGE, [], {"axes": [2, 3], "keepdims": 0}, 13),
    ("ReduceMean", IMAGE, [], {"noop_with_empty_axes": 1}, 18),
    ("Unsqueeze", ROWS, [whole(-2, -1)], {}, 18),
    ("Unsqueeze", ROWS, [], {"axes": [0, 3]}, 11),
    ("Squeeze", IMAGE[:, :1], [whole(1)], {}, 18),
    ("Squeeze", IMAGE[:, :1], [], {"axes": [1]}, 11),
    ("BatchNormalization", IMAGE, [weights(3), weights(3), weights(3), np.abs(weights(3)) + 0.5], {}, 15),
]


def write(path: Path, nodes: list[Any], constants: dict[str, np.ndarray], shape: tuple[int, ...], opset: int) -> Any:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    onnx.save(made, path)
    return made


@pytest.mark.parametrize(
    ("kind", "x", "values", "arguments", "opset"),
    CASES,
    ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)],
)
def test_an_op_does_what_the_standard_says(
    tmp_path: Path, kind: str, x: np.ndarray, values: list[np.ndarray], arguments: dict[str, Any], opset: int
) -> None:
    constants = {f"c{number}": value for number, value in enumerate(values)}
    nodes = [helper.make_node(kind, ["x", *constants], ["y"], **arguments)]
    made = write(tmp_path / "net.onnx", nodes, constants, x.shape, opset)
    module = read_onnx(tmp_path / "net.onnx").eval()
    with torch.no_grad():
        ours = module(torch.from_numpy(x)).numpy()
    (theirs,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_uneven_padding_of_a_pool_is_at_the_side_that_the_file_says(tmp_path: Path) -> None:
    """Not against the reference, which pads the other axis."""
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[0, 0, 1, 0])]
    write(tmp_path / "net.onnx", nodes, {}, (1, 1, 2, 3), 18)
    x = torch.tensor([[[[1.0, 2.0, 3.0], [-6.0, -5.0, -4.0]]]])
    assert read_onnx(tmp_path / "net.onnx")(x).tolist() == [[[[2.0, 3.0], [-5.0, -4.0]]]]


def test_the_shape_of_a_view_is_computed_as_exporters_write_it(tmp_path: Path) -> None:
    """x.view(x.size(0), -1)."""
    constants = {"zero": np.array(0, np.int64), "axis": whole(0), "rest": whole(-1)}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    write(tmp_path / "net.onnx", nodes, constants, IMAGE.shape, 18)
    assert read_onnx(tmp_path / "net.onnx")(torch.from_numpy(IMAGE)).shape == (2, 126)


def test_weights_shared_with_statistics_stay_parameters(tmp_path: Path) -> None:
    constants = {"zeros": np.zeros(3, np.float32), "ones": np.ones(3, np.float32)}
    nodes = [helper.make_node("BatchNormalization", ["x", "ones", "zeros", "zeros", "ones"], ["y"])]
    write(tmp_path / "net.onnx", nodes, constants, IMAGE.shape, 15)
    module = read_onnx(tmp_path / "net.onnx").train()
    assert sum(p.numel() for p in module.parameters()) == 6
    first = module(torch.from_numpy(IMAGE))
    torch.testing.assert_close(module(torch.from_numpy(IMAGE)), first)


def test_a_value_is_let_go_after_its_last_use(tmp_path: Path) -> None:
    names = ["x", *(f"v{number}" for number in range(20)), "y"]
    nodes = [helper.make_node("Relu", [before], [after]) for before, after in pairwise(names)]
    write(tmp_path / "net.onnx", nodes, {}, (1, 1000), 18)
    module = read_onnx(tmp_path / "net.onnx")
    alive = []
    relu = torch.relu

    class Watched(torch.Tensor):
        def __del__(self) -> None:
            alive.append(-1)

    with torch.no_grad():
        from ergometer.engines.torch import onnx as engine_onnx

        def watched(x: torch.Tensor) -> torch.Tensor:
            alive.append(1)
            return relu(x).as_subclass(Watched)

        kept = engine_onnx._FUNCTIONS["Relu"]
        engine_onnx._FUNCTIONS["Relu"] = watched
        try:
            module(torch.zeros(1, 1000))
        finally:
            engine_onnx._FUNCTIONS["Relu"] = kept
    assert max(np.cumsum(alive)) <= 3
