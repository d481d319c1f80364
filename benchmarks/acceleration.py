"""What an accelerator gains: tinygrad with each placement, beside torch on the same GPU and on the CPU.

    python benchmarks/acceleration.py [--device opencl|cuda] [--batch 128] [--place none,both] [--precision tf32]
        [--alone] [MODEL ...]

A line for each network and mode: step times with nothing, the forward pass and both passes on the accelerator, their
ratios, the energy of a step (of the GPU, idle included), the rate of arithmetic as a share of what torch reaches in one
large product of the same precision, and the bytes that the kernels of the last placement move at least, with the time
that a copy of as many takes. The host is OpenCL's CPU where there is one, else one thread.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.spec import Spec
from ergometer.engines.tinygrad import _devices as devices
from ergometer.engines.tinygrad._products import Products
from ergometer.engines.tinygrad._session import Session, kernels
from ergometer.run.resolve import resolve

MODELS = [f"conv_only:depth={depth},width={width}" for depth in (4, 8) for width in (64, 128, 256)]
PLACES = {"none": (), "forward": ("forward",), "both": ("forward", "input", "filter")}
WANTED = {"conv_only": 2.2, "mobilenet_reduced": 1.7}  # SEC19: both over none
NEAR = 3.0  # times cuDNN in the same precision
LONGEST_S = 3.0


def timed(step: Callable[[], object], meter: "Meter") -> tuple[float, float | None]:
    """The median of a step's seconds, and its joules; the first steps do not count."""
    begun = time.perf_counter()
    step()
    if time.perf_counter() - begun < LONGEST_S:
        step()
    times: list[float] = []
    before, begun = meter.joules(), time.perf_counter()
    while not times or (time.perf_counter() - begun < LONGEST_S and len(times) < 500):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    after = meter.joules()
    return statistics.median(times), None if before is None or after is None else (after - before) / len(times)


class Meter:
    """The energy that the first NVIDIA GPU has counted."""

    def __init__(self) -> None:
        import pynvml

        self.gpu: Any = None
        try:
            pynvml.nvmlInit()
            self.gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError as error:
            print(f"no energy: {error}")
        self.read = pynvml.nvmlDeviceGetTotalEnergyConsumption

    def joules(self) -> float | None:
        return None if self.gpu is None else self.read(self.gpu) / 1000


class Network:
    """A network and a batch, captured once; macs are those of a step."""

    def __init__(self, model: str, mode: str, batch: int):
        self.spec = Spec(model=model, engine="torch", mode=mode, batch=batch)
        self.model = resolve(self.spec)
        request = Request(fields=self.model.fields(), batch=batch, seed=0, folder=None)
        self.batch = list(registry.load("data", "synthetic").open(request).batch())
        torch = self.torch("cpu")
        self.graph, self.arrays = torch.capture()
        counts = torch.counts()
        self.macs = counts.macs_forward + (counts.macs_backward if mode == "train" else 0)

    def torch(self, device: str, **options: str) -> Any:
        engine = registry.load("engines", "torch")()
        engine.load(replace(self.spec, device=device, options=options), self.model, self.batch)
        return engine

    def placed(self, host: str, accelerator: str, place: str, products: Products) -> Session:
        session = Session(self.graph, self.arrays, host, accelerator, PLACES[place], products)
        names = [item.name for item in self.model.fields()]
        session.feed({name: item for name, item in zip(names, self.batch, strict=True) if name in session.fed})
        return session


def least_bytes(session: Session) -> int:
    """What the kernels of a step read and write, each of their arrays once."""
    return sum(array.buffer.nbytes for call in kernels(session.compiled) for array in call.src[1:])


def rates() -> dict[str, float]:
    """What the GPU reaches through torch: bytes and operations a second."""
    import torch

    def seconds(work: Callable[[], object]) -> float:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / 10

    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda") for _ in range(2))
    found = {"bytes": 2 * 4 * 2**29 / seconds(lambda: target.copy_(source))}
    for name, rounded in (("float32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = rounded
        found[name] = 2 * 8192**3 / seconds(lambda: a @ b)
    return found


def peers(network: Network, meter: Meter) -> dict[str, float]:
    import torch

    found = {}
    if torch.cuda.is_available():
        for precision in ("float32", "tf32"):
            engine = network.torch("cuda", precision=precision)
            found[f"torch cuda {precision}"] = timed(lambda engine=engine: engine.step(), meter)[0]  # type: ignore[misc]
    engine = network.torch("cpu")
    found["torch cpu"] = timed(lambda: engine.step(), meter)[0]
    return found


def measure(model: str, mode: str, chosen: argparse.Namespace, ceilings: dict[str, float]) -> bool:
    network, meter, products = Network(model, mode, chosen.batch), Meter(), Products(tf32=chosen.precision == "tf32")
    host, accelerator = devices.find(chosen.device)
    if products.tf32 and not devices.limits_of(accelerator).ampere:
        sys.exit("--precision tf32 is of NVIDIA GPUs since 2020 (Ampere)")
    seconds, joules = {}, {}
    for place in chosen.place.split(","):
        if (place, mode) == ("forward", "infer"):
            continue
        begun = time.perf_counter()
        session = network.placed(host, accelerator, place, products)
        ready = time.perf_counter() - begun
        seconds[place], joules[place] = timed(lambda session=session: session.step({}), meter)  # type: ignore[misc]
        print(f"# {mode} {model} {place}: ready in {ready:.1f} s", file=sys.stderr, flush=True)
        moved = least_bytes(session)
        del session
    parts = [f"{place} {value * 1e3:.4g} ms" for place, value in seconds.items()]
    gains = {place: value / seconds["both"] for place, value in seconds.items() if place != "both"}
    parts += [f"both/{place} {gain:.3g}x" for place, gain in gains.items()]
    parts += [f"{value:.3g} J a step of the GPU with {place}" for place, value in joules.items() if value is not None]
    rate = 2 * network.macs / seconds["both"]
    share = f", {100 * rate / ceilings[chosen.precision]:.0f} % of {chosen.precision}" if ceilings else ""
    parts.append(f"{rate / 1e12:.3g} TFLOP/s{share}")
    floor = f", {moved / ceilings['bytes'] * 1e3:.3g} ms" if ceilings else ""
    parts.append(f"{place} moves at least {moved / 1e9:.3g} GB{floor}")
    beside = {} if chosen.alone else peers(network, meter)
    for name, value in beside.items():
        parts.append(f"{name} {value * 1e3:.4g} ms (both takes {seconds['both'] / value:.3g}x)")
    print(f"{mode} {model} batch {chosen.batch} {chosen.device} {chosen.precision}: {'; '.join(parts)}", flush=True)
    near = seconds["both"] <= NEAR * beside.get(f"torch cuda {chosen.precision}", math.inf) or mode != "train"
    return near and gains.get("none", math.inf) >= WANTED.get(model.partition(":")[0], 0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="opencl", choices=("opencl", "cuda"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--mode", default="train,infer")
    parser.add_argument("--place", default=",".join(PLACES))
    parser.add_argument("--precision", default="float32", choices=("float32", "tf32"))
    parser.add_argument("--alone", action="store_true", help="without torch beside it")
    parser.add_argument("models", nargs="*", default=[])
    chosen = parser.parse_args()
    devices.set_environment()
    devices.set_threads(len(os.sched_getaffinity(0)))
    import torch

    ceilings = rates() if torch.cuda.is_available() else {}
    if ceilings:
        print(
            f"{torch.cuda.get_device_name()}: copies {ceilings['bytes'] / 1e12:.3g} TB/s, "
            f"one product {ceilings['float32'] / 1e12:.3g} TFLOP/s in float32, {ceilings['tf32'] / 1e12:.3g} in tf32"
        )
    held = [
        measure(model, mode, chosen, ceilings)
        for model in chosen.models or [*MODELS, "mobilenet_reduced"]
        for mode in chosen.mode.split(",")
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
