"""The measured process: loads one model, checks that it learns, times it, then traces it.

    python -m ergometer.run.worker DIRECTORY MESSAGES RELEASE [--brief] [--turns] [BUNDLE]

Reads spec.json in the directory, writes worker.json and spans.npz there, and tells the parent where it
stands through the file descriptor MESSAGES. It ends when the parent closes RELEASE, so that the sampler
can look at it once more. BUNDLE: the directory of the network, for an engine that runs canonical graphs. --brief: time
it, no more. --turns: load, then step for a moment and tell the time, for every byte that comes through RELEASE.
"""

import dataclasses
import gc
import json
import math
import os
import random
import re
import resource
import signal
import statistics
import sys
import time
import traceback
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ergometer.analyze.statistics import TARGET, settled, spread
from ergometer.core import registry
from ergometer.core.clock import now_ns
from ergometer.core.dataset import Dataset, Request
from ergometer.core.engine import Engine
from ergometer.core.errors import ErgoError, StoreError, UnavailableError, UsageError
from ergometer.core.heap import is_glibc, return_freed_memory
from ergometer.core.model import Model
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.run.fetch import folder_of
from ergometer.run.learning import NotLearningError, check_learning
from ergometer.store.bundle import model_in, open_graph
from ergometer.store.home import write_json

DEFAULT_TIME_S = 15.0
_FEWEST_STEPS = 20
_SHORTEST_S = 1.5  # so that a power sensor of 100 ms resolves the whole
_MOST_WARMUP = 200
_TELL_NS = 250_000_000
_PAD_BYTES = 1 << 18
SHORT, THOROUGH = b"s", b"t"  # turns
THOROUGH_MOMENTS = 4  # the least that a thorough turn lasts
_QUICK_MOMENTS = 5  # a network that loads, and steps once, in less time is loaded anew for every thorough turn
_REPAID = 2  # times what that took, or may take: the turn after it


class StoppedError(Exception):
    """The user stopped the run before there was anything to keep."""


class Worker:
    def __init__(self, spec: Spec, messages: int, bundle: Path | None, *, brief: bool, turns: int | None):
        self.spec, self.bundle, self.brief, self.turns = spec, bundle, brief, turns
        self.facts: dict[str, Any] = {"fixed_steps": spec.steps is not None}
        self.spans: list[Span] = []
        self.stop = False
        self._messages = messages
        self._stage = ("start", now_ns())
        self._keep_going = False
        self._told_ns = 0
        self._pads: list[bytearray] = []
        # Stamps of the timed steps. Not a list of objects: the worker's own memory is part of what is measured.
        self._marks = array("q")
        self._loads = array("q")
        signal.signal(signal.SIGTERM, self._on_stop)

    def _on_stop(self, number: int, frame: Any) -> None:
        self.stop = True
        if not self._keep_going:
            raise StoppedError

    def say(self, event: str, **values: Any) -> None:
        os.write(self._messages, json.dumps({"event": event, **values}).encode() + b"\n")

    @property
    def stage_name(self) -> str:
        return self._stage[0]

    def stage(self, name: str) -> None:
        """End the current stage and begin another."""
        previous, start = self._stage
        self._stage = (name, now_ns())
        self.spans.append(Span(start, self._stage[1], "stage", previous))
        self._keep_going = name == "timed"
        self.say("stage", name=name)

    def measure(self) -> None:
        spec = self.spec
        self.stage("load")
        self.engine: Engine = registry.load("engines", spec.engine)()
        self.engine.prepare()
        baseline = resident_bytes("VmRSS")
        self.model = self._model()
        dataset: Dataset = registry.load("data", spec.data)
        folder = folder_of(dataset, spec.data_dir)
        request = Request(fields=self.model.fields(), batch=spec.batch, seed=spec.seed, folder=folder)
        self.stream = dataset.open(request)
        self.environment = self.stream if hasattr(self.stream, "play") else None
        self._fixed = self.stream.fixed or self.environment is not None
        try:
            self._load()
            engine = self.engine
            self.facts |= {"threads": engine.threads(), "remarks": engine.remarks}
            if self.turns is not None:
                self.say("loaded")
                os.read(self.turns, 1)
            stepped_ns = now_ns()
            self.stage("first step")
            if self.turns is not None and spec.mode == "train":
                self._check_loss(engine, 1)  # a step of a slow network takes long, and this is one
            else:
                engine.step()
            self._anew_ns = self._load_ns + now_ns() - stepped_ns
            if spec.mode == "train" and not self.brief:
                self.stage("learning check")
                self.facts["learning"] = check_learning(engine)
                if not self.facts["learning"]["ok"]:
                    self.end("not_learning", self.facts["learning"]["reason"])
                    return
            if self.turns is not None:
                del engine  # it is replaced
                self._take_turns(self.turns)
                return
            self._time(engine)
            self.facts["memory"] = {"baseline": baseline, "peak": resident_bytes("VmHWM")}
            self._keep_steps(engine.phases)
            if self.stop:
                self.end("interrupted", "stopped by the user; the steps up to there are kept")
                return
            if not self.brief:
                self._explain(engine)
            self.stage("end")
            engine.close()
            self.end("ok", "")
        except MemoryError as error:
            self.end("out_of_memory", str(error) or "memory ran out")
        except Exception as error:
            if not self.engine.out_of_memory(error):
                raise
            self.end("out_of_memory", str(error).splitlines()[0])
        finally:
            self.facts["versions"] = self.engine.versions()

    def _load(self) -> None:
        begun_ns = now_ns()
        self.engine.load(self.spec, self.model, self.stream.batch(), self.environment)
        self._load_ns = now_ns() - begun_ns

    def _model(self) -> Model:
        if self.bundle is not None:
            return replace(model_in(self.bundle), lowered=open_graph(self.bundle, self.spec.mode, self.spec.batch))
        from ergometer.run.resolve import resolve  # megabytes that a device without torch does not need

        return resolve(self.spec)

    def end(self, status: str, reason: str) -> None:
        self.facts |= {"status": status, "reason": reason}
        self.facts.setdefault("memory", {"peak": resident_bytes("VmHWM")})

    def _time(self, engine: Engine) -> None:
        spec = self.spec
        budget_s = spec.budget.time_s or DEFAULT_TIME_S
        self.stage("warm-up")
        self._warm_up(engine, budget_s)
        self.stage("timed")
        marks = self._marks
        times = array("d")
        check_at = _FEWEST_STEPS
        end_ns = now_ns() + int(budget_s * 1e9)
        shortest_ns = now_ns() + int(min(_SHORTEST_S, budget_s) * 1e9)
        before = resource.getrusage(resource.RUSAGE_SELF)
        while not self.stop:
            self._next_batch(engine)
            step = engine.step()
            marks.extend(step.marks)
            times.append((step.marks[-1] - step.marks[0]) * 1e-9)
            now, count = step.marks[-1], len(times)
            self._tell(now, count, times)
            if spec.steps is not None:
                if count >= spec.steps:
                    break
            elif now > end_ns:
                break
            elif count >= check_at and now > shortest_ns:
                if spread(times) <= TARGET:
                    break
                check_at = count + max(1, count // 10)
        self._keep_usage(engine, before)
        if not self.stop:
            self._check_loss(engine, len(times))

    def _keep_usage(self, engine: Engine, before: resource.struct_rusage) -> None:
        """What the timed steps asked of the system, and the setting that asks for less, if there is one."""
        after = resource.getrusage(resource.RUSAGE_SELF)
        kernel_s = after.ru_stime - before.ru_stime
        self.facts["usage"] = {
            "page_faults": after.ru_minflt - before.ru_minflt,
            "kernel_s": kernel_s,
            "cpu_s": kernel_s + after.ru_utime - before.ru_utime,
        }
        kept = replace(self.spec, options=self.spec.options | {"memory": "kept"})
        if self.spec.device == "cpu" and "memory" in engine.options and kept != self.spec:
            self.facts["usage"]["remedy"] = f"--engine {kept.engine_text}"

    def _check_loss(self, engine: Engine, count: int) -> None:
        if self.spec.mode == "train":
            finals = [engine.learn(1, number).losses[0] for number in range(len(engine.passes))]
            self.facts["final_loss"] = sum(finals)
            if not math.isfinite(sum(finals)):
                raise NotLearningError(
                    f"the loss became {sum(finals)} after {count} steps: these times are not of training"
                )

    def _take_turns(self, asked: int) -> None:
        """The first step of a turn does not count, since others have had the caches; unless it is long, and not the
        first since loading.

        Where memory happens to lie makes a network faster or slower by some percent for as long as it is loaded, so it
        is loaded anew for a thorough turn if that is quick. That takes time in which nothing is measured, and steps are
        slower at first, so the turn is a long one then.
        """
        moment_ns, turns, steps, word = int((self.spec.budget.time_s or DEFAULT_TIME_S) * 1e9), 0, 0, SHORT
        quick_ns = _QUICK_MOMENTS * moment_ns
        self.stage("turns")
        while not turns or (word := os.read(asked, 1)):
            turn_ns = THOROUGH_MOMENTS * moment_ns if word == THOROUGH else moment_ns
            anew = word == THOROUGH and self._anew_ns <= quick_ns
            if anew:
                self._load_anew()
                turn_ns = max(turn_ns, _REPAID * min(self._anew_ns, quick_ns))
            times: list[float] = []
            end_ns = now_ns() + turn_ns
            while not times or now_ns() < end_ns:
                self._next_batch(self.engine)
                step = self.engine.step()
                times.append((step.marks[-1] - step.marks[0]) * 1e-9)
            turns, steps = turns + 1, steps + len(times)
            if turns == 2 and len(times) > 1:  # where a turn is one step, that would double it
                self._check_loss(self.engine, steps)
            counts = times if times[0] * 1e9 > moment_ns and not anew else times[1:] or times
            self.say("turn", step_s=statistics.median(counts))

    def _load_anew(self) -> None:
        """In other pages than before, and at another offset, as in another process."""
        begun_ns, kind = now_ns(), type(self.engine)
        self.engine.close()
        del self.engine  # before there is another: two may not fit
        gc.collect()
        if is_glibc():
            return_freed_memory()
        self._pads.append(bytearray(random.randrange(_PAD_BYTES)))
        self.engine = kind()
        self._load()
        self.engine.step()
        self._anew_ns = now_ns() - begun_ns

    def _next_batch(self, engine: Engine) -> None:
        """Load the next batch, outside of the step: what that takes is measured apart."""
        if not self._fixed:
            self._loads.append(now_ns())
            engine.feed(self.stream.batch())
            self._loads.append(now_ns())

    def _keep_steps(self, phases: tuple[str, ...]) -> None:
        """Spans of the timed steps, made once the peak of memory has been read."""
        for number, (start, end) in enumerate(zip(self._loads[::2], self._loads[1::2], strict=True)):
            self.spans.append(Span(start, end, "load", "timed", number))
        width = len(phases) + 1
        for number in range(len(self._marks) // width):
            marks = self._marks[number * width : (number + 1) * width]
            self.spans.append(Span(marks[0], marks[-1], "step", "timed", number))
            for phase, start, end in zip(phases, marks, marks[1:], strict=False):
                self.spans.append(Span(start, end, "phase", phase, number, phase))

    def _tell(self, now: int, count: int, times: Sequence[float]) -> None:
        if now - self._told_ns > _TELL_NS:
            self._told_ns = now
            recent = times[-50:]
            self.say("progress", step=count, rate=self.spec.batch * len(recent) / sum(recent))

    def _warm_up(self, engine: Engine, budget_s: float) -> None:
        """Step until times are steady, for at most half of the budget."""
        times: list[float] = []
        end = time.monotonic() + budget_s / 2
        wanted = self.spec.warmup
        while len(times) < (_MOST_WARMUP if wanted is None else wanted):
            self._next_batch(engine)
            step = engine.step()
            times.append((step.marks[-1] - step.marks[0]) * 1e-9)
            self._tell(step.marks[-1], len(times), times)
            if wanted is None and (settled(times) or time.monotonic() > end):
                break
        del self._loads[:]
        self.facts["warmup_steps"] = len(times)
        if wanted is None:
            self.facts["warmup_settled"] = settled(times)

    def _explain(self, engine: Engine) -> None:
        """Counts, op spans and memory parts: in steps of their own, after the timed ones."""
        self.stage("count")
        self.facts["counts"] = dataclasses.asdict(engine.counts())
        self.facts["untraced"] = engine.untraced
        if self.spec.trace_steps and not engine.untraced:
            self.stage("trace")
            self.spans += engine.ops(self.spec.trace_steps)
        self.stage("memory")
        parts, spans = engine.memory()
        self.facts["memory"]["parts"] = dataclasses.asdict(parts)
        self.spans += spans


def resident_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (highest ever) of this process."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def explained(error: Exception, spec: Spec) -> str:
    """One sentence for an error of the framework or of the user's model."""
    from ergometer.run.resolve import described, is_file

    if is_file(spec.model):
        path = Path(spec.model.partition(":")[0]).resolve()
        return f"{spec.model} failed with batch {spec.batch}: {described(error, path)}"
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"


def main() -> None:
    directory, messages, release = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    spec = Spec.from_json(json.loads((directory / "spec.json").read_text()))
    flags = sys.argv[4:]
    bundles = [Path(text) for text in flags if not text.startswith("--")]
    turns = release if "--turns" in flags else None
    worker = Worker(spec, messages, bundles[0] if bundles else None, brief="--brief" in flags, turns=turns)
    try:
        worker.measure()
    except StoppedError:
        worker.end("interrupted", f"stopped by the user during {worker.stage_name}")
    except UnavailableError as error:
        worker.end("unsupported", str(error))
    except (UsageError, StoreError) as error:
        worker.end("failed", str(error))
    except NotLearningError as error:
        worker.end("not_learning", str(error))
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything; the log has the trace
        traceback.print_exc()
        worker.end("failed", explained(error, spec))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from ergometer.store.spans import SpanTable  # after the peak of memory has been read

    try:
        SpanTable.of(worker.spans).save(directory / "spans.npz")
        write_json(directory / "worker.json", worker.facts)
        worker.say("done")
    except ErgoError as error:
        worker.say("error", reason=str(error))
    os.read(release, 1)
    os._exit(0)  # a framework's threads must not hold the exit


if __name__ == "__main__":
    main()
