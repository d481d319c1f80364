"""Pages: one file with its data, style and scripts inside, which needs no network and asks for none."""

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from typing import Any

_SCRIPTS = ("dom.js", "plots.js", "timeline.js", "breakdown.js", "run.js", "sweep.js", "store.js", "main.js")
_LIBRARY = "uplot.min.js"


def report(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A page about these runs, whose details are given by id, piece by piece."""
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    yield from page({"made": made, "version": version("ergometer"), "order": list(runs), "runs": runs})


def page(data: dict[str, Any] | None) -> Iterator[str]:
    """The page; without data it asks the server that it came from."""
    scripts = [_asset(_LIBRARY), "\n".join(_asset(name) for name in _SCRIPTS)]
    # Nothing but these scripts may run, whatever a name holds.
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
    policy += "" if data else "; connect-src 'self'"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Ergometer</title>\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="referrer" content="no-referrer">\n'
    yield f"<style>{_asset('uplot.min.css')}\n{_asset('style.css')}</style>\n</head>\n<body>\n"
    yield '<main id="app"><noscript>This page needs JavaScript, which is inside it.</noscript></main>\n'
    if data is not None:
        yield f'<script type="application/json" id="data">{script_text(data)}</script>\n'
    yield from (f"<script>{script}</script>\n" for script in scripts)
    yield "</body>\n</html>\n"


def script_text(value: Any) -> str:
    """JSON that can stand in a page: no tag can begin or end in it."""
    return to_text(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def to_text(value: Any) -> str:
    """JSON as browsers read it: a number that is none becomes null."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _asset(name: str) -> str:
    return (files("ergometer.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
