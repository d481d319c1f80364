"""The runs of one `ergo run`: which Specs its options mean, and running them one after the other."""

import argparse
import itertools
import sys
import time

from ergometer.core import registry
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.quantity import format_value, parse_bytes, parse_seconds, parse_shape
from ergometer.core.record import Record
from ergometer.core.sensor import sysroot
from ergometer.core.spec import Budget, Spec
from ergometer.run.host import choose_cores, memory_bytes
from ergometer.run.interrupt import Interrupt
from ergometer.run.parent import Progress, one_at_a_time, run_spec
from ergometer.run.resolve import check, is_file
from ergometer.store.database import Store

_REDRAW_S = 0.5


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} {text!r} has an empty entry: write values with commas, such as 1,2,4.")
    return words


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(word) for word in _words(text, option)]
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a list of whole numbers: write it like 1,2,4.") from None


def specs_of(arguments: argparse.Namespace) -> list[Spec]:
    """Every combination of the listed values, checked before anything runs."""
    shape = parse_shape(arguments.input) if arguments.input else None
    models = [word for text in arguments.models for word in _words(text, "MODEL")]
    sources = {model: check(model, shape, arguments.classes) for model in models}
    engines = _words(arguments.engine, "--engine")
    devices = _words(arguments.device, "--device")
    for engine, device in itertools.product(engines, devices):
        probe = registry.load("engines", engine)().probe(device)
        if not probe.ok:
            remedy = f": {probe.remedy}" if probe.remedy else ""
            raise UnavailableError(f"engine {engine} does not work here, {probe.reason}{remedy}.")
    registry.load("data", arguments.data)
    sensors = tuple(_words(arguments.sensors, "--sensors")) if arguments.sensors else None
    for sensor in sensors or ():
        registry.load("sensors", sensor)
    modes = _words(arguments.mode, "--mode")
    if set(modes) - {"train", "infer"}:
        raise UsageError(f"--mode {arguments.mode!r} does not exist: choose train or infer.")
    budget = Budget(
        time_s=parse_seconds(arguments.time) if arguments.time else None,
        memory_bytes=parse_bytes(arguments.memory_limit) if arguments.memory_limit else None,
    )
    axes = itertools.product(
        models,
        engines,
        devices,
        modes,
        [choose_cores(text, sysroot()) for text in arguments.cores] if arguments.cores else [None],
        _numbers(arguments.threads, "--threads") if arguments.threads else [None],
        _numbers(arguments.batch, "--batch"),
    )
    specs = [
        Spec(
            model=model,
            engine=engine,
            device=device,
            mode=mode,
            cores=cores,
            threads=threads,
            batch=batch,
            input=shape,
            classes=arguments.classes,
            data=arguments.data,
            seed=arguments.seed,
            steps=arguments.steps,
            warmup=arguments.warmup,
            trace_steps=arguments.trace_steps,
            period_s=parse_seconds(arguments.period),
            sensors=sensors,
            budget=budget,
            options=sources[model],
        )
        for model, engine, device, mode, cores, threads, batch in axes
    ]
    for spec in specs:
        _check_size(spec)
    return specs


def _check_size(spec: Spec) -> None:
    """Refuse a batch whose input alone is larger than the device's memory."""
    shape = spec.input if is_file(spec.model) else spec.input or registry.load("models", spec.model).input
    size = 4 * spec.batch
    for length in shape or ():
        size *= length
    memory = memory_bytes(sysroot())
    if memory and size > memory:
        raise UsageError(
            f"batch {spec.batch} of {spec.model} needs {format_value(size, 'B')} for its input alone, and this device "
            f"has {format_value(memory, 'B')}: choose a smaller batch."
        )


class Display:
    """One line that follows the run on a terminal; a line per run where there is none. Cheap on purpose."""

    def __init__(self, count: int):
        self._count = count
        self._number = 0
        self._terminal = sys.stderr.isatty()
        self._drawn_at = 0.0

    def begin(self, spec: Spec) -> None:
        self._number += 1
        if not self._terminal:
            print(f"[{self._number}/{self._count}] {describe(spec)}", file=sys.stderr, flush=True)

    def watch(self, progress: Progress) -> None:
        now = time.monotonic()
        if not self._terminal or now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        parts = [f"[{self._number}/{self._count}] {describe(progress.spec)}", progress.stage]
        if progress.rate is not None:
            parts.append(f"step {progress.step}, {progress.rate:.3g} samples/s")
        temperatures = [value for name, value in progress.live.items() if name.startswith("temperature.")]
        powers = [
            f"{value:.2f} W {name.removeprefix('power.')}"
            for name, value in progress.live.items()
            if name.startswith("power.")
        ]
        parts += ([f"{max(temperatures):.0f} °C"] if temperatures else []) + powers[:2]
        sys.stderr.write("\r\x1b[K" + " · ".join(parts))
        sys.stderr.flush()

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def tell(self, text: str) -> None:
        print(f"ergo: {text}", file=sys.stderr, flush=True)


def describe(spec: Spec) -> str:
    extra = f", {spec.threads} threads" if spec.threads else ""
    return f"{spec.model} {spec.mode} batch {spec.batch}{extra}"


def run_all(specs: list[Spec], *, hang_s: float) -> list[Record]:
    """Run the specs in order; a run that fails is a record and the next goes on. Ctrl-C ends the sweep."""
    records: list[Record] = []
    display = Display(len(specs))
    with Store() as store, one_at_a_time(store, display.tell), Interrupt() as interrupt:
        for spec in specs:
            display.begin(spec)
            try:
                records.append(run_spec(spec, store, display.watch, interrupt, hang_s=hang_s))
            finally:
                display.end()
            if interrupt.count:
                break
    return records
