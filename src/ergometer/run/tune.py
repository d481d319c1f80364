"""Which engine and which settings are best for a network here: a short search by real steps, remembered.

Only engines that are proved on the network take part.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ergometer.analyze.metrics import have_moved
from ergometer.core import registry
from ergometer.core.errors import ErgoError, UnavailableError
from ergometer.core.spec import Spec
from ergometer.run.environment import probe_of
from ergometer.run.handover import handover_s
from ergometer.run.interrupt import Interrupt
from ergometer.run.lowering import StoppedError
from ergometer.run.prove import known_proof, proof_of
from ergometer.run.search import Search, Tell, unproved
from ergometer.run.search_by_runs import SearchByRuns
from ergometer.run.search_by_turns import SearchByTurns
from ergometer.run.search_loaded import NoRoomError
from ergometer.run.tuned import Trial, Tuned, place_of, recall, remember

LIMIT_S = 60.0


def tuned(
    spec: Spec,
    *,
    goal: str,
    engines: Sequence[str],
    interrupt: Interrupt,
    tell: Tell,
    limit_s: float = LIMIT_S,
    anew: bool = False,
    lower_precision: bool = False,
) -> Tuned:
    """The best setting for this spec, searched for or remembered; its engine, cores, threads, and steps are ignored.

    lower_precision: also what computes in fewer bits, and so gives other results.
    """
    spec = replace(spec, cores=None, threads=None, steps=None, warmup=None)
    usable, reasons = _usable(spec, engines)
    path = place_of(spec, goal, usable, lower_precision)
    known = None if anew else recall(path, spec, goal, usable, lower_precision)
    if known is not None:
        _warn_if_moved(known, tell)
        return known
    proved = _proved(spec, usable, reasons, interrupt, tell)
    if not proved:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UnavailableError(f"no engine can run {spec.model} here: {why}.")
    # Several processes at once would share a limit of memory, or an accelerator's.
    in_turns = goal == "time" and spec.device == "cpu" and not spec.budget.memory_bytes
    out = [Trial(spec=replace(spec, engine=name), why=why) for name, why in reasons.items()]
    search: Search = (SearchByTurns if in_turns else SearchByRuns)(
        spec, goal, limit_s, interrupt, tell, lower_precision, out
    )
    try:
        found = search.run(proved)
    except NoRoomError as error:
        tell(f"{error}; they are run one after another")
        begun = search.started
        search = SearchByRuns(spec, goal, limit_s, interrupt, tell, lower_precision, out)
        search.started = begun
        found = search.run(proved)
    remember(path, found)
    return found


def _warn_if_moved(known: Tuned, tell: Tell) -> None:
    now_s = handover_s(os.sched_getaffinity(0))
    if known.handover_s and not isinstance(now_s, str) and have_moved(known.handover_s, now_s):
        tell(
            f"cores moved: from one to another and back took {known.handover_s * 1e9:.0f} ns in the search and takes "
            f"{now_s * 1e9:.0f} ns now, so another setting may be best (ergo tune --again)"
        )


def _usable(spec: Spec, engines: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The engines that could run it, and why others cannot."""
    reasons: dict[str, str] = {}
    for name in engines or registry.names("engines"):
        probe = probe_of(name, spec.device)
        able = registry.load("engines", name).modes
        if not probe.ok:
            reasons[name] = probe.reason
        elif spec.mode not in able:
            reasons[name] = f"it does {' and '.join(able)} alone"
    return [name for name in engines or registry.names("engines") if name not in reasons], reasons


def _proved(spec: Spec, engines: Iterable[str], reasons: dict[str, str], interrupt: Interrupt, tell: Tell) -> list[str]:
    """Those that compute the network rightly. What takes minutes to prove takes part once it has been proved."""
    found = []
    for name in engines:
        asked = replace(spec, engine=name)
        if name != "torch":
            proof = known_proof(asked)
            if proof is None and registry.load("engines", name).slow_start:
                reasons[name] = unproved(asked)
                continue
            if proof is None:
                tell(f"{name} is proved first")
            try:
                proof = proof or proof_of(asked, interrupt)
            except StoppedError:
                raise
            except ErgoError as error:
                reasons[name] = str(error)
                continue
            if proof.reason:
                reasons[name] = proof.reason
                continue
        found.append(name)
    return found
