"""What Ergometer adds to an engine: step time of `ergo run` over that of the same engine driven by a plain loop.

LeNet, batch 16, one thread, by turns in fresh processes. The plain loop has no sampler beside it and calls the
framework alone: torch, tinygrad and tensorflow as their tutorials do, the others by their interpreter on the same
file. Engines that do not train infer.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ergometer.core import registry
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

_TORCH = """
import torch
from ergometer.core import registry
torch.set_num_threads(1); torch.manual_seed(0)
net = registry.load("models", "lenet").make().train()
forward = {forward}
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
def step():
    loss = torch.nn.functional.cross_entropy(forward(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
timed(step)
"""

PLAIN = {
    "torch": _TORCH.format(forward="net"),
    "torch_compile": _TORCH.format(forward='torch.compile(net, options={"max_fusion_size": 1})'),
    "tinygrad": """
import os
os.environ |= {"CPU_COUNT": "1", "CC": "clang"}
from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import DEV, Context
DEV.value = "CPU"
class LeNet:
    def __init__(self):
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.fc1, self.fc2 = nn.Linear(800, 400), nn.Linear(400, 10)
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
    return loss.realize(*optimizer.schedule_step())
def step():
    train()
    Device["CPU"].synchronize()
with Context(TRAINING=1):
    timed(step)
""",
    "mnn": """
import ctypes, sys
import MNN, numpy as np
folder = sys.argv[1]
net = MNN.Interpreter(folder + "/graph.mnn")
session = net.createSession({"backend": "CPU", "numThread": 1, "precision": "high"})
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
def view(tensor, kind):
    size = int(np.prod(tensor.getShape()))
    return np.ctypeslib.as_array((kind * size).from_address(pointer(tensor.getHost(), None)))
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
    scale = 0 if name.startswith("velocity/") else 1 if name == "image" else 1 / 30
    array[...] = np.random.randint(0, 10, array.shape) if name == "label" else scale * np.random.randn(*array.shape)
    del array
def step():
    net.invoke()
    for given, made in back:
        net.set_tensor(given, net.tensor(made)())
timed(step)
""",
    "tensorflow": """
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
def drawn(*shape): return tf.Variable(tf.random.normal(shape) / 30)
shapes = [(5, 5, 1, 20), (20,), (5, 5, 20, 50), (50,), (800, 400), (400,), (400, 10), (10,)]
weights = [drawn(*shape) for shape in shapes]
speeds = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
x, y = tf.random.normal((16, 28, 28, 1)), tf.random.uniform((16,), maxval=10, dtype=tf.int64)
def forward(x):
    a, b, c, d, e, f, g, h = weights
    x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, a, 1, "VALID") + b), 2, 2, "VALID")
    x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, c, 1, "VALID") + d), 2, 2, "VALID")
    return tf.nn.relu(tf.reshape(x, (16, -1)) @ e + f) @ g + h
@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, forward(x)))
    for weight, speed, gradient in zip(weights, speeds, tape.gradient(loss, weights)):
        speed.assign(0.9 * speed + gradient)
        weight.assign_sub(0.01 * speed)
    return loss
timed(lambda: train(x, y))
""",
    "ort": """
import sys
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
net = onnxruntime.InferenceSession(sys.argv[1] + "/step.onnx", options, providers=["CPUExecutionProvider"])
def drawn(item):
    if "int64" in item.type: return np.random.randint(0, 10, item.shape)
    scale = 0 if item.name.startswith("velocity/") else 1 if item.name == "image" else 1 / 30
    return scale * np.random.randn(*item.shape).astype(np.float32)
now = {item.name: onnxruntime.OrtValue.ortvalue_from_numpy(drawn(item)) for item in net.get_inputs()}
then = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value.numpy()) for name, value in now.items()}
loss = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((), np.float32))
results = {item.name for item in net.get_outputs()}
bindings = [net.io_binding(), net.io_binding()]
for binding, given, made in zip(bindings, (now, then), (then, now)):
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
        if name + "/next" in results: binding.bind_ortvalue_output(name + "/next", made[name])
    for name in results:
        if not name.endswith("/next"): binding.bind_ortvalue_output(name, loss)
def step():
    net.run_with_iobinding(bindings[0])
    bindings.reverse()
timed(step)
""",
    "onnxruntime": """
import sys
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
net = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", options, providers=["CPUExecutionProvider"])
given = {"image": np.random.randn(16, 1, 28, 28).astype(np.float32)}
timed(lambda: net.run(None, given))
""",
    "openvino": """
import sys
import numpy as np, openvino
options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
request = openvino.Core().compile_model(sys.argv[1] + "/model.onnx", "CPU", options).create_infer_request()
given = {"image": np.random.randn(16, 1, 28, 28).astype(np.float32)}
timed(lambda: request.infer(given, share_inputs=True, share_outputs=True))
""",
    "ncnn": """
import sys
import ncnn, numpy as np
net = ncnn.Net()
net.opt.num_threads = 1
net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
net.load_param(sys.argv[1] + "/model.param")
net.load_model(sys.argv[1] + "/model.bin")
output = net.output_names()[0]
samples = [ncnn.Mat(sample).clone() for sample in np.random.randn(16, 1, 28, 28).astype(np.float32)]
def step():
    for sample in samples:
        run = net.create_extractor()
        run.input("image", sample)
        run.extract(output)
timed(step)
""",
}


def plain(engine: str, folder: Path | None) -> float:
    command = [python_of(engine), "-c", _LOOP + PLAIN[engine], str(folder or "")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def ours(spec: Spec) -> float:
    command = [sys.executable, "-m", "ergometer", "run", "lenet", "--engine", spec.engine, "--mode", spec.mode]
    command += ["--batch", str(BATCH)]
    command += ["--threads", "1", "--steps", "600", "--warmup", "100", "--trace-steps", "0", "--json", "-"]
    (record,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    value: Any = record["metrics"]["step_time"]["value"]
    return float(value)


def main() -> None:
    for engine in sys.argv[1:] or PLAIN:
        probe = probe_of(engine, "cpu")
        if not probe.ok:
            print(f"engines {engine}: not run, {probe.reason}")
            continue
        mode = registry.load("engines", engine).modes[0]
        spec = Spec(model="lenet", engine=engine, mode=mode, batch=BATCH, threads=1)
        proof_of(spec)
        folder = None if engine.startswith("torch") else ready(spec) / f"{mode}-{BATCH}"
        pairs = [(ours(spec), plain(engine, folder)) for _ in range(ROUNDS)]
        ratios = sorted(mine / theirs for mine, theirs in pairs)
        middle = statistics.median(ratios)
        verdict = "ok" if middle <= BOUND else "ABOVE"
        step_ms = statistics.median(mine for mine, _ in pairs) * 1e3
        spread = f"{ratios[0]:.3f} .. {ratios[-1]:.3f}"
        print(
            f"engines {engine} {mode}: {step_ms:.2f} ms, over a loop {middle:.3f} ({spread}), bound {BOUND}: {verdict}"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["ERGO_HOME"] = home
        main()
