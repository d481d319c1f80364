"""The fingerprint of this device: all that decides whether two results may be compared."""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from ergometer import __version__
from ergometer.core import registry
from ergometer.core.errors import UsageError
from ergometer.core.sensor import Target, natural, read_number, read_text, sysroot
from ergometer.core.timebox import within

_PACKAGES = ("numpy", "torch", "nvidia-ml-py")


def _processor(root: Path) -> str:
    """The name of the processor, or of the board where the processor does not say."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "Processor") and value.strip():
            return value.strip()
    board = read_text(root / "proc/device-tree/model")
    return board.rstrip("\0") if board else platform.processor() or "unknown"


def memory_bytes(root: Path) -> int | None:
    """RAM of the device."""
    lines = (read_text(root / "proc/meminfo") or "").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)


def capacities(root: Path) -> dict[int, float]:
    """Relative capacity of every core: the kernel's figure, or else its highest frequency."""
    found: dict[int, float] = {}
    for cpu in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*"), key=natural):
        value = read_number(cpu / "cpu_capacity") or read_number(cpu / "cpufreq/cpuinfo_max_freq")
        if value is not None:
            found[natural(cpu)[1]] = value
    return found


def choose_cores(text: str, root: Path) -> tuple[int, ...]:
    """Core numbers from '0,2', '0-3', 'big' or 'little'."""
    allowed = sorted(os.sched_getaffinity(0))
    if text in ("big", "little"):
        known = {core: value for core, value in capacities(root).items() if core in allowed}
        if len(set(known.values())) < 2:
            raise UsageError(f"this device has no {text} cores, all are equal: give numbers, such as --cores 0,1.")
        edge = max(known.values()) if text == "big" else min(known.values())
        return tuple(core for core, value in known.items() if value == edge)
    cores: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise UsageError(f"{text!r} names no cores: write 0,2 or 0-3, big or little.")
        cores |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not cores or not cores <= set(allowed):
        raise UsageError(f"cores {text} are not all here: this device has {', '.join(map(str, allowed))}.")
    return tuple(sorted(cores))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "ergometer": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _temperatures(root: Path) -> dict[str, float]:
    sensor = registry.load("sensors", "thermal")
    found = {}
    try:
        for source in within(2.0, lambda: sensor.sources(Target(root=root))):
            found[source.key] = (read_number(root / source.files[0]) or 0.0) * source.channels[0].scale
    except TimeoutError:
        return {}  # the sampler will report the zone that hangs
    return found


def fingerprint() -> dict[str, Any]:
    """What this device is and the state it is in now. Temperatures in °C, sizes in bytes."""
    root = sysroot()
    policies = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"), key=natural)
    pressure = read_text(root / "proc/pressure/cpu")
    return {
        "name": platform.node(),
        "machine": platform.machine(),
        "processor": _processor(root),
        "cores": len(capacities(root)) or os.cpu_count(),
        "capacities": {str(core): value for core, value in capacities(root).items()},
        "memory_bytes": memory_bytes(root),
        "kernel": platform.release(),
        "governors": {policy.name: read_text(policy / "scaling_governor") or "" for policy in policies},
        "temperatures_c": _temperatures(root),
        "pressure": pressure.splitlines()[0] if pressure else None,
        "load_average": read_text(root / "proc/loadavg"),
        "versions": _versions(),
    }
