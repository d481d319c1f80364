import numpy as np
import pytest

from ergometer.analyze.metrics import window_metrics
from ergometer.analyze.sampled import level_metrics, read_windows, whole_energy
from ergometer.core.sensor import Channel
from ergometer.store.samples import Samples, Timeline


def samples(seconds: float, channels: list[Channel], values: list[float], every: int = 1) -> Samples:
    """Sampled at 100 Hz; the sensors refresh every `every`-th sample."""
    count = int(seconds * 100) + 1
    t_ns = np.arange(count, dtype=np.int64) * 10_000_000
    wobble = 1e-6 * ((np.arange(count) // every) % 2)
    return Samples((Timeline(t_ns, tuple(channels), np.array(values) + wobble[:, None]),))


def energy(found: Samples, seconds: float):  # type: ignore[no-untyped-def]
    return whole_energy(read_windows(found, np.array([0]), np.array([int(seconds * 1e9)])))


BOARD = Channel(name="power.VDD_IN", unit="W", scope="system")
GPU = Channel(name="power.gpu0", unit="W", scope="component")
PACKAGE = Channel(name="power.package", unit="W", scope="component")
RAIL = Channel(name="power.VDD_GPU", unit="W", scope="part")


def test_the_whole_device_is_taken_alone() -> None:
    metric, _ = energy(samples(2, [RAIL, BOARD, GPU], [2, 5, 3]), 2)
    assert metric.value == pytest.approx(10, rel=1e-3)
    assert metric.note == "power.VDD_IN"
    assert metric.source == "integrated"


def test_components_are_added_and_the_rest_is_named() -> None:
    metric, _ = energy(samples(2, [GPU, PACKAGE, RAIL], [3, 4, 2]), 2)
    assert metric.value == pytest.approx(14, rel=1e-3)
    assert "not measured" in metric.note


def test_parts_that_may_overlap_are_not_added() -> None:
    metric, why = energy(samples(2, [RAIL], [2]), 2)
    assert metric is None
    assert "whole device" in why


def test_a_window_shorter_than_the_sensor_resolves_is_refused() -> None:
    slow = samples(5, [BOARD], [5], every=50)  # refreshes twice a second
    metric, why = energy(slow, 0.6)
    assert metric is None and "too short" in why
    assert energy(slow, 2)[0].source == "estimated"
    assert energy(samples(30, [BOARD], [5], every=50), 20)[0].source == "integrated"


def test_time_without_samples_is_taken_to_be_like_the_rest() -> None:
    hot = Channel(name="temperature.x", unit="°C")
    found = samples(10, [BOARD, hot], [10, 50])
    values = found.timelines[0].values.copy()
    values[300:330] = np.nan
    holed = Samples((Timeline(found.timelines[0].t_ns, found.timelines[0].channels, values),))
    readings = read_windows(holed, np.array([0]), np.array([10**10]))
    metric, _ = whole_energy(readings)
    assert metric is not None and metric.value == pytest.approx(100, rel=1e-3) and metric.source == "estimated"
    assert level_metrics(readings)[0]["temperature.x"].value == pytest.approx(50, rel=1e-3)


def test_idle_cores_count_in_the_mean() -> None:
    t_ns = np.arange(200, dtype=np.int64) * 20_000_000
    channels, columns = [], []
    for core in range(4):
        for what, rate in (("busy", core == 0), ("idle", core != 0)):
            channels.append(Channel(name=f"cpu.{what}.{core}", unit="s", kind="counter"))
            columns.append(t_ns * 1e-9 * rate)
    found = Samples((Timeline(t_ns, tuple(channels), np.column_stack(columns)),))
    metrics = window_metrics(found, 0, int(t_ns[-1]), 4).metrics
    assert metrics["cpu_utilisation"].value == pytest.approx(25)
    assert metrics["idle_ratio.3"].value == pytest.approx(100)


def test_a_modelled_channel_stays_an_estimate() -> None:
    modelled = Channel(name="power.pmic", unit="W", scope="system", modelled=True)
    assert energy(samples(5, [modelled], [5]), 5)[0].source == "estimated"


def test_without_power_the_reason_is_given() -> None:
    findings = window_metrics(Samples((), (), {"thermal": "no zone"}), 0, 10**9, 2)
    assert "doctor" in findings.absent["energy"]
    assert findings.absent["temperature"] == "thermal: no zone"
    assert findings.metrics["wall_time"].value == 1.0
    assert "energy" not in findings.metrics


def test_steps_with_loading_in_between_must_be_resolved_one_by_one() -> None:
    """6 ms steps, 6 ms of loading, read every 10 ms: no number is better than a wrong one."""
    found = samples(2, [BOARD], [5])
    starts = np.arange(0, 1_980_000_000, 12_000_000)
    ends = starts + 6_000_000
    assert "larger batch" in read_windows(found, starts, ends, interrupted=True)[BOARD.name].refused
    assert not read_windows(found, starts, ends)[BOARD.name].refused
    long = np.array([0, 1_000_000_000])
    assert not read_windows(found, long, long + 500_000_000, interrupted=True)[BOARD.name].refused
