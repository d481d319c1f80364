"""Searches for the best setting on behalf of `ergo tune` and of `ergo run --engine auto`."""

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Any

from ergometer.cli._sweep import AUTO, specs_of
from ergometer.core import registry
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.quantity import format_value, parse_seconds
from ergometer.core.spec import Spec
from ergometer.run.interrupt import Interrupt
from ergometer.run.parent import one_at_a_time
from ergometer.run.search import GOALS, UNITS
from ergometer.run.tune import tuned
from ergometer.run.tuned import Trial, Tuned, describe_setting, setting_of
from ergometer.store.bundle import is_bundle
from ergometer.store.database import Store


@dataclass(frozen=True, slots=True)
class Shown:
    """What a search found, as text."""

    found: Tuned
    title: str
    rows: list[list[str]]
    verdict: str


def tune_all(arguments: argparse.Namespace) -> list[Shown]:
    """One search for every network and batch size."""
    goal, limit_s = checked_goal(arguments.goal), parse_seconds(arguments.time)
    if limit_s < 1:
        raise UsageError(f"--time {arguments.time} is out of range: give 1s or more.")
    engines = list(dict.fromkeys(arguments.engine.split(","))) if arguments.engine else []
    for name in engines:
        registry.load("engines", name)
    if any(map(is_bundle, arguments.models)):
        raise UsageError("a bundle has one engine and its own settings: name the network that it was made of.")
    arguments.engine = AUTO  # each spec stands for all engines
    specs = specs_of(argparse.Namespace(**(_RUN_DEFAULTS | vars(arguments) | {"time": None})))
    asked = {"anew": arguments.again, "lower_precision": arguments.lower_precision, "limit_s": limit_s}
    found, failed = [], UnavailableError("")
    with Store() as store, one_at_a_time(store, tell), Interrupt() as interrupt:
        for spec in specs:
            try:
                one = tuned(spec, goal=goal, engines=engines, interrupt=interrupt, tell=tell, **asked)
                found.append(_shown(one, "" if engines else _how_to_use(spec, goal, arguments.lower_precision)))
            except UnavailableError as error:
                failed = error
                if len(specs) > 1:
                    tell(f"{spec.model} batch {spec.batch}: {error}")
    if not found:
        raise failed
    return found


# What `ergo run` can be told and a search is not.
_RUN_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("threads", "cores", "data", "data_dir", "steps", "warmup", "sensors", "accelerate")),
    **{"seed": 0, "trace_steps": 0, "period": "100ms"},
}


def checked_goal(goal: str) -> str:
    if goal not in GOALS:
        raise UsageError(f"--goal {goal!r} does not exist: choose from {', '.join(GOALS)}.")
    return goal


def chosen(goal: str, lower_precision: bool, spec: Spec, interrupt: Interrupt) -> Spec:
    """The spec of `--engine auto` with the best setting, searched for if none is remembered."""
    found = tuned(spec, goal=goal, engines=[], interrupt=interrupt, tell=tell, lower_precision=lower_precision)
    how = "remembered" if found.remembered else f"found in {found.took_s:.0f} s"
    tell(f"auto: {describe_setting(found.spec)} ({how})")
    return replace(spec, **{name: getattr(found.spec, name) for name in ("engine", "options", "threads", "cores")})


def tell(text: str) -> None:
    print(f"ergo: {text}", file=sys.stderr, flush=True)


def _how_to_use(spec: Spec, goal: str, lower_precision: bool) -> str:
    """The options of `ergo run` with which this result is used."""
    limit = spec.budget.memory_bytes
    words = [f" --goal {goal}"] * (goal != "time") + [" --lower-precision"] * lower_precision
    return f"; ergo run --engine auto{''.join(words)}{f' --memory-limit {limit}' if limit else ''} uses it"


def _shown(found: Tuned, use: str) -> Shown:
    measured = [trial for trial in found.trials if trial.values]
    order = sorted(measured, key=lambda trial: (trial.spec != found.spec, trial.cost(found.goal)))
    rows = []
    for trial in [*order, *(trial for trial in found.trials if not trial.values)]:
        said = "best" if trial.spec == found.spec and trial.values else trial.why
        rows.append([trial.text, str(len(trial.values)), _cost_text(trial, found.goal), said])
    best = order[0]
    plain = next((trial for trial in measured if trial.spec.engine == "torch" and trial.text == "torch"), None)
    beside = ""
    if plain is not None and (plain.ratio or found.goal != "time" or not plain.estimated):
        ratio = plain.ratio or plain.cost(found.goal) / best.cost(found.goal)
        beside = f", {ratio:.2f} times as good as torch by itself"
    how = "remembered from an earlier search" if found.remembered else f"found in {found.took_s:.0f} s"
    note = f" ({best.note})" if best.note else ""
    verdict = f"{best.text}: {_cost_text(best, found.goal)} a step{note}{beside} ({how}){use}"
    where = f" on {found.spec.device}" if found.spec.device != "cpu" else ""
    title = f"{found.spec.model} {found.spec.mode} batch {found.spec.batch}{where}, by {found.goal}"
    return Shown(found, title, rows, verdict)


def _cost_text(trial: Trial, goal: str) -> str:
    if not trial.values:
        return "-"
    return ("~" if trial.estimated else "") + format_value(trial.cost(goal), UNITS[goal])


def as_json(one: Shown) -> dict[str, Any]:
    spec = one.found.spec
    trials = [
        {"setting": trial.text}
        | {name: getattr(trial, name) for name in ("values", "estimated", "ratio", "why", "took_s")}
        for trial in one.found.trials
    ]
    return {
        "model": spec.model,
        "device": spec.device,
        "mode": spec.mode,
        "batch": spec.batch,
        "goal": one.found.goal,
        "best": setting_of(spec),
        "took_s": one.found.took_s,
        "remembered": one.found.remembered,
        "trials": trials,
    }
