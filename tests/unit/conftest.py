from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergometer.core.spec import Spec
from ergometer.run import tune
from ergometer.run.interrupt import Interrupt
from ergometer.run.tuned import Tuned
from tests.tuning import SPEC, Costs, Device


@pytest.fixture
def search(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Tuned, Device]]]:
    with Interrupt() as interrupt:

        def searched(costs: Costs, spec: Spec = SPEC, **options: Any) -> tuple[Tuned, Device]:
            device = Device(monkeypatch, costs, start_s=options.pop("start_s", 2.0))
            device.versions |= options.pop("versions", {})
            for name in ("room", "handover_at", "luck", "busy", "load_on", "loading_s", "bytes_of"):
                setattr(device, name, options.pop(name, getattr(device, name)))
            asked = {"goal": "time", "engines": [], "interrupt": interrupt, "tell": lambda text: None}
            return tune.tuned(spec, **(asked | options)), device

        yield searched
