"""What every kind of run ends with: samples parsed and kept, observer's cost, Record stored."""

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ergometer.analyze.metrics import Findings, end_metrics, observer_metrics
from ergometer.analyze.raw import read_raw
from ergometer.core.errors import ErgoError, StoreError
from ergometer.core.record import Record
from ergometer.core.spec import Spec
from ergometer.run.host import fingerprint
from ergometer.run.sampling import Sampling
from ergometer.store.database import LOCK, Store
from ergometer.store.home import Lock, make_run_directory, write_json
from ergometer.store.samples import Samples

RAW = "samples.raw"
SAMPLES = "samples.npz"
SPANS = "spans.npz"


def new_id() -> str:
    """Sorts by time; the tail keeps two runs of one second apart."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class RunDirectory:
    """A run's own directory, locked while its parent lives."""

    def __init__(self, store: Store):
        self.id = new_id()
        self.path = make_run_directory(store.base, self.id)
        self._lock = Lock(self.path / LOCK)
        self._lock.acquire(wait=False)

    def keep_samples(self) -> Samples:
        """Parse the raw file into columns and drop it. Without a raw file: no samples, and a note."""
        raw = self.path / RAW
        try:
            samples = read_raw(raw)
        except StoreError as error:
            return Samples((), (str(error),))
        samples.save(self.path / SAMPLES)
        raw.unlink()
        return samples

    def close(self) -> None:
        self._lock.release()


def begin(store: Store, spec: Spec) -> tuple[RunDirectory, Record]:
    """A run directory, and the Record of a run in progress, stored."""
    run = RunDirectory(store)
    record = Record(
        id=run.id, spec=spec, status="running", started_at=timestamp(), host=fingerprint(), directory=str(run.path)
    )
    try:
        store.put(record)
    except ErgoError:
        run.close()
        raise
    return run, record


def ended(record: Record, findings: Findings, status: str, reason: str) -> Record:
    """The Record of the same run with what was found."""
    return replace(
        record,
        status=status,
        reason=reason,
        metrics=findings.metrics,
        absent=findings.absent,
        warnings=tuple(findings.warnings),
    )


def observe(findings: Findings, samples: Samples, sampling: Sampling | None, period_s: float) -> None:
    """Add what was read at the ends, what the observer cost, and what the sensors failed at."""
    ends = end_metrics(samples)
    findings.metrics |= ends.metrics
    findings.warnings += ends.warnings
    if sampling is not None:
        findings.metrics |= observer_metrics(samples, sampling.cost, period_s)
        findings.warnings += sampling.warnings()
    findings.warnings += samples.notes


def store_record(store: Store, record: Record) -> Record:
    write_json(Path(record.directory) / "record.json", record.to_json())
    store.put(record)
    return record
