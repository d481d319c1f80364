import numpy as np
import pytest

from ergometer.analyze.metrics import end_metrics, observer_metrics, step_metrics
from ergometer.core.sensor import Channel
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

MS = 1_000_000
SPEC = Spec(model="lenet", batch=4)
NOTHING = Samples(())


def steps(times_ms: list[float]) -> SpanTable:
    spans, now = [], 0
    for number, time_ms in enumerate(times_ms):
        end = now + int(time_ms * MS)
        spans.append(Span(now, end, "step", "timed", number))
        spans.append(Span(now, now + int(time_ms * MS * 0.4), "phase", "forward", number, "forward"))
        spans.append(Span(now + int(time_ms * MS * 0.4), end, "phase", "backward", number, "backward"))
        now = end
    return SpanTable.of(spans)


def channel(name: str, values: list[float], unit: str = "s", kind: str = "counter") -> Samples:
    t_ns = np.arange(len(values), dtype=np.int64) * 10 * MS
    made = Channel(name=name, unit=unit, kind=kind)
    return Samples((Timeline(t_ns, (made,), np.array(values).reshape(-1, 1)),))


def doubts(times_ms: list[float], samples: Samples = NOTHING, **facts: object) -> str:
    return " ".join(step_metrics(SPEC, steps(times_ms), samples, dict(facts)).warnings)


def test_steady_times_are_not_doubted() -> None:
    assert doubts([10.0 + 0.01 * (n % 3) for n in range(100)]) == ""


def test_medians_and_percentiles() -> None:
    found = step_metrics(SPEC, steps([10.0] * 90 + [20.0] * 10), Samples(()), {}).metrics
    assert found["step_time"].value == pytest.approx(0.010)
    assert found["step_time.p99"].value == pytest.approx(0.020)
    assert found["throughput"].value == pytest.approx(400)
    assert found["forward_time"].value == pytest.approx(0.004)
    assert found["backward_time"].value == pytest.approx(0.006)


def test_too_few_samples() -> None:
    assert "3 steps, and 6 are needed for an interval (raise --time)" in doubts([10.0] * 3)
    assert "(raise --steps)" in doubts([10.0] * 3, fixed_steps=True)
    assert "too few samples: the interval is" in doubts([10.0, 14.0, 9.0, 13.0, 10.0, 12.0, 9.0, 15.0] * 2)


def test_drift() -> None:
    assert "slower during the run" in doubts([10.0 + 0.05 * n for n in range(100)])
    assert "had not settled" in doubts([10.0] * 30, warmup_settled=False)


def test_cpu_pressure() -> None:
    assert "CPU pressure: tasks waited" in doubts(
        [10.0] * 100, channel("pressure.cpu", [0.004 * n for n in range(110)])
    )
    assert doubts([10.0] * 100, channel("pressure.cpu", [0.0002 * n for n in range(110)])) == ""
    assert "other virtual machines" in doubts([10.0] * 100, channel("cpu.steal", [0.001 * n for n in range(110)]))


def test_throttling() -> None:
    hot = channel("throttle.gpu0", [0.0] * 50 + [1.0] * 60, "state", "gauge")
    assert "throttling: throttle.gpu0" in doubts([10.0] * 100, hot)
    events = channel("throttle.core.0", [4.0] * 50 + [6.0] * 60, "events")
    assert "throttling: throttle.core.0" in doubts([10.0] * 100, events)
    falling = channel("frequency.0", [2e9] * 50 + [1e9] * 60, "Hz", "gauge")
    assert "fell from 2.00 to 1.00 GHz" in doubts([10.0] * 100, falling)


def test_the_gpus_own_counter_is_compared_with_its_sampled_power() -> None:
    t_ns = np.arange(101, dtype=np.int64) * 10 * MS
    power = Timeline(t_ns, (Channel(name="power.gpu0", unit="W"),), np.full((101, 1), 100.0))

    def counted(joules: float) -> Samples:
        ends = Channel(name="total_energy.gpu0", unit="J", kind="counter")
        return Samples((power, Timeline(t_ns[[0, -1]], (ends,), np.array([[5.0], [5.0 + joules]]))))

    assert end_metrics(counted(101)).warnings == []
    assert end_metrics(counted(101)).metrics["total_energy.gpu0"].value == 101
    assert "adds up to 100.0 J" in end_metrics(counted(150)).warnings[0]


def test_the_observer_is_described() -> None:
    t_ns = np.arange(101, dtype=np.int64) * 10 * MS
    beat = Samples((Timeline(t_ns, (), np.empty((101, 0))),))
    found = observer_metrics(beat, {"wall_s": 2.0, "cpu_s": 0.03}, 0.01)
    assert found["observer.rate"].value == pytest.approx(100)
    assert found["observer.jitter"].value == pytest.approx(0, abs=1e-9)
    assert found["observer.cpu"].value == pytest.approx(1.5)


def test_freed_memory_that_is_taken_anew_is_told_with_the_remedy() -> None:
    usage = {"page_faults": 50_000, "kernel_s": 0.2, "cpu_s": 1.0, "remedy": "--engine torch:memory=kept"}
    assert "5000 a step, 20 % of the CPU time" in doubts([10.0] * 10, usage=usage)
    assert "torch:memory=kept" in doubts([10.0] * 10, usage=usage)
    for quiet in ({"page_faults": 900}, {"kernel_s": 0.04}):
        assert "page faults" not in doubts([10.0] * 10, usage=usage | quiet)
    del usage["remedy"]
    assert "page faults" not in doubts([10.0] * 10, usage=usage)
    found = step_metrics(SPEC, steps([10.0] * 10), NOTHING, {"usage": usage}).metrics
    assert found["page_faults"].value == 5000 and found["kernel_time_per_step"].value == pytest.approx(0.02)
