"""A network for an engine in one file, proved before it is written."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ergometer.core import registry
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.spec import Spec
from ergometer.run.lowering import make
from ergometer.run.prove import add_sketch, proof_of
from ergometer.store.bundle import SUFFIX, note
from ergometer.store.bundle_file import pack


def write_bundle(specs: Sequence[Spec], path: Path, tell: Callable[[str], None]) -> None:
    """One file with the modes and batch sizes of the specs, which differ in nothing else."""
    first = specs[0]
    if path.suffix != SUFFIX or path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be a bundle: name a file that ends in {SUFFIX}, in a directory that exists.")
    engine = registry.load("engines", first.engine)()
    if not engine.portable:
        others = [name for name, item in registry.load_all("engines").items() if item.portable]
        raise UsageError(f"{first.engine} runs modules of torch, not bundles: choose from {', '.join(others)}.")
    proofs = {}
    for mode in dict.fromkeys(spec.mode for spec in specs):
        tell(f"proving {first.model} on {first.engine} ({mode})")
        proof = proof_of(next(spec for spec in specs if spec.mode == mode))
        if proof.reason:
            raise UnavailableError(proof.reason)
        proofs[mode] = proof.to_json()
    with tempfile.TemporaryDirectory(prefix="ergo-bundle-") as folder:
        tell(f"building {first.model} for {first.engine}")
        make(first, Path(folder), [(spec.mode, spec.batch) for spec in specs])
        rehearsed = {}
        for mode in proofs:
            # Two samples or more, because batch-norm cannot be trained on one value.
            spec = min((s for s in specs if s.mode == mode), key=lambda s: (s.batch < 2, s.batch))
            add_sketch(spec, Path(folder))
            rehearsed[mode] = spec.batch
        note(Path(folder), "rehearsed", rehearsed)
        note(Path(folder), "proofs", proofs)
        pack(Path(folder), path)
