"""Samples as columns: one time axis for all channels that were read together."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ergometer.core.errors import StoreError
from ergometer.core.sensor import Channel
from ergometer.store.spans import load_arrays, save_arrays


@dataclass(frozen=True, slots=True)
class Timeline:
    """values[i, j] is channel j at t_ns[i]; NaN where the sensor gave no usable answer."""

    t_ns: NDArray[np.int64]
    channels: tuple[Channel, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """notes: what sensors did wrong. missing: sensor -> why it gave nothing. facts: calibrations and the like."""

    timelines: tuple[Timeline, ...]
    notes: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def find(self, name: str) -> tuple[Timeline, int] | None:
        """The timeline that has the channel, and the channel's column there."""
        for timeline in self.timelines:
            for column, channel in enumerate(timeline.channels):
                if channel.name == name:
                    return timeline, column
        return None

    def channels(self) -> list[Channel]:
        return [channel for timeline in self.timelines for channel in timeline.channels]

    def save(self, path: Path) -> None:
        arrays: dict[str, NDArray[np.generic]] = {}
        for number, timeline in enumerate(self.timelines):
            arrays[f"t{number}"] = np.diff(timeline.t_ns, prepend=0)
            arrays[f"v{number}"] = timeline.values.T.astype(np.float64)
        channels = [[asdict(channel) for channel in timeline.channels] for timeline in self.timelines]
        about = json.dumps({"channels": channels, "notes": self.notes, "missing": self.missing, "facts": self.facts})
        save_arrays(path, {**arrays, "about": np.array(about)})

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            about = json.loads(str(load_arrays(path, ["about"])["about"]))
            channels = [tuple(Channel(**channel) for channel in group) for group in about["channels"]]
            timelines = []
            for number, group in enumerate(channels):
                arrays = load_arrays(path, [f"t{number}", f"v{number}"])
                t_ns = np.cumsum(arrays[f"t{number}"]).astype(np.int64)
                values = arrays[f"v{number}"].astype(np.float64).T
                if values.shape != (len(t_ns), len(group)):
                    raise ValueError("columns differ in length")
                timelines.append(Timeline(t_ns, group, values))
            return cls(tuple(timelines), tuple(about["notes"]), about["missing"], about["facts"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged ({error}): its run's samples cannot be shown.") from error
