"""Engines in environments of their own (`make engines`), through the command line."""

import json

import pytest

from ergometer.core import registry
from ergometer.run.environment import probe_of
from tests.conftest import Ergo

pytestmark = [pytest.mark.environments, pytest.mark.timeout(900)]
APART = ("ort", "tensorflow")


@pytest.mark.parametrize("engine", APART)
def test_it_works_there_and_not_here(engine: str) -> None:
    assert not registry.load("engines", engine)().probe("cpu").ok
    assert probe_of(engine, "cpu").ok


@pytest.mark.parametrize("engine", APART)
def test_it_is_proved_measured_and_traced(ergo: Ergo, engine: str) -> None:
    command = ("run", "lenet", "--engine", engine, "--mode", "train,infer", "--batch", "8", "--threads", "1")
    done = ergo(*command, "--steps", "40", "--json", "-", timeout=300)
    assert done.returncode == 0, done.stderr
    train, infer = json.loads(done.stdout)
    for record in (train, infer):
        assert record["status"] == "ok" and engine in record["host"]["versions"]
    assert train["metrics"]["gradient_error"]["value"] < 1e-4
    assert infer["metrics"]["score_error"]["value"] < 1e-4
    shown = ergo("show", train["id"], "--layers").stdout
    assert all(word in shown for word in ("conv1", "conv2", "fc1", "fc2", "backward")), shown


@pytest.mark.parametrize("engine", APART)
def test_its_gradients_are_right_where_there_is_batch_norm(ergo: Ergo, engine: str) -> None:
    done = ergo("verify", "mobilenet_reduced", "resnet_reduced", "--engine", engine, "--json", "-", timeout=600)
    assert done.returncode == 0, done.stderr
    for proof in json.loads(done.stdout):
        assert proof["versions"] and set(proof["variants"]) == {"smooth", "actual"}
