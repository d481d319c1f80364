"""What works on this device: every plug-in tried, and the system around them."""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ergometer.analyze.metrics import observer_metrics
from ergometer.analyze.raw import read_raw
from ergometer.core import registry
from ergometer.core.errors import ErgoError
from ergometer.core.probe import Probe
from ergometer.core.sensor import sysroot
from ergometer.core.timebox import within
from ergometer.run.environment import probes
from ergometer.run.host import fingerprint
from ergometer.run.limit import how_limited
from ergometer.run.sampling import Sampling
from ergometer.store.database import Store

_PERIOD_S = 0.01


@dataclass(frozen=True, slots=True)
class Examination:
    host: dict[str, Any]
    sensors: dict[str, Probe]
    engines: dict[str, Probe]
    system: dict[str, Probe]


def probe_sensors() -> dict[str, Probe]:
    """Every sensor's own answer; one that hangs is said to hang."""
    found = {}
    for name, sensor in registry.load_all("sensors").items():
        try:
            found[name] = within(3.0, partial(sensor.probe, sysroot()))
        except TimeoutError:
            found[name] = Probe(False, "a file of this sensor hangs when it is read", "update or unload its driver")
    return found


def probe_engines() -> dict[str, Probe]:
    found = {}
    for (name, device), probe in probes().items():
        untraced = registry.load("engines", name).untraced
        if probe.ok and untraced:
            probe = replace(probe, reason=f"{probe.reason}; no op times: {untraced}")
        found[f"{name} on {device}"] = probe
    return found


def _probe_store() -> Probe:
    try:
        with Store() as store:
            count, base = len(store.records()), store.base
    except ErgoError as error:
        return Probe(False, str(error), "set ERGO_HOME")
    return Probe(True, f"{base}: {count} runs, {shutil.disk_usage(base).free >> 20} MiB free")


def _probe_sampler() -> Probe:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "samples.raw"
        try:
            sampling = Sampling(raw, period_s=_PERIOD_S, pid=os.getpid())
            time.sleep(1.0)
            sampling.stop()
            metrics = observer_metrics(read_raw(raw), sampling.cost, _PERIOD_S)
        except ErgoError as error:
            return Probe(False, str(error))
    if not metrics.keys() >= {"observer.cpu", "observer.rate"}:
        return Probe(False, "it took no samples", "stop other programs")
    cpu, rate, jitter = (metrics[f"observer.{name}"].value for name in ("cpu", "rate", "jitter"))
    lost = f"; {'; '.join(sampling.lost)}" if sampling.lost else ""
    how = "compiled" if sampling.compiled else "in Python, for want of a C compiler when it was installed"
    remedy = "" if sampling.compiled else "for a cheaper one: install a C compiler, then ergometer again"
    return Probe(
        rate > 0.9 / _PERIOD_S,
        f"{rate:.0f} Hz, jitter {jitter * 1e3:.2f} ms, {cpu:.1f} % of one core, {how}{lost}",
        remedy if rate > 0.9 / _PERIOD_S else "stop other programs, or sample less often (--period)",
    )


def examine() -> Examination:
    host = fingerprint()
    governors = set(host["governors"].values())
    system = {"store": _probe_store(), "sampler": _probe_sampler(), "memory limit": Probe(True, how_limited())}
    if governors and governors != {"performance"}:
        system["governor"] = Probe(
            True, ", ".join(sorted(governors)), "for steadier times: cpupower frequency-set -g performance"
        )
    system["python"] = Probe(True, f"{sys.version.split()[0]} at {sys.prefix}")
    return Examination(host, probe_sensors(), probe_engines(), system)
