"""A graph in tinygrad's hands: differentiated by it, and compiled into one list of kernels."""

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ergometer.core.clock import now_ns
from ergometer.core.engine import LEARNING_RATE, MOMENTUM
from ergometer.core.graph import VELOCITY, Graph
from ergometer.engines.tinygrad import _devices as devices
from ergometer.engines.tinygrad._placed import Placed
from ergometer.engines.tinygrad._products import NAME, Products
from ergometer.engines.tinygrad._rules import KEPT, KEPT_GRADIENTS, rules


class Session:
    """places: which products of a step the accelerator gets; the rest of it follows them, or stays on the host.

    lacking: first results of nodes that the accelerator cannot run.
    """

    def __init__(
        self,
        graph: Graph,
        arrays: Any,
        host: str,
        accelerator: str,
        places: Sequence[str],
        products: Products,
        lacking: Collection[str] = (),
    ):
        from tinygrad.engine.jit import jit_lower
        from tinygrad.engine.realize import link_linear
        from tinygrad.helpers import DEV
        from tinygrad.uop.ops import buffers

        whole = {"forward", "input", "filter"} if graph.parameters else {"forward"}
        self.placed = None
        if host != accelerator and set(places) & whole and (lacking or not whole <= set(places)):
            self.placed = Placed(graph, products, host, accelerator, places, lacking)
        self.device = accelerator if whole <= set(places) else host  # of parameters, data and results
        self.devices = {host, accelerator} if self.placed else {self.device}
        devices.check(self.devices)
        DEV.value = self.device.partition(":")[0]  # otherwise it opens all devices, to find a default
        self.graph, self.rules = graph, rules(products)
        kept = (*graph.parameters, *graph.constants, *graph.buffers)
        self.values = {name: self._tensor(arrays[name]) for name in kept}
        self.velocities = {name: self._tensor(np.zeros_like(arrays[name])) for name in graph.parameters}
        fed = {name: graph.values[name] for name in (*graph.inputs, *graph.masks)}
        self.fed = {name: self._tensor(np.zeros(value.shape, value.dtype)) for name, value in fed.items()}
        linear, gradients, count = self._train() if graph.parameters else self._infer()
        held = [*self.values.items(), *self.velocities.items(), *gradients.items()]
        owners = {tensor.uop.base: name.rpartition(".")[0] for name, tensor in held}
        results = {tensor.uop.base for tensor in (self.output, *(self.values[name] for name in graph.updates))}
        self.phases, self.layers = _phases(linear.src, results, count), _layers(linear.src, owners)
        self.compiled = link_linear(jit_lower(linear, {self.output.uop.base, *buffers}, []))
        self.parts = _parts(self.compiled) if self.placed else [self.compiled]
        for call in kernels(self.compiled):
            if not _is_copy(call):
                devices.get_kernel(call.src[1].device, call.src[0])  # OpenCL compiles when one is first asked for

    def feed(self, batch: dict[str, Any]) -> None:
        from tinygrad.device import Buffer

        for name, array in batch.items():
            target = self.fed[name].uop.base.buffer
            target.copy_from(Buffer("NPY", target.size, target.dtype, opaque=_plain(array)))

    def step(self, masks: dict[str, Any]) -> None:
        from tinygrad.engine.realize import run_linear

        self.feed(masks)
        for part in self.parts:
            if _is_copy(part.src[0]):
                _copy(part.src[0])
            else:
                run_linear(part, jit=True)
                self._wait()

    def _wait(self) -> None:
        from tinygrad import Device

        for device in self.devices:
            Device[device].synchronize()

    def result(self) -> Any:
        return self.output.numpy()

    def state(self) -> Iterator[tuple[str, Any]]:
        for name in (*self.graph.parameters, *self.graph.updates):
            yield name, self.values[name].numpy()
        for name, velocity in self.velocities.items():
            yield VELOCITY + name, velocity.numpy()

    def _tensor(self, array: Any) -> Any:
        from tinygrad import Tensor

        return Tensor(_plain(array), device=self.device).realize()

    def _run(self) -> dict[str, Any]:
        found = self.values | self.fed
        if self.placed:
            return self.placed.forward(found)
        for node in self.graph.nodes:
            given = [found[name] for name in node.inputs]
            if node.op in KEPT:
                given = [tensor.contiguous() for tensor in given]
            results = self.rules[node.op](node, *given)
            if node.op in KEPT_GRADIENTS:
                results = results.contiguous_backward()
            found |= zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True)
        return found

    def _infer(self) -> tuple[Any, dict[str, Any], int]:
        self.output = self._run()[self.graph.outputs[0]].to(self.device).contiguous()
        linear = self.output.schedule_linear()
        return linear, {}, len(linear.src)

    def _train(self) -> tuple[Any, dict[str, Any], int]:
        """The kernels of a step, the gradients that are among their results, and how many come before the update.

        All gradients come before all updates: tinygrad copies a parameter that others still have to read.
        """
        from tinygrad import Tensor

        found = self._run()
        self.output = found[self.graph.outputs[0]].to(self.device).contiguous()
        parameters = [self.values[name] for name in self.graph.parameters]
        taken = self.placed.gradients() if self.placed else self.output.gradient(*parameters)
        gradients = [gradient.contiguous() for gradient in taken]
        news = {name: found[source].to(self.device) for name, source in self.graph.updates.items()}
        running = [self.values[name].assign(new) for name, new in news.items()]
        first = self.output.schedule_linear(*gradients, *running)
        for parameter, velocity, gradient in zip(parameters, self.velocities.values(), gradients, strict=True):
            velocity.assign(MOMENTUM * velocity + gradient)
            parameter.assign(parameter - LEARNING_RATE * velocity)
        then = Tensor.schedule_linear(*parameters, *self.velocities.values())
        whole = first.replace(src=(*first.src, *then.src))
        return whole, dict(zip(self.graph.parameters, gradients, strict=True)), len(first.src)

    def trace(self) -> Iterator[tuple[int, int, str, str, str]]:
        """Run a step kernel by kernel: when each began and ended, its name, phase and layer."""
        from tinygrad.engine.realize import run_linear
        from tinygrad.helpers import GlobalCounters

        for call, phase, layer in zip(kernels(self.compiled), self.phases, self.layers, strict=True):
            start, before = now_ns(), GlobalCounters.time_sum_s
            if _is_copy(call):
                _copy(call)
                end = now_ns()
            else:  # timed by its device
                run_linear(self.compiled.replace(src=(call,)), jit=True, wait=True)
                end = now_ns()
                start = end - int(1e9 * (GlobalCounters.time_sum_s - before))
            yield start, end, _name(call), phase, layer


def _plain(array: Any) -> Any:
    """In the order of its indices; whole numbers in 32 bits."""
    return np.asarray(array, np.int32 if array.dtype == np.int64 else None, order="C")


def _phases(calls: Sequence[Any], results: Collection[Any], count: int) -> list[str]:
    """Of each kernel its phase: forward is what the results of that pass need; after so many comes the update.

    The same memory holds one result after another: a result is what was written last before it is read.
    """
    wanted, found = set(results), []
    for call in reversed(calls[:count]):
        written, *read = (buffer.base for buffer in call.src[1:])
        found.append("forward" if written in wanted else "backward")
        if written in wanted:
            wanted.remove(written)
            wanted.update(read)
    return [*reversed(found), *["optimizer"] * (len(calls) - count)]


def _layers(calls: Sequence[Any], owners: dict[Any, str]) -> list[str]:
    """Of each kernel the layers whose parameters, or copies of them, it touches, or else of the one kernel that reads
    its result."""
    held, found = dict(owners), []
    for call in calls:
        written, *read = (buffer.base for buffer in call.src[1:])
        given = {held.get(buffer, "") for buffer in read}
        found.append(" + ".join(sorted((given | {owners.get(written, "")}) - {""})))
        if written not in owners:
            held[written] = given.pop() if len(given) == 1 else ""
    readers: dict[Any, list[str]] = {}
    for number, call in reversed(list(enumerate(calls))):
        written, *read = (buffer.base for buffer in call.src[1:])
        reading = readers.pop(written, [])
        found[number] = found[number] or (reading[0] if len(reading) == 1 else "")
        for buffer in read:
            readers.setdefault(buffer, []).append(found[number])
    return found


def _parts(linear: Any) -> list[Any]:
    """The list cut before and after every copy, which waits. tinygrad would only ask OpenCL to copy, and the memory
    that is copied from may be written again before that has happened."""
    parts = groupby(enumerate(linear.src), lambda item: item[0] if _is_copy(item[1]) else -1)
    return [linear.replace(src=tuple(call for _, call in part)) for _, part in parts]


def _copy(call: Any) -> None:
    target, source = (buffer.buffer.ensure_allocated() for buffer in call.src[1:3])
    devices.copy(target, source)


def _is_copy(call: Any) -> bool:
    from tinygrad.uop.ops import Ops

    return bool(call.src[0].op is Ops.COPY)


def _name(call: Any) -> str:
    """A kernel's name, without the sizes of a product; of a transfer, from where to where."""
    from tinygrad.helpers import ansistrip

    if _is_copy(call):
        return f"transfer {call.src[2].device} to {call.src[1].device}"
    name = str(ansistrip(call.src[0].arg.name))
    ours = NAME.fullmatch(name)
    return ours[1] if ours else name


def kernels(linear: Any) -> Iterator[Any]:
    """Every kernel of a captured step; some devices batch them."""
    for call in linear.src:
        if call.src[0].arg == "graph":
            yield from call.src[0].src[0].src
        else:
            yield call
