"""Records as tables in a terminal, or as plain text where there is none."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ergometer.analyze.attribute import Share
from ergometer.analyze.proof import Proof
from ergometer.core.engine import Layer
from ergometer.core.model import Model
from ergometer.core.quantity import format_shape, format_value
from ergometer.core.record import Metric, Record
from ergometer.report.comparison import Row

__all__ = [
    "Fitted",
    "comparison",
    "console",
    "escape",
    "layers",
    "metrics",
    "name_of",
    "named",
    "remarks",
    "results",
    "runs",
    "shares",
    "status_text",
    "tuning",
]

_STYLES = {"ok": "green", "running": "cyan", "interrupted": "yellow", "out_of_memory": "yellow"}
_PLAIN_WIDTH = 200
_NAME = 48
_GAP = 3


def console(*, stderr: bool = False) -> Console:
    """Fits the terminal; without one, wide enough that nothing is cut."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)


class Fitted:
    """A table that leaves out its least needed columns where the terminal is too narrow for all of them.

    Columns named in left are on the left, the others (numbers) on the right; a column of nothing but '-' is left
    out wherever it is named in drop, least needed first.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        left: Sequence[str],
        drop: Sequence[str] = (),
    ):
        self.title, self.columns, self.rows, self.left, self.drop = title, columns, list(rows), left, drop

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            max(cell_len(text) for text in (column, *(Text.from_markup(row[at]).plain for row in self.rows)))
            for at, column in enumerate(self.columns)
        ]
        keep = [
            at
            for at, column in enumerate(self.columns)
            if column not in self.drop or any(row[at] not in ("", "-") for row in self.rows)
        ]
        for column in self.drop:
            at = self.columns.index(column)
            if sum(widths[kept] + _GAP for kept in keep) > options.max_width and at in keep:
                keep.remove(at)
        made = Table(
            title=self.title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for at in keep:
            made.add_column(
                self.columns[at], justify="left" if self.columns[at] in self.left else "right", overflow="fold"
            )
        for row in self.rows:
            made.add_row(*(row[at] for at in keep))
        yield made


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


def results(records: Sequence[Record]) -> Fitted:
    """One row per run: what a step costs."""
    optional = {
        "engine": [record.spec.engine_text for record in records],
        "device": [record.spec.device for record in records],
        "threads": [str(record.spec.threads or "all") for record in records],
        "cores": [",".join(map(str, record.spec.cores or ())) or "all" for record in records],
    }
    varying = [name for name, values in optional.items() if len(set(values)) > 1]
    # What only some runs have stands in the table only if one of these has it.
    seldom = {"data": "data_time", "environment": "environment_time"}
    present = {name: metric for name, metric in seldom.items() if any(metric in record.metrics for record in records)}
    costs = {
        "throughput": "throughput",
        **present,
        "forward": "forward_time",
        "backward": "backward_time",
        "optimizer": "optimizer_time",
        "peak memory": "peak_memory",
        "CPU": "cpu_utilisation",
        "energy/step": "energy_per_step",
    }
    columns = ["model", "mode", "batch", *varying, "status", "step time", "n", *costs, "hottest"]
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
                *(shown(found.get(metric)) for metric in costs.values()),
                shown(_hottest(record)),
            ]
        )
    drop = ("n", "optimizer", "forward", "backward", "hottest", "CPU", "energy/step", "mode", "peak memory")
    return Fitted("", columns, rows, left=("model", "mode", "status"), drop=drop)


def remarks(records: Sequence[Record], *, brief: bool = False) -> list[str]:
    """Reasons, warnings and what is absent, each said once with the runs it holds for.

    brief: of what is absent, only energy and what an engine does not tell with its reason; the rest by name.
    """
    said: dict[str, list[str]] = {}
    several = len({record.spec.engine_text for record in records}) > 1
    for record in records:
        name = f"{record.spec.model} {record.spec.mode} batch {record.spec.batch}"
        name += f" {record.spec.engine_text}" if several else ""
        texts = [f"{record.status}: {record.reason}"] if record.reason else []
        reasons: dict[str, list[str]] = {}
        for metric, why in record.absent.items():
            said_here = metric.startswith("energy") or why.startswith("the engine")
            shown_why = "`ergo doctor` says why" if brief and not said_here else why
            reasons.setdefault(shown_why, []).append(metric)
        texts += list(record.warnings) + [f"absent: {', '.join(names)}: {why}" for why, names in reasons.items()]
        for text in texts:
            said.setdefault(text, []).append(name)
    return [text if len(names) == len(records) else f"{', '.join(names)}: {text}" for text, names in said.items()]


def runs(records: Sequence[Record]) -> Fitted:
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
                spec.engine_text,
                status_text(record),
                shown(cost),
                shown(found.get("peak_memory")),
                shown(energy),
            ]
        )
    columns = ["run", "started (UTC)", "model", "mode", "batch", "engine", "status", "time", "peak memory", "energy"]
    drop = ("engine", "peak memory", "energy", "started (UTC)", "mode")
    return Fitted("", columns, rows, left=("run", "started (UTC)", "model", "mode", "engine", "status"), drop=drop)


def named(records: Sequence[Record]) -> str:
    """What a set of records is, in a line."""
    texts = dict.fromkeys(
        f"{name_of(record)} {record.spec.mode} batch {record.spec.batch}, {record.spec.engine_text}"
        for record in records
    )
    count = f"{len(records)} runs" if len(records) > 1 else f"run {records[0].id}"
    more = f" and {len(texts) - 2} more" if len(texts) > 2 else ""
    return f"{'; '.join(list(texts)[:2])}{more} ({count})"


def comparison(rows: Sequence[Row]) -> Fitted:
    """Metric by metric: both medians, their ratio with its interval, and the verdict."""
    shown_rows = []
    for row in rows:
        found, colour = row.found, {"slower": "red", "more": "red", "faster": "green", "less": "green"}.get(row.words)
        verdict = f"[{colour}]{row.words}[/]" if colour else row.words
        ratio = f"{row.second / row.first:.3f}" if row.first else ""
        between = f"{found.low:.3f} .. {found.high:.3f}" if found else ""
        p, n = (f"{found.p:.1g}", f"{found.n[0]} and {found.n[1]} {found.by}") if found else ("", "")
        about = "~" if row.estimated else ""
        medians = [about + format_value(value, row.unit) for value in (row.first, row.second)]
        shown_rows.append([row.metric, *medians, ratio, between, p, n, verdict])
    columns = ["metric", "A", "B", "B / A", "95 % interval", "p", "n", "B is"]
    return Fitted("", columns, shown_rows, left=("metric", "n", "B is"), drop=("n", "p"))


def tuning(title: str, rows: Sequence[Sequence[str]]) -> Fitted:
    """Every setting that was tried: in how many turns or runs, what it cost, and why it is out."""
    columns = ["setting", "tries", "cost", "result"]
    return Fitted(escape(title), columns, [[escape(cell) for cell in row] for row in rows], left=("setting", "result"))


def metrics(record: Record) -> Fitted:
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
    return Fitted("", columns, rows, left=("metric", "source", "note"), drop=("note", "n"))


def layers(model: Model, found: Sequence[Layer]) -> Fitted:
    """Every layer of a network for one sample, with the sums below."""
    rows = [
        [
            escape(layer.name),
            layer.kind,
            format_shape(layer.output),
            f"{layer.parameters:,}" if layer.parameters else "",
            format_value(layer.macs, "params") if layer.macs else "",
            format_value(layer.activations, "B") if layer.activations else "",
        ]
        for layer in found
    ]
    sums = [sum(getattr(layer, name) for layer in found) for name in ("parameters", "macs", "activations")]
    whole = [f"{sums[0]:,}", format_value(sums[1], "params"), format_value(sums[2], "B")]
    rows.append(["whole", "", "", *whole])
    title = f"{model.name}: {model.title}, {model.task}, input {format_shape(model.input)}"
    title += f", {model.classes} classes" if model.classes else ""
    columns = ["layer", "kind", "output", "parameters", "MACs", "activations"]
    return Fitted(escape(title), columns, rows, left=("layer", "kind"), drop=("kind",))


def proofs(found: Sequence[Proof]) -> Fitted:
    """The worst relative error of each kind, against double precision."""
    columns = ["model", "engine", "compared", "result", "gradient", "all gradients", "update", "statistics", "verdict"]
    rows = []
    for proof in found:
        for variant in proof.variants:
            worst = [proof.worst(variant, kind) for kind in ("result", "gradient", "update", "buffer")]
            errors = [f"{item.error:.0e}" if item else "" for item in worst]
            errors.insert(2, f"{proof.overall(variant):.0e}" if errors[1] else "")
            wrong = any(name == variant for name, _ in proof.wrong)
            bound = max(proof.variants[variant]["bounds"].values())
            verdict = "[red]wrong[/]" if wrong else f"right (within {bound:.0e})"
            if not wrong and "single" in proof.variants[variant]:
                verdict = "right (as torch in single precision)"
            if proof.variants[variant].get("same_top", 1.0) < 1.0:
                verdict += f", same top class in {100 * proof.variants[variant]['same_top']:.0f} %"
            version = proof.versions.get(proof.engine.partition(":")[0], "")
            rows.append([escape(proof.model), escape(f"{proof.engine} {version}".strip()), variant, *errors, verdict])
    title = "worst relative error in three steps against double precision"
    return Fitted(title, columns, rows, left=("model", "engine", "compared", "verdict"), drop=("update", "result"))


def proof_layers(proof: Proof) -> Fitted:
    """The worst error of every layer's parameters and statistics, in the comparison that failed or is strictest."""
    variant = proof.wrong[0][0] if proof.wrong else next(iter(proof.variants))
    layers: dict[str, dict[str, float]] = {}
    for item in proof.listed(variant):
        if item.name == "network":
            continue
        layer = item.name.rpartition(".")[0] or item.name.strip("/")
        kinds = layers.setdefault(layer, {})
        kinds[item.kind] = max(kinds.get(item.kind, 0.0), item.error)
    columns = ["layer", "result", "gradient", "update", "buffer", "missing", "unusable"]
    shown = [column for column in columns if column == "layer" or any(column in kinds for kinds in layers.values())]
    rows = [
        [escape(layer), *(f"{kinds[kind]:.0e}" if kind in kinds else "" for kind in shown[1:])]
        for layer, kinds in layers.items()
    ]
    title = f"{proof.model} on {proof.engine}, {variant}: worst of three steps"
    return Fitted(escape(title), shown, rows, left=("layer",))


def shares(found: Sequence[Share], level: str, most: int | None = None) -> Fitted:
    """Where a step's time, CPU, GPU, energy and memory go."""
    columns = ["phase", "layer", "op", "calls", "time", "share"]
    columns += ["CPU", "GPU", "energy", "allocated", "GPU memory", "source"]
    hidden = {"phases": ("layer", "op"), "layers": ("op",), "ops": ()}[level]
    keep = [at for at, column in enumerate(columns) if column not in hidden]
    rows = [_share_row(share) for share in found[:most]]
    if most is not None and len(found) > most:
        rest = sum(share.share for share in found[most:])
        time_s = sum(share.time_s for share in found[most:])
        label = f"{len(found) - most} more"
        rows.append(["", label, label, "", format_value(time_s, "s"), f"{100 * rest:.1f} %", *[""] * 6])
    return Fitted(
        f"per traced step, by {level.removesuffix('s')}",
        [columns[at] for at in keep],
        [[row[at] for at in keep] for row in rows],
        left=("phase", "layer", "op", "source"),
        drop=("source", "GPU memory", "energy", "allocated", "calls", "GPU", "CPU"),
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
        "-" if share.gpu_s is None else about + format_value(share.gpu_s, "s"),
        "-" if share.energy_j is None else about + format_value(share.energy_j, "J"),
        "-" if share.memory_bytes is None else format_value(share.memory_bytes, "B"),
        "-" if share.gpu_memory_bytes is None else about + format_value(share.gpu_memory_bytes, "B"),
        share.source,
    ]
