"""The suite and the user's own networks through the command line."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ergometer.core import registry
from tests.conftest import Ergo, one_sentence

QUICK = ("--steps", "2", "--warmup", "0", "--trace-steps", "1", "--sensors", "process,memory")
SPECIAL = {"dcgan": "3x16x16", "dqn": "4x36x36", "seq2seq:width=32": "6", "conv_only:width=8,depth=2": "3x8x8"}


def records(ergo: Ergo, *arguments: str) -> list[dict]:
    done = ergo("run", *arguments, "--json", "-")
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("name", SPECIAL)
def test_networks_that_train_in_ways_of_their_own(ergo: Ergo, name: str) -> None:
    found = records(ergo, name, "--input", SPECIAL[name], "--batch", "1,2", *QUICK)
    assert [record["status"] for record in found] == ["ok", "ok"], [record["reason"] for record in found]
    for record in found:
        metrics = record["metrics"]
        phases = [metrics[f"{phase}_time"]["value"] for phase in ("forward", "backward", "optimizer")]
        phases.append(metrics.get("environment_time", {"value": 0})["value"])
        assert sum(phases) == pytest.approx(metrics["step_time"]["value"], rel=0.35)
        assert ("environment_time" in metrics) == (name == "dqn")
        assert metrics["macs_forward"]["value"] > 0
    assert found[1]["metrics"]["macs_forward"]["value"] == 2 * found[0]["metrics"]["macs_forward"]["value"]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", registry.names("models"))
def test_every_network_trains_and_infers(ergo: Ergo, name: str) -> None:
    model = registry.load("models", name)
    side = 16 if model.refuse else max(model.smallest, model.alone, 16)
    shape = str(side) if len(model.input) == 1 else f"{model.input[0]}x{side}x{side}"
    named = {"bert": "bert:size=small"}.get(name, name)
    found = records(ergo, named, "--input", shape, "--batch", "1,2", "--mode", "train,infer", *QUICK)
    assert [record["status"] for record in found] == ["ok"] * 4, [record["reason"] for record in found]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["vgg19", "bert", "resnet101", "resnet152", "densenet100_12", "seq2seq"])
def test_what_the_tx2_paper_could_not_train_trains_in_4_gb(ergo: Ergo, name: str) -> None:
    (record,) = records(ergo, name, "--memory-limit", "4GB", *QUICK)
    assert record["status"] == "ok", record["reason"]
    assert record["metrics"]["peak_memory"]["value"] < 4e9


def test_a_network_that_is_too_large_is_a_row_with_its_peak(ergo: Ergo) -> None:
    found = records(ergo, "vgg19", "lenet", "--memory-limit", "700MB", *QUICK)
    assert [record["status"] for record in found] == ["out_of_memory", "ok"]
    assert 3e8 < found[0]["metrics"]["peak_memory"]["value"] < 9e8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("conv_only:depht=4",), ("no option 'depht'", "width=64,depth=1")),
        (("conv_only:width=many",), ("whole number",)),
        (("resnet_reduced:variant=big",), ("choose from wrn, literal",)),
        (("lenet:width=4",), ("no option 'width'", "it has none")),
        (("conv_only", "--classes", "5"), ("takes no --classes", "width")),
        (("alexnet", "--input", "3x32x32"), ("cannot take 3x32x32", "pixels")),
        (("dcgan", "--input", "3x30x30"), ("cannot take 3x30x30", "square")),
        (("bert", "--input", "3x224x224"), ("cannot take",)),
        (("bert", "--input", "600"), ("512",)),
        (("resnet50", "--input", "3x32x32", "--batch", "2,1"), ("one sample of 3x32x32", "larger --batch")),
        (("lenet", "--data", "shakespeare"), ("cannot use data set shakespeare", "mnist")),
        (("lenet", "--data", "imagenet_subset"), ("needs --data-dir",)),
        (("lenet", "--data", "mnist", "--data-dir", "/nowhere"), ("not a folder",)),
        (("lenet", "--data-dir", "/tmp"), ("reads no folder",)),
        (("lenet", "--data", "minst"), ("did you mean mnist",)),
        (("net.pt2", "--input", "3x8x8", "--classes", "4"), ("cannot be read",)),
    ],
)
def test_a_wrong_request_is_refused_before_anything_runs(
    ergo: Ergo, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = ergo("run", *arguments)
    assert done.returncode == 2
    sentence = one_sentence(done)
    assert all(word in sentence for word in words), sentence
    assert not (ergo.home / "runs").exists() or not list((ergo.home / "runs").iterdir())


def test_show_model(ergo: Ergo) -> None:
    done = ergo("show-model", "lenet")
    assert done.returncode == 0
    assert "349,980" in done.stdout and "20x24x24" in done.stdout and "fc1" in done.stdout
    assert "did you mean lenet" in one_sentence(ergo("show-model", "lennet"))


def test_the_users_own_network_that_fails_is_shown_with_the_users_lines(ergo: Ergo, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(10, 4)\n"
        "    def forward(self, x):\n"
        "        return self.head(x)\n"
        "    def head(self, x):\n"
        "        return self.fc(x.flatten(1))\n"
        "def build():\n"
        "    return Net()\n"
    )
    (record,) = records(ergo, f"{path}:build", "--input", "3x8x8", "--classes", "4", *QUICK)
    assert record["status"] == "failed"
    assert "net.py line 7 in forward: return self.head(x)" in record["reason"]
    assert "net.py line 9 in head: return self.fc(x.flatten(1))" in record["reason"]
    assert "ergometer" not in record["reason"] and "torch/nn" not in record["reason"]
    done = ergo("show-model", f"{path}:build", "--input", "3x8x8", "--classes", "4")
    assert "does not run on samples of this shape" in one_sentence(done)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.dropout(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


@pytest.mark.slow
@pytest.mark.alone
def test_a_torch_export_archive_trains_and_infers(ergo: Ergo, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(Small().eval(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    found = records(
        ergo, str(path), "--input", "3x8x8", "--classes", "4", "--batch", "4", "--mode", "train,infer", *QUICK
    )
    assert [record["status"] for record in found] == ["ok", "ok"], [record["reason"] for record in found]
    assert found[0]["metrics"]["parameters"]["value"] == sum(p.numel() for p in Small().parameters())
    assert "conv" in ergo("show-model", str(path), "--input", "3x8x8", "--classes", "4").stdout
    path.write_bytes(path.read_bytes()[:500])
    (record,) = records(ergo, str(path), "--input", "3x8x8", "--classes", "4", *QUICK)
    assert record["status"] == "failed" and "no torch.export archive" in record["reason"]


def write_onnx(path: Path, last: str = "Gemm") -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weights = {
        "conv.weight": random.standard_normal((6, 3, 3, 3)) * 0.2,
        "conv.bias": np.zeros(6),
        "scale": np.ones(6),
        "shift": np.zeros(6),
        "mean": np.zeros(6),
        "variance": np.ones(6),
        "fc.weight": random.standard_normal((4, 6)) * 0.3,
        "fc.bias": np.zeros(4),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node(last, ["f", "fc.weight", "fc.bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph), path)


@pytest.mark.slow
@pytest.mark.alone
def test_an_onnx_file_trains_and_infers(ergo: Ergo, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_onnx(path)
    options = ("--input", "3x8x8", "--classes", "4")
    found = records(ergo, str(path), *options, "--batch", "4", "--mode", "train,infer", *QUICK)
    assert [record["status"] for record in found] == ["ok", "ok"], [record["reason"] for record in found]
    assert found[0]["metrics"]["parameters"]["value"] == 6 * 27 + 6 + 12 + 24 + 4
    assert found[0]["metrics"]["macs_forward"]["value"] == 4 * (6 * 27 * 64 + 24)
    write_onnx(path, last="Frobnicate")
    (record,) = records(ergo, str(path), *options, *QUICK)
    assert record["status"] == "failed" and "does not know: Frobnicate" in record["reason"]
    path.write_bytes(b"\x00garbage")
    (record,) = records(ergo, str(path), *options, *QUICK)
    assert record["status"] == "failed" and "no readable ONNX file" in record["reason"]


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder laid out as MNIST is, with 40 pictures."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    random = np.random.default_rng(0)
    for split in ("train", "t10k"):
        pictures = random.integers(0, 256, (40, 28, 28), np.uint8).tobytes()
        labels = random.integers(0, 10, 40).astype(np.uint8).tobytes()
        header = struct.pack(">IIII", 2051, 40, 28, 28)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pictures))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">II", 2049, 40) + labels))
    return folder


def test_real_data_is_loaded_beside_the_step(ergo: Ergo, mnist: Path) -> None:
    (record,) = records(ergo, "lenet", "--data", "mnist", "--data-dir", str(mnist), "--batch", "8", *QUICK)
    assert record["status"] == "ok", record["reason"]
    assert record["spec"]["classes"] == 10
    assert record["metrics"]["data_time"]["n"] == 2
    assert 0 < record["metrics"]["data_time"]["value"] < 1


def test_a_truncated_data_file_is_one_sentence(ergo: Ergo, mnist: Path) -> None:
    path = mnist / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    (record,) = records(ergo, "lenet", "--data", "mnist", "--data-dir", str(mnist), "--batch", "8", *QUICK)
    assert record["status"] == "failed"
    assert "train-images" in record["reason"] and "\n" not in record["reason"]
