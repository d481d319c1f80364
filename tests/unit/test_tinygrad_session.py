"""Which phase and layer a kernel of tinygrad belongs to, on calls that are made up."""

from types import SimpleNamespace
from typing import Any

from ergometer.engines.tinygrad._session import _layers, _phases

OWNERS = {"w1": "conv1", "g1": "conv1", "w2": "conv2", "g2": "conv2", "mean": "norm"}


def call(written: str, *read: str) -> Any:
    return SimpleNamespace(src=(None, *(SimpleNamespace(base=name) for name in (written, *read))))


def test_memory_that_is_used_again_belongs_to_what_wrote_it_last() -> None:
    calls = [
        call("a", "x", "w1"),
        call("loss", "a", "w2"),
        call("a", "loss", "w2"),  # the gradient of a, where a was
        call("mean", "x"),  # running statistics, in place
        call("t", "a", "x"),  # parts of a sum
        call("g1", "t"),
        call("w1", "g1"),
    ]
    assert _phases(calls, {"loss", "mean"}, 6) == [
        "forward",
        "forward",
        "backward",
        "forward",
        "backward",
        "backward",
        "optimizer",
    ]
    assert _layers(calls, OWNERS) == ["conv1", "conv2", "conv2", "norm", "conv1", "conv1", "conv1"]


def test_a_copy_of_a_parameter_is_still_that_layers() -> None:
    calls = [call("c", "w2"), call("y", "x", "c"), call("c", "x", "y"), call("z", "c", "y"), call("end", "z", "z")]
    assert _layers(calls, OWNERS)[:4] == ["conv2", "conv2", "", ""]
