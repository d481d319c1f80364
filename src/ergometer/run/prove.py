"""Whether an engine computes a network rightly: a short rehearsal against double precision, kept per engine version."""

import atexit
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ergometer.analyze.proof import Proof, differences, same_top, sketch, worst_by_step, wrong_in
from ergometer.core import registry
from ergometer.core.engine import Engine
from ergometer.core.errors import UsageError
from ergometer.core.graph import RESULT, Lowered
from ergometer.core.model import Model
from ergometer.core.spec import Spec
from ergometer.run.environment import versions_of
from ergometer.run.interrupt import Interrupt
from ergometer.run.lower import FOUND, REFERENCE, load_steps, save_steps
from ergometer.run.lowering import job, make_key, run_step
from ergometer.run.resolve import is_file, of_suite
from ergometer.store.bundle import FORMAT, SKETCH, is_bundle, manifest_of, open_graph
from ergometer.store.bundle_file import unpack
from ergometer.store.home import home, write_json

STEPS = 3
# An engine that is wrong is so for all weights and data; two values that tie in a max-pool but for rounding are not.
SEEDS = (0, 1, 2)
BATCH = 4
# The largest relative error of scores; what computes in fewer bits is not wrong, and its error is shown.
SCORES = {"float32": 1e-4, "tf32": 1e-2, "bf16": 0.1, "int8": 0.5}
# The same of gradients, one by one in the smooth network and together where masks flip; tf32 had 3e-3 and 0.02.
_GRADIENTS = {"tf32": (0.2, 0.2), "bf16": (0.5, 0.5)}
_MANY = 64  # samples on which a lower precision is compared


def proof_of(spec: Spec, interrupt: Interrupt | None = None, *, anew: bool = False) -> Proof:
    """The proof of this engine and network, from an earlier time if there is one for the engine's version."""
    known = None if anew else known_proof(spec)
    if known is not None:
        return known
    engine: Engine = registry.load("engines", spec.engine)()
    small, path = rehearsed(spec), _place(spec)
    rehearsal = _prove_bundle if is_bundle(spec.model) else _prove
    proof = Proof(
        engine=spec.engine_text,
        versions=versions_of(spec.engine, spec.device),
        model=spec.model,
        mode=spec.mode,
        variants=rehearsal(small, engine, interrupt),
        made_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, proof.to_json())
    return proof


def _place(spec: Spec) -> Path:
    """Where the proof is kept: another place for another version of the engine."""
    small = rehearsed(spec)
    facts = {
        "format": [FORMAT, 1],
        "engine": [spec.engine, spec.device, versions_of(spec.engine, spec.device)],
        "bounds": bounds_of(spec, registry.load("engines", spec.engine)()),
        "model": [small.model, small.input, spec.classes, small.options, spec.mode],
    }
    return home() / "proofs" / f"{make_key(facts)}.json"


def known_proof(spec: Spec) -> Proof | None:
    """A proof of an earlier time; None if there is none that can be read."""
    try:
        proof = Proof(**json.loads(_place(spec).read_text()))
        return proof if proof.variants and all(proof.listed(name) for name in proof.variants) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def rehearsed(spec: Spec) -> Spec:
    """The spec of the rehearsal: as small as the network allows, with a thread."""
    name, shape = spec.model, spec.input
    if not is_file(name):
        base: Model = registry.load("models", name.partition(":")[0])
        name = f"{base.name}:{base.rehearsal}" if base.rehearsal else name
        shape = _small(of_suite(name, None, spec.classes))
    batch = _MANY if spec.mode == "infer" and _precision(spec) != "float32" else BATCH
    options = {option: value for option, value in spec.options.items() if option != "memory"}  # no arithmetic
    alone = replace(spec, threads=1, cores=None, data="synthetic", data_dir=None)
    return replace(alone, model=name, input=shape, batch=batch, options=options)


def _precision(spec: Spec) -> str:
    return spec.options.get("precision", "float32")


def bounds_of(spec: Spec, engine: Engine) -> dict[str, dict[str, float]]:
    """By what is compared, the largest error of each kind. Where masks flip, single gradients are not judged."""
    if spec.mode == "infer":
        return {"inference": {"result": SCORES[_precision(spec)]}}
    strict, loose = _GRADIENTS.get(_precision(spec), (engine.strict, engine.loose))
    each = dict.fromkeys(("gradient", "update", "buffer"), strict)
    return {
        "smooth": each | dict.fromkeys(("result", "all gradients", "all updates"), strict / 10),
        "actual": dict.fromkeys(("result", "all gradients", "all updates", "buffer"), loose),
    }


def _small(model: Model) -> tuple[int, ...]:
    """The smallest input that batch-norm can be trained on; a sequence stays as long as it is."""
    if len(model.input) != 3:
        return model.input
    side = min(max(model.smallest, model.alone), min(model.input[1:]))
    shape = (model.input[0], side, side)
    return model.input if model.takes_what(shape) else shape


def _prove(spec: Spec, engine: Engine, interrupt: Interrupt | None) -> dict[str, Any]:
    variants: dict[str, Any] = {}
    bounds = bounds_of(spec, engine)
    for seed in SEEDS:
        left = [name for name in bounds if name not in variants or wrong_in(variants[name])]
        if not left:
            break
        with tempfile.TemporaryDirectory(prefix="ergo-proof-") as folder:
            places = {name: Path(folder) / name for name in left}
            seeded = replace(spec, seed=seed)
            captured = _captured(seeded, engine, left, interrupt)
            for name, held in captured.items():
                shutil.copytree(held, places[name], copy_function=_link)
            jobs = [_rehearsal(seeded, place, name) for name, place in places.items()]
            for step in ("build", "rehearse") if engine.portable else ("rehearse",):
                run_step(step, jobs, interrupt)
            for name, place in places.items():
                lowered = open_graph(place, spec.mode, spec.batch)
                variants[name] = compared(lowered) | {"bounds": bounds[name], "steps": judged(name)}
                if name == "smooth" and wrong_in(variants[name]):
                    variants[name]["single"] = _single(seeded, captured[name], interrupt)
    return {name: variants[name] for name in bounds}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # Android forbids it
        shutil.copy2(source, target)


def _rehearsal(spec: Spec, place: Path, variant: str) -> Any:
    return job(spec, place, [(spec.mode, spec.batch)], smooth=variant == "smooth", steps=STEPS)


_captures: dict[str, tempfile.TemporaryDirectory[str]] = {}


@atexit.register
def _forget_captures(but: str = " ") -> None:
    for key in [key for key in _captures if not key.startswith(but)]:
        _captures.pop(key).cleanup()


def _captured(spec: Spec, engine: Engine, variants: Sequence[str], interrupt: Interrupt | None) -> dict[str, Path]:
    """Each variant of the network with its reference: kept until another is asked for, since the engines of a sweep
    are proved against the same."""
    options = {name: value for name, value in spec.options.items() if name not in engine.options}
    network = make_key([spec.model, spec.input, spec.classes, options, spec.mode, spec.batch, engine.portable])
    _forget_captures(but=network)
    keys = {name: f"{network} {spec.seed} {name}" for name in variants}
    missing = [name for name in variants if keys[name] not in _captures]
    fresh = {name: tempfile.TemporaryDirectory(prefix="ergo-capture-") for name in missing}
    try:
        if missing:
            jobs = [_rehearsal(spec, Path(fresh[name].name), name) for name in missing]
            run_step("capture", jobs, interrupt)
    except BaseException:
        for folder in fresh.values():
            folder.cleanup()
        raise
    _captures.update({keys[name]: folder for name, folder in fresh.items()})
    return {name: Path(_captures[key].name) for name, key in keys.items()}


def _single(spec: Spec, held: Path, interrupt: Interrupt | None) -> dict[str, float]:
    """The worst errors of torch in single precision in the same rehearsal of the smooth network."""
    with tempfile.TemporaryDirectory(prefix="ergo-proof-") as folder:
        place = Path(folder) / "single"
        shutil.copytree(held, place, copy_function=_link)
        alone = replace(spec, engine="torch", device="cpu", options={})
        run_step("rehearse", [_rehearsal(alone, place, "smooth")], interrupt)
        return worst_by_step(compared(open_graph(place, spec.mode, spec.batch))["differences"])


def judged(variant: str) -> int:
    """How many steps are judged."""
    return STEPS if variant == "smooth" else 1


def _prove_bundle(spec: Spec, engine: Engine, interrupt: Interrupt | None) -> dict[str, Any]:
    """Rehearse what is in the bundle, and compare it with what it says of the same rehearsal in double precision."""
    directory = unpack(Path(spec.model))
    batch = manifest_of(directory)["rehearsed"].get(spec.mode)
    if batch is None:
        raise UsageError(f"{spec.model} holds nothing for --mode {spec.mode}: make it anew.")
    lowered = open_graph(directory, spec.mode, batch)
    alone = replace(spec, threads=1, cores=None)
    run_step("rehearse", [job(alone, directory, [(spec.mode, batch)], steps=STEPS)], interrupt)
    try:
        found = [sketch(step) for step in load_steps(lowered.folder / FOUND)]
    finally:
        (lowered.folder / FOUND).unlink(missing_ok=True)
    true = load_steps(lowered.folder / SKETCH)
    names = [name for name in true[0] if name in lowered.arrays]
    start = sketch({name: lowered.arrays[name] for name in names})
    bounds = list(bounds_of(spec, engine).values())[-1]
    return {"bundle": _compared(start, found, true) | {"bounds": bounds, "steps": judged("bundle")}}


def add_sketch(spec: Spec, directory: Path) -> None:
    """Write into a bundle what its rehearsal gives in double precision, so that a device can prove it without torch."""
    with tempfile.TemporaryDirectory(prefix="ergo-proof-") as folder:
        run_step("capture", [job(spec, Path(folder), [(spec.mode, spec.batch)], steps=STEPS)])
        true = load_steps(Path(folder) / f"{spec.mode}-{spec.batch}" / REFERENCE)
    save_steps(directory / f"{spec.mode}-{spec.batch}" / SKETCH, [sketch(step) for step in true])


def compared(lowered: Lowered) -> dict[str, Any]:
    """The rehearsal in the folder of a graph against its reference there."""
    found, true = load_steps(lowered.folder / FOUND), load_steps(lowered.folder / REFERENCE)
    result = _compared(dict(lowered.arrays), found, true)
    if not lowered.graph.parameters:
        result["same_top"] = same_top(found[0][RESULT], true[0][RESULT])
    return result


def _compared(start: dict[str, Any], found: list[dict[str, Any]], true: list[dict[str, Any]]) -> dict[str, Any]:
    return {"differences": [asdict(item) for item in differences(start, found, true)]}
