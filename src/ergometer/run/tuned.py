"""What a search for the best setting has found, and where it is remembered."""

import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ergometer.core import registry
from ergometer.core.errors import ErgoError
from ergometer.core.spec import Spec
from ergometer.run.environment import versions_of
from ergometer.run.host import fingerprint
from ergometer.run.lowering import make_key
from ergometer.store.home import home, write_json

# Format 1 (2026-11): the first. Format 2 (2026-11): trials have notes. Format 3 (2026-11): they take turns. Format 4
# (2026-11): loaded anew for each, and freed memory may be kept. Format 5 (2026-11): what had no round with the best is
# estimated.
FORMAT = 5
# Of several runs the middle one; of two the quicker, since on a shared machine some take twice the time of others.
_OF_RUNS: dict[str, Callable[[Iterable[float]], float]] = {
    "time": statistics.median_low,
    "energy": statistics.median,
    "memory": max,
}


@dataclass(slots=True, kw_only=True)
class Trial:
    """One setting. values: what it cost in each run or turn; took_s: the whole last run, or until after the first turn;
    why: the reason that it is out; ratio: to the best, in the same rounds, if there were rounds; estimated: from a
    power model, or not measured in the same rounds as the best."""

    spec: Spec
    values: list[float] = field(default_factory=list)
    why: str = ""
    failed: bool = False
    took_s: float = 0.0
    ratio: float | None = None
    note: str = ""
    estimated: bool = False

    def cost(self, goal: str) -> float:
        return float(_OF_RUNS[goal](self.values))

    @property
    def text(self) -> str:
        return describe_setting(self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best setting, and how it was found. handover_s: from one core to another and back, when it was found; None if
    that is not known or, for long steps, does not matter. remembered: from an earlier search."""

    spec: Spec
    goal: str
    trials: list[Trial]
    took_s: float
    handover_s: float | None = None
    remembered: bool = False


def describe_setting(spec: Spec) -> str:
    threads = f", {spec.threads} thread{'s' if spec.threads != 1 else ''}" if spec.threads else ""
    return spec.engine_text + threads + (f", cores {','.join(map(str, spec.cores))}" if spec.cores else "")


def place_of(spec: Spec, goal: str, engines: Sequence[str], lower_precision: bool) -> Path:
    """Where the result is kept: another place for another host, network, batch, limit or version of an engine."""
    host = fingerprint()
    kept = ("name", "machine", "processor", "cores", "capacities", "memory_bytes", "governors")
    facts = {
        "format": FORMAT,
        "host": {name: host[name] for name in kept} | {"allowed": sorted(os.sched_getaffinity(0))},
        "model": [spec.model, spec.input, spec.classes, spec.mode, spec.batch, spec.source],
        "goal": [goal, spec.budget.memory_bytes, spec.device, lower_precision],
        "versions": {name: versions_of(name, spec.device) for name in engines},
    }
    return home() / "tuned" / f"{make_key(facts)}.json"


def remember(path: Path, found: Tuned) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    trials = [asdict(trial) | {"spec": setting_of(trial.spec)} for trial in found.trials]
    chosen = setting_of(found.spec) | {"took_s": found.took_s, "goal": found.goal, "handover_s": found.handover_s}
    write_json(path, {"format": FORMAT, "chosen": chosen, "trials": trials})


def setting_of(spec: Spec) -> dict[str, Any]:
    return {"engine": spec.engine, "options": spec.options, "threads": spec.threads, "cores": spec.cores}


def recall(path: Path, spec: Spec, goal: str, usable: Sequence[str], lower_precision: bool) -> Tuned | None:
    """What an earlier search found; None if it is not there or could not be what a search has written."""
    try:
        data = json.loads(path.read_text())
        trials = [
            Trial(
                **item
                | {"spec": _checked(item["spec"], spec), "values": _numbers(item["values"])}
                | {"ratio": _number(item["ratio"])}
            )
            for item in data["trials"]
        ]
        chosen = _checked(data["chosen"], spec)
        if chosen.engine not in usable or ("precision" in chosen.options and not lower_precision):
            return None
        took_s, handover_s = float(data["chosen"]["took_s"]), _number(data["chosen"]["handover_s"])
        if [trial.spec for trial in trials if trial.values and not trial.why] != [chosen]:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ErgoError):
        return None
    return Tuned(spec=chosen, goal=goal, trials=trials, took_s=took_s, handover_s=handover_s, remembered=True)


def _numbers(values: list[Any]) -> list[float]:
    found = [float(value) for value in values]
    if not all(0 < value < math.inf for value in found):
        raise ValueError("costs")
    return found


def _number(value: Any) -> float | None:
    return None if value is None else _numbers([value])[0]


def _checked(item: dict[str, Any], spec: Spec) -> Spec:
    """The spec with this setting; an error if there is no such engine, option, core or number of threads."""
    choices = registry.load("engines", item["engine"]).options | {name: [text] for name, text in spec.source.items()}
    for name, value in item["options"].items():
        if value not in choices[name]:
            raise ValueError(f"{name}={value}")
    cores = tuple(int(core) for core in item["cores"]) if item["cores"] else None
    if cores and not set(cores) <= os.sched_getaffinity(0):
        raise ValueError("cores that are not here")
    threads = item["threads"]
    if threads is not None and (not isinstance(threads, int) or threads > 4 * (os.cpu_count() or 1)):
        raise ValueError("threads")
    options = spec.source | item["options"]
    return replace(spec, engine=item["engine"], options=options, threads=threads, cores=cores)
