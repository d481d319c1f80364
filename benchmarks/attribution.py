"""Joining an hour of samples to a million spans: how the time grows, and against the same join in DuckDB.

python benchmarks/attribution.py
"""

import time

import duckdb
import numpy as np

from ergometer.analyze.attribute import attribute
from ergometer.analyze.join import totals, windows
from ergometer.core.sensor import Channel
from ergometer.core.span import Span
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

HOUR = 360_000
CHANNELS = 20
SPANS = 1_000_000


def make(samples: int, spans: int) -> tuple[Timeline, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    t_ns = np.cumsum(random.normal(10e6, 1e5, samples).astype(np.int64))
    values = random.uniform(1, 9, (CHANNELS, samples)).T
    starts = np.sort(random.integers(t_ns[0], t_ns[-1] - 4_000_000, spans))
    ends = starts + random.integers(1_000, 4_000_000, spans)
    channels = tuple(Channel(name=f"c{number}", unit="W") for number in range(CHANNELS))
    return Timeline(t_ns, channels, values), starts, ends


def ours(timeline: Timeline, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return windows(totals(timeline), starts, ends)


class Duck:
    """The same trapezoids and the same interpolation in SQL: running totals, then two ASOF joins."""

    def __init__(self, timeline: Timeline, starts: np.ndarray, ends: np.ndarray):
        self.connection = duckdb.connect()
        sample_columns = {"t": timeline.t_ns} | {
            f"c{n}": np.ascontiguousarray(timeline.values[:, n]) for n in range(CHANNELS)
        }
        span_columns = {"id": np.arange(len(starts)), "b": starts, "e": ends}
        for name, columns in (("samples", sample_columns), ("spans", span_columns)):
            self.connection.register("incoming", columns)
            self.connection.execute(f"create table {name} as select * from incoming")
            self.connection.unregister("incoming")

    def join(self) -> None:
        each = range(CHANNELS)
        names = ", ".join(f"c{n}" for n in each)
        running = ", ".join(f"sum(coalesce((c{n} + p{n}) / 2 * dt, 0)) over (order by t) f{n}" for n in each)

        def total(table: str, at: str, n: int) -> str:
            past = f"(s.{at} - {table}.t)"
            share = f"({past} / {table}.gap)"
            return f"({table}.f{n} + {share} * ({table}.n{n} - {table}.f{n}))"

        following = ", ".join(f"lead(f{n}) over (order by t) n{n}" for n in each)
        result = ", ".join(f"{total('e', 'e', n)} - {total('b', 'b', n)} w{n}" for n in each)
        lags = ", ".join(f"lag(c{n}) over (order by t) p{n}" for n in each)
        self.connection.execute(
            f"create or replace table total as select *, {following}, lead(t) over (order by t) - t gap from ("
            f"select t, {running} from ("
            f"select t, {names}, (t - lag(t) over (order by t)) / 1e9 dt, {lags} from samples))"
        )
        self.connection.execute(
            f"create or replace table joined as select s.id, {result} from spans s "
            "asof join total b on s.b >= b.t asof join total e on s.e >= e.t"
        )

    def result(self) -> np.ndarray:
        rows = self.connection.execute("select * exclude id from joined order by id").fetchnumpy()
        return np.column_stack([rows[f"w{n}"] for n in range(CHANNELS)])


def best(call, repeats: int) -> float:  # type: ignore[no-untyped-def]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def whole_table(spans: int) -> float:
    """Seconds to attribute an hour to that many op spans, by layer and op."""
    timeline, starts, ends = make(HOUR * spans // SPANS, spans)
    channels = (
        Channel(name="power.x", unit="W", scope="system"),
        Channel(name="process.cpu", unit="s", kind="counter"),
    )
    values = np.column_stack([timeline.values[:, 0], timeline.t_ns * 1e-9])
    samples = Samples((Timeline(timeline.t_ns, channels, values),))
    random, number = np.random.default_rng(1), np.zeros(spans, dtype=np.int64)
    table = SpanTable(
        start_ns=starts,
        end_ns=ends,
        step=number,
        memory_bytes=number,
        kind=number,
        name=random.integers(4, 30, spans),
        phase=random.integers(1, 4, spans),
        layer=random.integers(30, 130, spans),
        words=("op", "forward", "backward", "optimizer", *(f"w{n}" for n in range(126))),
    )
    step = SpanTable.of([Span(int(starts[0]), int(ends[-1]), "step", "traced", 0)])
    return best(lambda: attribute(join(table, step), samples, "ops"), 3)


def join(one: SpanTable, other: SpanTable) -> SpanTable:
    """Both tables as one."""
    words = (*one.words, *other.words)
    columns = {}
    for field in ("start_ns", "end_ns", "step", "memory_bytes", "kind", "name", "phase", "layer"):
        shift = len(one.words) if field in ("kind", "name", "phase", "layer") else 0
        columns[field] = np.concatenate([getattr(one, field), getattr(other, field) + shift])
    return SpanTable(**columns, words=words)


def main() -> None:
    small, large = make(HOUR // 4, SPANS // 4), make(HOUR, SPANS)
    quarter, whole = best(lambda: ours(*small), 5), best(lambda: ours(*large), 5)
    print(f"attribution.growth: 4x samples and spans take {whole / quarter:.1f}x the time (linear: 4x)")
    tables = [whole_table(SPANS // 4), whole_table(SPANS)]
    print(
        f"attribution.table: {SPANS} spans to a table by layer and op in {tables[1]:.2f} s, "
        f"{tables[1] / tables[0]:.1f}x the time of a quarter (linear: 4x)"
    )
    duck = Duck(*large)
    peer = best(duck.join, 3)
    difference = np.abs(duck.result() - ours(*large)).max()
    print(f"attribution.agreement: largest difference from DuckDB {difference:.1e} J")
    print(
        f"attribution.peer: {SPANS} spans x {CHANNELS} channels x {HOUR} samples: ours {whole:.2f} s, "
        f"DuckDB {peer:.2f} s, {peer / whole:.1f}x (at least 5x)"
    )


if __name__ == "__main__":
    main()
