"""The runs of one `ergo run`: which Specs its options mean, and running them one after the other."""

import argparse
import itertools
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ergometer.core import registry
from ergometer.core.dataset import Dataset
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.quantity import format_shape, format_value, parse_bytes, parse_seconds, parse_shape
from ergometer.core.record import Record
from ergometer.core.sensor import sysroot
from ergometer.core.spec import Budget, Spec
from ergometer.core.timebox import within
from ergometer.run.environment import probe_of
from ergometer.run.fetch import make_ready
from ergometer.run.host import choose_cores, memory_bytes
from ergometer.run.interrupt import Interrupt
from ergometer.run.parent import Progress, one_at_a_time, refused, run_spec
from ergometer.run.resolve import check, is_file, of_suite
from ergometer.store.bundle import is_bundle, manifest_of
from ergometer.store.bundle_file import unpack
from ergometer.store.database import Store

AUTO = "auto"  # stands for the engine that is best here
_REDRAW_S = 0.5
_PROBE_S = 3.0


def _words(text: str, option: str, example: str = "1,2,4") -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} {text!r} has an empty entry: write values with commas, such as {example}.")
    return words


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(word) for word in _words(text, option)]
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a list of whole numbers: write it like 1,2,4.") from None


def specs_of(arguments: argparse.Namespace) -> list[Spec]:
    """Every combination of the listed values, checked before anything runs."""
    shape = parse_shape(arguments.input) if arguments.input else None
    models: list[str] = []
    for text in arguments.models:
        models += [text] if is_file(text) else _names(text)
    if arguments.steps is not None and arguments.time is not None:
        raise UsageError("--steps and --time exclude each other: give the number of steps, or the longest time.")
    modes = _words(arguments.mode, "--mode", "train,infer")
    if set(modes) - {"train", "infer"}:
        raise UsageError(f"--mode {arguments.mode!r} does not exist: choose train or infer.")
    inference_only = modes == ["infer"]
    sources = {model: check(model, shape, arguments.classes, inference_only=inference_only) for model in models}
    data = {model: _data_of(model, arguments) for model in models}
    engines = _placed(_engines(arguments.engine, models), arguments.accelerate)
    if (AUTO, {}) in engines and (arguments.threads or arguments.cores):
        raise UsageError("--engine auto chooses threads and cores itself: leave out --threads and --cores.")
    devices = _words(arguments.device, "--device", "cpu,cuda")
    _check_engines([name for name, _ in engines], devices)
    sensors = None
    if arguments.sensors is not None:
        sensors = tuple(_words(arguments.sensors, "--sensors", "rapl,thermal"))
        _check_sensors(sensors)
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
            engine=engine[0],
            device=device,
            mode=mode,
            cores=cores,
            threads=threads,
            batch=batch,
            input=shape,
            classes=_classes_of(model, data[model], arguments.classes),
            data=data[model].name,
            data_dir=arguments.data_dir,
            seed=arguments.seed,
            steps=arguments.steps,
            warmup=arguments.warmup,
            trace_steps=arguments.trace_steps,
            period_s=parse_seconds(arguments.period),
            sensors=sensors,
            budget=budget,
            options=sources[model] | engine[1],
        )
        for model, engine, device, mode, cores, threads, batch in axes
    ]
    for spec in specs:
        _check_size(spec)
    for dataset in {item.name: item for item in data.values()}.values():
        make_ready(dataset, arguments.data_dir, lambda text: print(f"ergo: {text}", file=sys.stderr, flush=True))
    return specs


def specs_to_verify(arguments: argparse.Namespace) -> list[Spec]:
    """A Spec for every model and engine, checked before anything runs."""
    shape = parse_shape(arguments.input) if arguments.input else None
    models = [name for text in arguments.models for name in ([text] if is_file(text) else _names(text))]
    specs = []
    for (name, options), model in itertools.product(_engines(arguments.engine, models), models):
        _check_engines([name], [arguments.device])
        mode = arguments.mode or registry.load("engines", name).modes[0]
        source = check(model, shape, arguments.classes, inference_only=mode == "infer")
        specs.append(
            Spec(
                model=model,
                engine=name,
                device=arguments.device,
                mode=mode,
                input=shape,
                classes=arguments.classes,
                options=source | options,
            )
        )
    return specs


def specs_to_bundle(arguments: argparse.Namespace) -> list[Spec]:
    """A Spec for every mode and batch size of one model and one engine."""
    batches, modes = _numbers(arguments.batch, "--batch"), _words(arguments.mode, "--mode", "train,infer")
    able = registry.load("engines", arguments.engine).modes
    found = []
    for mode in modes:
        if mode not in ("train", "infer"):
            raise UsageError(f"--mode {arguments.mode!r} does not exist: choose train or infer.")
        if mode in able:
            arguments.mode = mode
            (spec,) = specs_to_verify(arguments)
            found += [replace(spec, batch=batch, seed=arguments.seed) for batch in dict.fromkeys(batches)]
    if not found:
        raise UsageError(f"{arguments.engine} does {' and '.join(able)} alone: choose --mode {able[0]}.")
    return found


def _engines(text: str | None, models: list[str]) -> list[tuple[str, dict[str, str]]]:
    """Engines with their options. A bundle brings its own engine."""
    own = {manifest_of(unpack(Path(model)))["engine"] for model in models if is_bundle(model)}
    if own and text is None:
        if len(own) > 1 or not all(map(is_bundle, models)):
            raise UsageError("these models need different engines: run each bundle by itself.")
        return [(name, {}) for name in own]
    found: list[tuple[str, dict[str, str]]] = []
    for word in _names(text or "torch"):
        name, _, options = word.partition(":")
        if word == AUTO and not own:
            found.append((AUTO, {}))
            continue
        if own - {name}:
            raise UsageError(f"the bundle was made for {' and '.join(own)}, not for {name}: leave out --engine.")
        choices = registry.load("engines", name).options
        chosen = dict(option.partition("=")[::2] for option in options.split(",") if option)
        for option, value in chosen.items():
            if value not in choices.get(option, ()):
                known = ", ".join(f"{name}:{key}={'|'.join(values)}" for key, values in choices.items()) or "none"
                raise UsageError(f"engine {name} has no option {option}={value}: it has {known}.")
        found.append((name, chosen))
    return found


def _placed(engines: list[tuple[str, dict[str, str]]], text: str | None) -> list[tuple[str, dict[str, str]]]:
    """The engines with every placement that is asked for."""
    if text is None:
        return engines
    placed = []
    for name, options in engines:
        choices = registry.load("engines", name).options.get("accelerate", ()) if name != AUTO else ()
        for word in _words(text, "--accelerate", "none,forward,both"):
            if word not in choices:
                known = f"it has {', '.join(choices)}" if choices else "it runs the whole step on one device"
                raise UsageError(f"engine {name} has no placement {word!r}: {known}.")
            placed.append((name, options | {"accelerate": word}))
    return placed


def _check_engines(engines: list[str], devices: list[str]) -> None:
    """UnavailableError unless one of them works here: one that does not is a row of the sweep that says why."""
    probes = [(name, probe_of(name, device)) for name in engines for device in devices if name != AUTO]
    if probes and not any(probe.ok for _, probe in probes):
        name, probe = probes[0]
        remedy = f": {probe.remedy}" if probe.remedy else ""
        raise UnavailableError(f"engine {name} does not work here, {probe.reason}{remedy}.")


def _names(text: str) -> list[str]:
    """Models or engines with their options: a comma separates them, or options (name=value) of the one before."""
    names: list[str] = []
    for word in _words(text, "MODEL or --engine", "lenet,squeezenet"):
        if "=" in word and ":" not in word and names and ":" in names[-1]:
            names[-1] += f",{word}"
        else:
            names.append(word)
    return names


def _data_of(model: str, arguments: argparse.Namespace) -> Dataset:
    """The data set asked for, or the model's own; UsageError if it does not fit the model's task."""
    task, default = "image classification", "synthetic"
    if not is_file(model):
        found = of_suite(model, None, None)
        task, default = found.task, found.data
    dataset: Dataset = registry.load("data", arguments.data or default)
    if dataset.tasks and task not in dataset.tasks:
        fits = [name for name, item in registry.load_all("data").items() if not item.tasks or task in item.tasks]
        raise UsageError(f"{model} ({task}) cannot use data set {dataset.name}: choose from {', '.join(fits)}.")
    return dataset


def _classes_of(model: str, dataset: Dataset, given: int | None) -> int | None:
    """The user's number of classes, else the data set's, else None for the model's own."""
    if given is not None or not dataset.classes:
        return given
    return dataset.classes if is_file(model) or of_suite(model, None, None).classes else None


def _check_sensors(names: tuple[str, ...]) -> None:
    for name in names:
        probe = within(_PROBE_S, partial(registry.load("sensors", name).probe, sysroot()))
        if not probe.ok:
            raise UnavailableError(f"sensor {name} does not work here, {probe.reason}.")


def _check_size(spec: Spec) -> None:
    """Refuse a single sample that is too small to train on, and a batch that is larger than the memory."""
    shape = spec.input
    if not is_file(spec.model):
        model = of_suite(spec.model, spec.input, None)
        shape = model.input
        if spec.mode == "train" and spec.batch == 1 and min(shape[1:], default=model.alone) < model.alone:
            raise UsageError(
                f"{spec.model} cannot be trained on one sample of {format_shape(shape)}, because its batch-norm would "
                f"see a single value: use a larger --batch, or {model.alone} pixels a side."
            )
    size = 4 * spec.batch
    for length in shape or ():
        size *= length
    memory = memory_bytes(sysroot())
    if memory and size > memory:
        raise UsageError(
            f"batch {spec.batch} of {spec.model} needs {format_value(size, 'B')} for its input alone, and this device "
            f"has {format_value(memory, 'B')}: choose a smaller batch or input."
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
            parts.append(f"step {progress.step}, {format_value(progress.rate, 'samples/s')}")
        temperatures = [value for name, value in progress.live.items() if name.startswith("temperature.")]
        powers = [
            f"{value:.2f} W {name.removeprefix('power.')}"
            for name, value in progress.live.items()
            if name.startswith("power.")
        ]
        parts += ([f"{max(temperatures):.0f} °C"] if temperatures else []) + powers[:2]
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write("\r\x1b[K" + " · ".join(parts)[:width])
        sys.stderr.flush()

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def tell(self, text: str) -> None:
        print(f"ergo: {text}", file=sys.stderr, flush=True)


def describe(spec: Spec) -> str:
    extra = f", {spec.threads} threads" if spec.threads else ""
    return f"{spec.model} {spec.mode} batch {spec.batch}{extra}, {spec.engine_text}"


Choose = Callable[[Spec, Interrupt], Spec]


def run_all(specs: list[Spec], *, hang_s: float, choose: Choose) -> list[Record]:
    """Run the specs in order; a run that fails is a record and the next goes on. Ctrl-C ends the sweep.

    choose: the spec with an engine, for one whose engine is to be found.
    """
    records: list[Record] = []
    display = Display(len(specs))
    with Store() as store, one_at_a_time(store, display.tell), Interrupt() as interrupt:
        for spec in specs:
            try:
                spec = choose(spec, interrupt) if spec.engine == AUTO else spec
            except UnavailableError as error:
                display.begin(spec)
                records.append(refused(spec, store, str(error)))
                continue
            display.begin(spec)
            try:
                records.append(run_spec(spec, store, display.watch, interrupt, hang_s=hang_s))
            finally:
                display.end()
            if interrupt.count:
                break
    return records
