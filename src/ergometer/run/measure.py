"""Windows of the user's own program: `with measure("epoch") as m: ...`, then `m.record`.

The outermost window starts the sampler and stops it; windows inside it share it and only stamp the
clock. What a window cost is worked out when its record is asked for, or when the outermost ends.
"""

import os
import sys
import threading
from dataclasses import replace
from types import TracebackType
from typing import Self

from ergometer.analyze.metrics import window_metrics
from ergometer.analyze.raw import read_raw
from ergometer.core.clock import now_ns
from ergometer.core.errors import ErgoError, UsageError
from ergometer.core.record import Record
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.run.finish import RAW, SPANS, begin, ended, observe, store_record
from ergometer.run.sampling import Sampling
from ergometer.store.database import Store
from ergometer.store.samples import Samples
from ergometer.store.spans import SpanTable


class _Session:
    """One sampler, shared by nested windows."""

    def __init__(self, name: str, period_s: float):
        self.store = Store()
        self.spec = Spec(model=name, engine="-", mode="measure", period_s=period_s, trace_steps=0)
        self.run, self.record = begin(self.store, self.spec)
        try:
            self.sampling = Sampling(self.run.path / RAW, period_s=period_s, pid=os.getpid(), tree=True)
        except ErgoError as error:
            self.store.put(replace(self.record, status="failed", reason=str(error)))
            self.run.close()
            raise
        self.samples: Samples | None = None
        self.windows: list[Window] = []

    def samples_now(self) -> Samples:
        if self.samples is not None:
            return self.samples
        self.sampling.flush()
        return read_raw(self.run.path / RAW)

    def close(self, failure: str) -> None:
        self.sampling.stop()
        spans = [Span(w.start_ns, w.end_ns, "window", w.name) for w in self.windows if w.end_ns]
        SpanTable.of(spans).save(self.run.path / SPANS)
        self.samples = self.run.keep_samples()
        outermost = self.windows[0]
        record = outermost.record
        record = replace(record, status="failed" if failure else "ok", reason=failure)
        outermost.set_record(record)
        try:
            store_record(self.store, record)
        finally:
            self.run.close()
            self.store.close()


_current: _Session | None = None
_guard = threading.Lock()


class Window:
    """An interval of this program; use it through measure()."""

    def __init__(self, name: str, period_s: float):
        self.name, self.period_s = name, period_s
        self.start_ns = self.end_ns = 0
        self._session: _Session | None = None
        self._owner = False
        self._record: Record | None = None

    def __enter__(self) -> Self:
        global _current
        if self._session is not None:
            raise ErgoError(f"window {self.name!r} was used before: call measure() anew for every with block.")
        with _guard:
            if _current is None:
                _current = _Session(self.name, self.period_s)
                self._owner = True
            self._session = _current
            self._session.windows.append(self)
        _finish_device_work()
        self.start_ns = now_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current
        _finish_device_work()
        self.end_ns = now_ns()
        if self._owner and self._session is not None:
            with _guard:
                _current = None
            try:
                self._session.close(f"{kind.__name__}: {error}" if kind else "")
            except ErgoError:
                if kind is None:  # otherwise the program's own error matters more
                    raise

    @property
    def record(self) -> Record:
        """What the window cost. Asked for inside an open outer window, it reads the samples up to now."""
        if self._session is None or not self.end_ns:
            raise ErgoError(f"window {self.name!r} has not ended: ask for its record after the with block.")
        if self._record is None:
            self.set_record(self._analysed(self._session))
        assert self._record is not None
        return self._record

    def set_record(self, record: Record) -> None:
        self._record = record

    def _analysed(self, session: _Session) -> Record:
        samples = session.samples_now()
        findings = window_metrics(samples, self.start_ns, self.end_ns, len(os.sched_getaffinity(0)))
        observe(findings, samples, session.sampling, session.spec.period_s)
        named = replace(session.record, spec=replace(session.spec, model=self.name))
        return ended(named, findings, "ok", "")


def _finish_device_work() -> None:
    """A window ends when the accelerator has finished, not when the host has queued its work."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measure(name: str, *, period_s: float = 0.01) -> Window:
    """A window over the code in its with block: wall time, CPU, memory, energy, temperature.

    Processes that the program has started count as part of it; those shorter than 0.25 s may be missed.
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"a window needs a name, not {name!r}: write measure('epoch').")
    return Window(name, period_s)
