"""Every sensor keeps the contract: it says why it does not work, and what it reads is right."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.core import registry
from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target
from ergometer.sensors.battery import calibrate, volts
from tests.trees import TREES, plant

SENSORS: dict[str, Sensor] = registry.load_all("sensors")


@pytest.mark.parametrize("name", SENSORS)
def test_a_sensor_describes_itself(name: str) -> None:
    sensor = SENSORS[name]
    assert sensor.name == name
    assert sensor.title and sensor.measures


@pytest.mark.parametrize("name", SENSORS)
def test_on_an_empty_device_it_says_why_and_reads_nothing(name: str, tmp_path: Path) -> None:
    probe = SENSORS[name].probe(tmp_path)
    assert isinstance(probe, Probe)
    assert not probe.ok and len(probe.reason) > 10
    if name != "memory":  # needs only the process
        assert SENSORS[name].sources(Target(root=tmp_path, pid=1)) == []


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", SENSORS)
def test_what_it_finds_it_can_read(name: str, tree: str, tmp_path: Path) -> None:
    root = plant(tmp_path, TREES[tree])
    sensor = SENSORS[name]
    sources = sensor.sources(Target(root=root))
    if name not in ("memory", "process"):
        assert bool(sources) == sensor.probe(root).ok
    for source in sources:
        raw = sensor.open(source, Target(root=root))()
        values = sensor.parse(source, raw)
        assert len(values) == len(source.channels)
        assert all(value == value for value in values)
        assert Source.from_json(source.to_json()) == source
        for garbage in (b"", b"banana", b"\xff\x00", b"1 2 3 4 5 6 7\n" * 9):
            try:
                assert len(sensor.parse(source, garbage)) >= 1
            except (ValueError, IndexError):
                continue


def read(tree: str, tmp_path: Path) -> dict[str, float]:
    """Every channel of a tree."""
    root = plant(tmp_path, TREES[tree])
    found: dict[str, float] = {}
    for sensor in SENSORS.values():
        for source in sensor.sources(Target(root=root)):
            values = sensor.parse(source, sensor.open(source, Target(root=root))())
            found |= {channel.name: value for channel, value in zip(source.channels, values, strict=True)}
    return found


def scopes(tree: str, tmp_path: Path) -> dict[str, str]:
    root = plant(tmp_path, TREES[tree])
    return {
        channel.name: channel.scope
        for sensor in SENSORS.values()
        for source in sensor.sources(Target(root=root))
        for channel in source.channels
        if channel.name.startswith(("power.", "energy."))
    }


EXPECTED = {
    "jetson_orin": {
        "power.VDD_IN": 6.0, "power.VDD_CPU_GPU_CV": 2.0, "gpu_utilisation.0": 73.5, "gpu_frequency.0": 624750000,
        "temperature.cpu-thermal": 48.5, "temperature.gpu-thermal": 46.25, "throttle.cpufreq-cpu0.0": 0,
        "frequency.0": 1510400e3, "frequency.1": 1510400e3, "cpu.busy.0": 1.0, "cpu.idle.1": 3.0, "cpu.steal": 0.07,
        "pressure.cpu": 1.5,
    },
    "amd_desktop": {
        "power.amd0": 212.0, "gpu_utilisation.amd0": 87.0, "gpu_memory.amd0": 2.0**32, "gpu_frequency.amd0": 2.45e9,
        "power.amd1": 15.0, "gpu_utilisation.amd1": 3.0,
    },
    "jetson_tx2": {"power.VDD_IN": 4.321, "power.VDD_SYS_CPU": 1.0, "gpu_utilisation.0": 1.2},
    "laptop": {
        "energy.package-0": 262143.0, "energy.package-0.core": 1.0, "energy.package-0.dram": 0.5,
        "temperature.coretemp.Package id 0": 61.0, "throttle.core.0": 4, "throttle.package.0": 9,
        "power.device": 13.8, "power.BAT0": 13.8,
    },
    "phone": {
        "power.device": 1.8 + 2.35, "power.battery": 1.8, "power.usb": 2.35, "gpu_utilisation.0": 25.0,
        "gpu_frequency.0": 585000000,
    },
    "mali_phone": {"gpu_utilisation.0": 37.0, "gpu_frequency.0": 848000000},
    "raspberry_pi_5": {
        "throttle.under_voltage": 1, "throttle.frequency_capped": 0, "throttle.throttled": 1,
        "throttle.soft_temperature_limit": 0, "power.pmic_rails": 1.97, "power.pmic": 1.1451 * 1.97 + 0.588,
        "temperature.cpu-thermal": 55.6,
    },
}  # fmt: skip


@pytest.mark.parametrize("tree", EXPECTED)
def test_the_numbers_of_a_device(tree: str, tmp_path: Path) -> None:
    found = read(tree, tmp_path)
    for name, value in EXPECTED[tree].items():
        assert found[name] == pytest.approx(value), name
    assert not any("NC" in name or "shunt" in name or "fan" in name for name in found)


def test_nothing_is_counted_twice(tmp_path: Path) -> None:
    assert scopes("jetson_orin", tmp_path / "a") == {"power.VDD_IN": "system", "power.VDD_CPU_GPU_CV": "part"}
    assert scopes("jetson_xavier", tmp_path / "b") == {"power.GPU": "component", "power.CPU": "component"}
    assert scopes("amd_desktop", tmp_path / "d") == {"power.amd0": "component", "power.amd1": "part"}
    laptop = scopes("laptop", tmp_path / "c")
    assert laptop["energy.package-0"] == "component" and laptop["energy.package-0.core"] == "part"
    assert laptop["power.device"] == "system" and laptop["power.BAT0"] == "part"


@given(
    st.floats(0.05, 4.0), st.floats(3.0, 4.4), st.sampled_from([1e3, 1e6]), st.sampled_from([1, -1]), st.booleans(),
    st.sampled_from([1, 1e3, 1e6]),
)  # fmt: skip
def test_battery_power_is_right_whatever_the_driver_does(
    amperes: float, voltage: float, unit: float, convention: int, discharging: bool, volt_unit: float
) -> None:
    """convention +1: the driver reports discharge as negative."""
    sensor = SENSORS["battery"]
    reported = amperes * unit * convention * (-1 if discharging else 1)
    status = "Discharging" if discharging else "Charging"
    channels = (Channel(name="power.device", unit="W"), Channel(name="power.battery", unit="W"))
    facts = {"names": ["battery"], "batteries": ["battery"]}
    source = Source(sensor="battery", key="supplies", channels=channels, facts=facts)
    idle = f"{0.001 * unit}\n{voltage * volt_unit}\nFull".encode()
    raw = f"{reported}\n{voltage * volt_unit}\n{status}".encode()
    # A reading at rest shows neither unit nor sign; the whole run does.
    source = sensor.calibrate(source, [idle, raw, b"garbage"])
    expected = amperes * voltage * (1 if discharging else -1)
    assert sensor.parse(source, raw)[0] == pytest.approx(expected)
    back = f"{-reported}\n{voltage * volt_unit}\n?".encode()
    assert sensor.parse(source, back)[0] == pytest.approx(-expected)
    assert not source.channels[0].modelled


def test_an_unknown_direction_makes_an_estimate(tmp_path: Path) -> None:
    assert calibrate([(500000, "Full")]) == {"ampere": 1e-6, "sign": 1.0, "sign_known": False}
    root = plant(tmp_path, TREES["laptop"] | {"sys/class/power_supply/BAT0/status": "Full"})
    (source,) = SENSORS["battery"].sources(Target(root=root))
    assert source.channels[0].modelled


def test_a_battery_on_a_supply_that_tells_nothing_is_not_the_whole_device(tmp_path: Path) -> None:
    mains = {"sys/class/power_supply/AC/type": "Mains", "sys/class/power_supply/AC/online": "1"}
    root = plant(tmp_path, TREES["laptop"] | mains | {"sys/class/power_supply/BAT0/status": "Full"})
    (source,) = SENSORS["battery"].sources(Target(root=root))
    assert source.channels[0].scope == "part"


@given(st.floats(1.0, 60.0))
def test_volts_in_any_unit(value: float) -> None:
    for unit in (1, 1e3, 1e6):
        assert volts(value * unit) == pytest.approx(value)
