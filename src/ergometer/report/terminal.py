"""Records as tables in a terminal, or as plain text where there is none."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ergometer.analyze.attribute import Share
from ergometer.core.quantity import format_value
from ergometer.core.record import Metric, Record

__all__ = ["console", "escape", "metrics", "name_of", "remarks", "results", "runs", "shares", "status_text", "table"]

_STYLES = {"ok": "green", "running": "cyan", "interrupted": "yellow", "out_of_memory": "yellow"}
_PLAIN_WIDTH = 200
_NAME = 48


def console(*, stderr: bool = False) -> Console:
    """Fits the terminal; without one, wide enough that nothing is cut."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = ()) -> Table:
    """A table whose numbers are on the right and whose named columns are on the left."""
    made = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def shown(metric: Metric | None) -> str:
    """'12.3 ms', with '~' before what is estimated; '-' for what is absent."""
    if metric is None:
        return "-"
    return ("~" if metric.source == "estimated" else "") + format_value(metric.value, metric.unit)


def interval(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"{format_value(metric.low, metric.unit)} .. {format_value(metric.high, metric.unit)}"


def name_of(record: Record) -> str:
    """The model or command on one line, cut where it is long."""
    text = " ".join(record.spec.model.split())
    return escape(text if len(text) <= _NAME else text[: _NAME - 1] + "…")


def status_text(record: Record) -> str:
    style = _STYLES.get(record.status, "red")
    doubtful = any(warning.startswith("unstable") for warning in record.warnings)
    return f"[{style}]{record.status}[/]" + (" [yellow](unstable)[/]" if doubtful else "")


def _percent(metric: Metric) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f" ±{100 * max(metric.high - metric.value, metric.value - metric.low) / metric.value:.1f}%"


def _hottest(record: Record) -> Metric | None:
    found = [metric for name, metric in record.metrics.items() if name.startswith("temperature.")]
    return max(found, key=lambda metric: metric.value, default=None)


def results(records: Sequence[Record]) -> Table:
    """One row per run: what a step costs."""
    optional = {
        "engine": [record.spec.engine for record in records],
        "device": [record.spec.device for record in records],
        "threads": [str(record.spec.threads or "all") for record in records],
        "cores": [",".join(map(str, record.spec.cores or ())) or "all" for record in records],
    }
    varying = [name for name, values in optional.items() if len(set(values)) > 1]
    columns = [
        "model",
        "mode",
        "batch",
        *varying,
        "status",
        "step time",
        "n",
        "throughput",
        "forward",
        "backward",
        "optimizer",
        "peak memory",
        "CPU",
        "energy/step",
        "hottest",
    ]
    rows = []
    for at, record in enumerate(records):
        found = record.metrics
        step = found.get("step_time")
        rows.append(
            [
                name_of(record),
                record.spec.mode,
                str(record.spec.batch),
                *(optional[name][at] for name in varying),
                status_text(record),
                shown(step) + (_percent(step) if step else ""),
                str(step.n) if step else "-",
                *(
                    shown(found.get(name))
                    for name in (
                        "throughput",
                        "forward_time",
                        "backward_time",
                        "optimizer_time",
                        "peak_memory",
                        "cpu_utilisation",
                        "energy_per_step",
                    )
                ),
                shown(_hottest(record)),
            ]
        )
    return table("", columns, rows, left=("model", "mode", "status"))


def remarks(records: Sequence[Record]) -> list[str]:
    """Reasons, warnings and what is absent, each said once with the runs it holds for."""
    said: dict[str, list[str]] = {}
    for record in records:
        name = f"{record.spec.model} {record.spec.mode} batch {record.spec.batch}"
        texts = [f"{record.status}: {record.reason}"] if record.reason else []
        reasons: dict[str, list[str]] = {}
        for metric, why in record.absent.items():
            reasons.setdefault(why, []).append(metric)
        texts += list(record.warnings) + [f"absent: {', '.join(names)}: {why}" for why, names in reasons.items()]
        for text in texts:
            said.setdefault(text, []).append(name)
    return [text if len(names) == len(records) else f"{', '.join(names)}: {text}" for text, names in said.items()]


def runs(records: Sequence[Record]) -> Table:
    """What is in the store, oldest first."""
    rows = []
    for record in records:
        spec, found = record.spec, record.metrics
        cost = found.get("step_time") or found.get("wall_time")
        energy = found.get("energy_per_step") or found.get("energy")
        rows.append(
            [
                record.id,
                record.started_at[:19].replace("T", " "),
                name_of(record),
                spec.mode,
                str(spec.batch),
                spec.engine,
                status_text(record),
                shown(cost),
                shown(found.get("peak_memory")),
                shown(energy),
            ]
        )
    columns = ["run", "started (UTC)", "model", "mode", "batch", "engine", "status", "time", "peak memory", "energy"]
    return table("", columns, rows, left=("run", "started (UTC)", "model", "mode", "engine", "status"))


def metrics(record: Record) -> Table:
    """Every metric of a record with its interval, count, source and note."""
    rows = [
        [
            name,
            format_value(metric.value, metric.unit),
            interval(metric),
            str(metric.n),
            metric.source,
            escape(metric.note),
        ]
        for name, metric in record.metrics.items()
    ]
    columns = ["metric", "value", "low .. high", "n", "source", "note"]
    return table("", columns, rows, left=("metric", "source", "note"))


def shares(found: Sequence[Share], level: str, most: int | None = None) -> Table:
    """Where a step's time, CPU, energy and memory go."""
    columns = ["phase", "layer", "op", "calls", "time", "share", "CPU", "energy", "allocated", "source"]
    hidden = {"phases": ("layer", "op"), "layers": ("op",), "ops": ()}[level]
    keep = [at for at, column in enumerate(columns) if column not in hidden]
    rows = [_share_row(share) for share in found[:most]]
    if most is not None and len(found) > most:
        rest = sum(share.share for share in found[most:])
        time_s = sum(share.time_s for share in found[most:])
        label = f"{len(found) - most} more"
        rows.append(["", label, label, "", format_value(time_s, "s"), f"{100 * rest:.1f} %", "", "", "", ""])
    return table(
        f"per traced step, by {level.removesuffix('s')}",
        [columns[at] for at in keep],
        [[row[at] for at in keep] for row in rows],
        left=("phase", "layer", "op", "source"),
    )


def _share_row(share: Share) -> list[str]:
    about = "~" if share.source == "estimated" else ""
    return [
        share.phase,
        escape(share.layer),
        escape(share.name),
        f"{share.calls:g}" if share.calls else "",
        format_value(share.time_s, "s"),
        f"{100 * share.share:.1f} %",
        "-" if share.cpu_s is None else about + format_value(share.cpu_s, "s"),
        "-" if share.energy_j is None else about + format_value(share.energy_j, "J"),
        "-" if share.memory_bytes is None else format_value(share.memory_bytes, "B"),
        share.source,
    ]
