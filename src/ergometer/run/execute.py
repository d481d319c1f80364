"""Any command under the sampler -> one Record."""

import os
import select
import shlex
import shutil
import signal
from collections.abc import Sequence

from ergometer.analyze.metrics import Findings, window_metrics
from ergometer.core.clock import now_ns
from ergometer.core.errors import UsageError
from ergometer.core.record import Metric, Record
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.run.finish import RAW, SPANS, begin, ended, observe, store_record
from ergometer.run.interrupt import Interrupt
from ergometer.run.launch import Held
from ergometer.run.sampling import Sampling
from ergometer.store.database import Store
from ergometer.store.spans import SpanTable


def run_command(
    command: Sequence[str], store: Store, *, period_s: float, stdout: int | None = None
) -> tuple[Record, int]:
    """Run the command with its own input and output (or another stdout); its Record and its exit status."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]!r} is not a command that can be run: check the name and the PATH.")
    spec = Spec(model=shlex.join(command), engine="-", mode="exec", period_s=period_s, trace_steps=0)
    run, record = begin(store, spec)
    try:
        with Interrupt() as interrupt:
            # The command stays in our session: the terminal's Ctrl-C is for it, and we wait for what it does.
            held = Held(command, own_session=False, stdout=stdout)
            try:
                sampling = Sampling(run.path / RAW, period_s=period_s, pid=held.pid, tree=True)
            except BaseException:
                held.kill()
                held.wait()
                raise
            start = now_ns()
            held.go()
            interrupted = _wait(held, sampling, interrupt)
            exit_status = held.wait()
            end = now_ns()
            sampling.stop()
        SpanTable.of([Span(start, end, "window", "command")]).save(run.path / SPANS)
        samples = run.keep_samples()
        findings = window_metrics(samples, start, end, len(os.sched_getaffinity(0)))
        _add_kernels_account(findings, held)
        observe(findings, samples, sampling, period_s)
        status, reason = "ok", ""
        if interrupted:
            status, reason = "interrupted", "stopped by the user"
        elif exit_status < 0:
            status, reason = "failed", f"the command was killed by {signal.Signals(-exit_status).name}"
        elif exit_status:
            status, reason = "failed", f"the command ended with exit status {exit_status}"
        done = store_record(store, ended(record, findings, status, reason))
        return done, exit_status if exit_status >= 0 else 128 - exit_status
    finally:
        run.close()


def _add_kernels_account(findings: Findings, held: Held) -> None:
    """CPU time and memory as the kernel counted them at the end: exact, where samples miss what is short."""
    sampled = findings.metrics.get("cpu_time")
    if sampled is None or held.cpu_s > sampled.value:
        note = "the command and all that it waited for"
        findings.metrics["cpu_time"] = Metric(value=held.cpu_s, unit="s", source="counter", note=note)
    share = 100 * findings.metrics["cpu_time"].value / findings.metrics["wall_time"].value
    note = f"100 % is one core of {len(os.sched_getaffinity(0))}"
    findings.metrics["process_utilisation"] = Metric(value=share, unit="%", source="counter", note=note)
    together = findings.metrics.get("peak_memory")
    if held.peak_bytes and (together is None or held.peak_bytes > together.value):
        note = "largest single process of the command"
        findings.metrics["peak_memory"] = Metric(value=held.peak_bytes, unit="B", source="counter", note=note)
    elif together is None or together.value <= 0:
        findings.metrics.pop("peak_memory", None)
        findings.absent["peak_memory"] = "the command ended before its memory was sampled"


def _wait(held: Held, sampling: Sampling, interrupt: Interrupt) -> bool:
    """Block until the command has ended; True if the user stopped it."""
    pidfd = os.pidfd_open(held.pid)
    listening = [pidfd, sampling.fd, interrupt.fileno()]
    told = 0
    try:
        while True:
            readable, _, _ = select.select(listening, [], [])
            if pidfd in readable:
                return interrupt.count > 0
            if sampling.fd in readable:
                sampling.hear()
                if sampling.ended:
                    listening.remove(sampling.fd)
            if interrupt.count > told:
                told = interrupt.count
                interrupt.clear()
                # At a terminal, Ctrl-C has reached the command already: it is in the same group.
                if not (interrupt.last == signal.SIGINT and os.isatty(0)):
                    held.signal(interrupt.last)
    finally:
        os.close(pidfd)
