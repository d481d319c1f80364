"""What Ergometer adds to an engine: step time of `ergo run` over that of the same engine driven by a plain loop.

LeNet, batch 16, one thread, by turns in fresh processes. The plain loop has no sampler beside it and calls the
framework alone: torch and tinygrad as their tutorials do, the others by their interpreter on the same file.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ergometer.core.spec import Spec
from ergometer.run.environment import probe_of, python_of
from ergometer.run.lowering import ready
from ergometer.run.prove import proof_of

ROUNDS = 7
BOUND = 1.05
BATCH = 16

_LOOP = """
import statistics, time
def timed(step, warm=100, count=600):
    for _ in range(warm): step()
    times = []
    for _ in range(count):
        start = time.perf_counter(); step(); times.append(time.perf_counter() - start)
    print(statistics.median(times))
"""

PLAIN = {
    "torch": """
import torch
from ergometer.core import registry
torch.set_num_threads(1); torch.manual_seed(0)
net = registry.load("models", "lenet").make().train()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
def step():
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
timed(step)
""",
    "tinygrad": """
import os
os.environ["CPU_COUNT"] = "1"
from tinygrad import Device, Tensor, TinyJit, nn
Device.DEFAULT = "CPU"
class LeNet:
    def __init__(self):
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 40, 5)
        self.fc1, self.fc2 = nn.Linear(640, 500), nn.Linear(500, 10)
    def __call__(self, x):
        x = self.conv1(x).relu().max_pool2d()
        x = self.conv2(x).relu().max_pool2d()
        return self.fc2(self.fc1(x.flatten(1)).relu())
net = LeNet()
optimizer = nn.optim.SGD(nn.state.get_parameters(net), lr=0.01, momentum=0.9)
x, y = Tensor.randn(16, 1, 28, 28).realize(), Tensor.randint(16, high=10).realize()
@TinyJit
def train():
    optimizer.zero_grad()
    loss = net(x).sparse_categorical_crossentropy(y)
    loss.backward()
    optimizer.step()
    return loss.realize()
def step():
    train()
    Device["CPU"].synchronize()
with Tensor.train():
    timed(step)
""",
    "mnn": """
import ctypes, sys
import MNN, numpy as np
folder = sys.argv[1]
net = MNN.Interpreter(folder + "/graph.mnn")
session = net.createSession({"backend": "CPU", "numThread": 1, "precision": "high"})
def view(tensor, kind):
    size = int(np.prod(tensor.getShape()))
    return np.ctypeslib.as_array((kind * size).from_address(tensor.getDataPtr()))
image = view(net.getSessionInput(session, "image"), ctypes.c_float)
label = view(net.getSessionInput(session, "label"), ctypes.c_int32)
x, y = np.random.randn(image.size).astype(np.float32), np.random.randint(0, 10, label.size)
def step():
    image[...] = x
    label[...] = y
    net.runSession(session)
timed(step)
""",
    "litert": """
import json, sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
folder = sys.argv[1]
places = json.load(open(folder + "/places.json"))
net = Interpreter(model_path=folder + "/step.tflite", num_threads=1)
net.allocate_tensors()
back = [(places["given"][name][0], tensor) for name, tensor in places["updates"].items()]
for name, (tensor, _) in places["given"].items():
    array = net.tensor(tensor)()
    whole = array.dtype.kind == "i"
    array[...] = np.random.randint(0, 10, array.shape) if whole else np.random.randn(*array.shape) / 30
    del array
def step():
    net.invoke()
    for given, made in back:
        net.set_tensor(given, net.tensor(made)())
timed(step)
""",
}


def plain(engine: str, folder: Path | None) -> float:
    command = [python_of(engine), "-c", _LOOP + PLAIN[engine], str(folder or "")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def ours(engine: str) -> float:
    command = [sys.executable, "-m", "ergometer", "run", "lenet", "--engine", engine, "--batch", str(BATCH)]
    command += ["--threads", "1", "--steps", "600", "--warmup", "100", "--trace-steps", "0", "--json", "-"]
    (record,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    value: Any = record["metrics"]["step_time"]["value"]
    return float(value)


def main() -> None:
    for engine in PLAIN:
        probe = probe_of(engine, "cpu")
        if not probe.ok:
            print(f"engines {engine}: not run, {probe.reason}")
            continue
        folder = None
        if engine != "torch":
            spec = Spec(model="lenet", engine=engine, batch=BATCH, threads=1)
            proof_of(spec)
            folder = ready(spec) / f"train-{BATCH}"
        pairs = [(ours(engine), plain(engine, folder)) for _ in range(ROUNDS)]
        ratios = sorted(mine / theirs for mine, theirs in pairs)
        middle = statistics.median(ratios)
        verdict = "ok" if middle <= BOUND else "ABOVE"
        step_ms = statistics.median(mine for mine, _ in pairs) * 1e3
        spread = f"{ratios[0]:.3f} .. {ratios[-1]:.3f}"
        print(f"engines {engine}: step {step_ms:.2f} ms, over a loop {middle:.3f} ({spread}), bound {BOUND} {verdict}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["ERGO_HOME"] = home
        main()
