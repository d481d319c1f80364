"""One Spec -> one Record: starts the worker and the sampler, waits, and writes down how it ended."""

import json
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ergometer.analyze.metrics import Findings, add_handover, step_metrics
from ergometer.analyze.proof import Proof
from ergometer.core import registry
from ergometer.core.engine import Engine
from ergometer.core.errors import ErgoError, StoreError, UnavailableError
from ergometer.core.quantity import format_value
from ergometer.core.record import Metric, Record
from ergometer.core.sensor import read_text
from ergometer.core.spec import Spec
from ergometer.run.environment import probe_of, python_of
from ergometer.run.finish import RAW, SPANS, RunDirectory, begin, ended, observe, store_record
from ergometer.run.handover import handover_s
from ergometer.run.interrupt import Interrupt
from ergometer.run.launch import Held
from ergometer.run.limit import MemoryGroup, make_group
from ergometer.run.lowering import StoppedError, ready
from ergometer.run.prove import proof_of
from ergometer.run.sampling import Sampling
from ergometer.store.database import Store
from ergometer.store.home import PROGRESS, Lock, write_json
from ergometer.store.samples import Samples
from ergometer.store.spans import SpanTable

HANG_S = 300.0
LOG = "worker.log"
_GRACE_S = 5.0
_NOTE_S = 1.0


@dataclass(slots=True)
class Progress:
    """What can be shown while a run goes on."""

    spec: Spec
    stage: str = "start"
    step: int = 0
    rate: float | None = None
    live: dict[str, float] = field(default_factory=dict)


Watch = Callable[[Progress], None]


@dataclass(slots=True)
class _Outcome:
    """How the worker ended, before anything is analysed."""

    done: bool = False
    interrupted: bool = False
    hung: bool = False
    late: bool = False
    over_limit: bool = False
    error: str = ""
    exit_status: int | None = None


@contextmanager
def one_at_a_time(store: Store, tell: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other measurement runs here: two at once would disturb each other's numbers."""
    lock = Lock(store.base / "measuring.lock")
    if not lock.acquire(wait=False):
        tell("another measurement is running on this device; waiting for it to end (Ctrl-C gives up)")
        lock.acquire(wait=True)
    try:
        yield
    finally:
        lock.release()


def run_spec(
    spec: Spec,
    store: Store,
    watch: Watch,
    interrupt: Interrupt,
    *,
    hang_s: float = HANG_S,
    longest_s: float = math.inf,
    brief: bool = False,
) -> Record:
    """Run one Spec in a fresh worker. Whatever happens to the worker, there is a Record.

    hang_s: how long it may say nothing; longest_s: how long it may take. brief: times alone, without the check that it
    learns and without what is found in steps of its own (counts, ops, parts of memory).
    """
    run, record = begin(store, spec)
    watch = _noted(watch, run.path / PROGRESS)
    try:
        write_json(run.path / "spec.json", spec.to_json())
        try:
            bundle, proof = prepare(spec, watch, interrupt)
        except StoppedError as error:
            return store_record(store, ended(record, Findings(), "interrupted", str(error)))
        except UnavailableError as error:
            return store_record(store, ended(record, Findings(), "unsupported", str(error)))
        except ErgoError as error:
            return store_record(store, ended(record, Findings(), "failed", str(error)))
        patience = (hang_s, time.monotonic() + longest_s)
        return _Run(spec, run, record, store, watch, interrupt, patience, bundle, brief).finish(proof)
    finally:
        (run.path / PROGRESS).unlink(missing_ok=True)
        run.close()


def refused(spec: Spec, store: Store, why: str) -> Record:
    """The Record of a run that cannot even begin."""
    run, record = begin(store, spec)
    try:
        return store_record(store, ended(record, Findings(), "unsupported", why))
    finally:
        run.close()


def _noted(watch: Watch, path: Path) -> Watch:
    """The same, which also leaves a note for `ergo ui` where the run is: at every stage, and once in a while."""
    last, stage = -math.inf, ""

    def both(progress: Progress) -> None:
        nonlocal last, stage
        watch(progress)
        if progress.stage != stage or time.monotonic() - last >= _NOTE_S:
            last, stage = time.monotonic(), progress.stage
            said = {"stage": stage, "step": progress.step, "rate": progress.rate, "live": progress.live}
            write_json(path, said, lasting=False)

    return both


def hold_worker(spec: Spec, folder: Path, flags: Sequence[str], group: Path | None = None) -> tuple[Held, int, int]:
    """A worker that stands ready, and the descriptors of what it tells and of what lets it go on."""
    messages, telling = os.pipe()
    heard, release = os.pipe()
    command = [python_of(spec.engine), "-m", "ergometer.run.worker", str(folder), str(telling), str(heard), *flags]
    with open(folder / LOG, "wb") as log, open(folder / "worker.out", "wb") as output:
        worker = Held(
            command,
            cores=spec.cores,
            cgroup=group,
            die_with_parent=True,
            pass_fds=(telling, heard),
            environment=_environment(spec),
            stdout=output,
            stderr=log,
        )
    os.close(telling)
    os.close(heard)
    return worker, messages, release


def prepare(spec: Spec, watch: Watch, interrupt: Interrupt) -> tuple[Path | None, Proof | None]:
    """Prove that the engine computes this network rightly, unless it is known, and make the network ready for it.

    torch itself needs neither: it is what the others are compared with.
    """
    engine: Engine = registry.load("engines", spec.engine)()
    probe = probe_of(spec.engine, spec.device)
    if not probe.ok:
        raise UnavailableError(f"{probe.reason}: {probe.remedy}" if probe.remedy else probe.reason)
    if spec.mode not in engine.modes:
        raise UnavailableError(f"{spec.engine} does {' and '.join(engine.modes)} alone, not {spec.mode}")
    proof = None
    if spec.engine != "torch":
        watch(Progress(spec, stage="proof"))
        proof = proof_of(spec, interrupt)
        if proof.reason:
            raise UnavailableError(proof.reason)
    if not engine.portable:
        return None, proof
    watch(Progress(spec, stage="build"))
    return ready(spec, interrupt), proof


class _Run:
    def __init__(
        self,
        spec: Spec,
        run: RunDirectory,
        record: Record,
        store: Store,
        watch: Watch,
        interrupt: Interrupt,
        patience: tuple[float, float],
        bundle: Path | None,
        brief: bool,
    ):
        self.spec, self.run, self.record, self.store = spec, run, record, store
        self.hang_s, self.end_by = patience
        self.watch, self.interrupt = watch, interrupt
        self.progress = Progress(spec)
        self.outcome = _Outcome()
        self.sampling: Sampling | None = None
        self.kills_before = kernel_kills()
        self.handover_before = self._handover()
        limit = spec.budget.memory_bytes
        self.group: MemoryGroup | None = make_group(f"ergo-{run.id}", limit) if limit else None
        flags = (["--brief"] if brief else []) + ([str(bundle)] if bundle else [])
        group = self.group.path if self.group else None
        self.worker, self.messages, self.release = hold_worker(spec, run.path, flags, group)
        try:
            self._observe_worker()
        except ErgoError as error:
            self.outcome.error = str(error)
        finally:
            self._end_worker()

    def _observe_worker(self) -> None:
        watched = self.spec.budget.memory_bytes if self.group is None else None
        self.sampling = Sampling(
            self.run.path / RAW,
            period_s=self.spec.period_s,
            pid=self.worker.pid,
            sensors=self.spec.sensors,
            limit_bytes=watched,
            avoid_cores=self.spec.cores,
        )
        self.worker.go()
        self._wait()
        self.sampling.stop()

    def _wait(self) -> None:
        """Block until the worker is done or must end. Wakes only for messages, signals and the hang limit."""
        assert self.sampling is not None
        pending, heard_at, stop_by = b"", time.monotonic(), None
        listening = [self.messages, self.sampling.fd, self.interrupt.fileno()]
        while True:
            deadline = min(heard_at + self.hang_s, self.end_by) if stop_by is None else stop_by
            readable, _, _ = select.select(listening, [], [], max(0.0, deadline - time.monotonic()))
            if self.interrupt.count and not self.outcome.interrupted:
                self.outcome.interrupted = True
                self.interrupt.clear()
                stop_by = time.monotonic() + _GRACE_S
                self.worker.signal(signal.SIGTERM)
                continue
            if not readable or self.interrupt.count > 1:
                self.outcome.late = time.monotonic() >= self.end_by and not self.outcome.interrupted
                self.outcome.hung = not self.outcome.interrupted and not self.outcome.late
                return
            if self.sampling.fd in readable:
                self.sampling.hear()
                self.progress.live = self.sampling.live
                if self.sampling.over_limit or self.sampling.error or self.sampling.ended:
                    self.outcome.over_limit = self.sampling.over_limit
                    return
            if self.messages in readable:
                data = os.read(self.messages, 1 << 16)
                if not data:
                    return  # the worker has died
                heard_at = time.monotonic()
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
                if self.outcome.done or self.outcome.error:
                    return
            self.watch(self.progress)

    def _take(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "stage":
            self.progress.stage, self.progress.step, self.progress.rate = message["name"], 0, None
        elif event == "progress":
            self.progress.step, self.progress.rate = message["step"], message["rate"]
        elif event == "error":
            self.outcome.error = message["reason"]
        elif event == "done":
            self.outcome.done = True

    def _end_worker(self) -> None:
        if not self.outcome.done:
            self.worker.kill()
        os.close(self.release)
        self.outcome.exit_status = self.worker.wait()
        os.close(self.messages)
        if self.sampling is not None:
            self.sampling.stop()

    def finish(self, proof: Proof | None) -> Record:
        samples = self.run.keep_samples()
        facts = self._facts()
        status, reason = self._verdict(facts)
        findings = self._findings(samples, facts)
        findings.metrics.setdefault("peak_memory", self._sampled_peak(samples))
        if findings.metrics["peak_memory"].value <= 0:
            del findings.metrics["peak_memory"]
        observe(findings, samples, self.sampling, self.spec.period_s)
        add_handover(findings, self.handover_before, self._handover())
        findings.metrics |= proof.metrics if proof else {}
        host = self.record.host | {"versions": self.record.host["versions"] | facts.get("versions", {})}
        if "threads" in facts:
            host["engine_threads"] = facts["threads"]
        if self.group is not None:
            self.group.remove()
        return store_record(self.store, replace(ended(self.record, findings, status, reason), host=host))

    def _handover(self) -> float | str:
        return handover_s(self.spec.cores or os.sched_getaffinity(0))

    def _facts(self) -> dict[str, Any]:
        text = read_text(self.run.path / "worker.json")
        return json.loads(text) if text else {}

    def _findings(self, samples: Samples, facts: dict[str, Any]) -> Findings:
        try:
            return step_metrics(self.spec, SpanTable.load(self.run.path / SPANS), samples, facts)
        except StoreError:
            return Findings()  # the worker did not live to write its spans

    def _verdict(self, facts: dict[str, Any]) -> tuple[str, str]:
        """(status, reason)."""
        limit = self.spec.budget.memory_bytes
        if self.outcome.over_limit or (self.group and self.group.kills()):
            how = (
                f"cgroup v{self.group.version}, which leaves out library pages shared with others"
                if self.group
                else "watched"
            )
            return "out_of_memory", f"killed at the memory limit of {format_value(limit or 0, 'B')} ({how})"
        if self.sampling is None or self.sampling.error:
            return "failed", self.outcome.error or (self.sampling.error if self.sampling else "no sampler")
        if self.outcome.interrupted:
            return "interrupted", facts.get("reason") or f"stopped by the user during {self.progress.stage}"
        if self.outcome.late or self.outcome.hung:
            raised = "--hang-timeout" if self.end_by == math.inf else "--time of ergo tune"
            return "failed", killed_for(self.progress.stage, None if self.outcome.late else self.hang_s, raised)
        if self.sampling.summary is None:
            return "failed", "the sampler was killed; without it nothing is observed: run again"
        if self.outcome.error:
            return "failed", self.outcome.error
        if facts:
            return facts["status"], facts["reason"]
        status, reason = death_of(self.outcome.exit_status, self.progress.stage, self.run.path, self.kills_before)
        return status, reason if ": " in reason or status != "failed" else f"{reason} (see {self.run.path / LOG})"

    def _sampled_peak(self, samples: Samples) -> Metric:
        """The highest that the worker was seen to reach, for one that did not live to tell."""
        peak, n = float(self.worker.peak_bytes or 0), 1
        for name in ("process.rss", "process.peak"):
            found = samples.find(name)
            if found is not None:
                values = found[0].values[:, found[1]]
                values = values[values == values]
                if len(values):
                    peak, n = max(peak, float(values.max())), len(values)
        if not peak and self.group is not None:
            return Metric(value=self.group.peak_bytes() or 0, unit="B", source="counter", note="charged to its cgroup")
        return Metric(value=peak, unit="B", n=n, source="counter", note="reached before the worker ended")


def _environment(spec: Spec) -> dict[str, str]:
    """What must be known before a framework loads; nothing where its own default is wanted."""
    threads = spec.threads or len(spec.cores or ())
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: str(threads) for name in names} if threads else {}


def kernel_kills() -> int:
    """How many processes the kernel has killed for memory since boot."""
    text = read_text(Path("/proc/vmstat")) or ""
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


def killed_for(stage: str, silent_s: float | None, raised: str) -> str:
    """Why a worker was killed: it said nothing for so long, or it took longer than it may."""
    said = "took longer than was left for it" if silent_s is None else f"said nothing for {silent_s:g} s"
    return f"the worker {said} during {stage} and was killed (raise {raised} if the device is that slow)"


def death_of(exit_status: int | None, stage: str, folder: Path, kills_before: int) -> tuple[str, str]:
    """The status and the reason of a worker that died, with the last that it said."""
    if exit_status == -signal.SIGKILL and kernel_kills() > kills_before:
        return "out_of_memory", "killed by the kernel because the device ran out of memory"
    lines = [line for line in (read_text(folder / LOG) or "").splitlines() if line and not line.startswith("USDT:")]
    how = f"ended with exit status {exit_status}"
    if exit_status is not None and exit_status < 0:
        how = f"was killed by {signal.Signals(-exit_status).name}"
    return "failed", f"the worker {how} during {stage}" + (f": {lines[-1][:200]}" if lines else "")
