"""Records in SQLite, through SQLAlchemy."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Row, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from ergometer.core.errors import StoreError, UsageError
from ergometer.core.record import Record
from ergometer.store import home as places
from ergometer.store.migrations import NEWEST, applied, migrate
from ergometer.store.query import Query, Records

_BUSY_S = 30
LOCK = "lock"
LISTED = ("throughput", "step_time", "energy_per_step", "peak_memory")
T = TypeVar("T")


def _configure(read_only: bool, raw: Any, _: Any) -> None:
    raw.isolation_level = None  # transactions are begun here, not by the driver
    raw.execute("PRAGMA foreign_keys=ON")
    if read_only:
        raw.execute("PRAGMA query_only=ON")


class Store:
    """All Records of one home directory. Safe for several processes at once."""

    def __init__(self, base: Path | None = None, *, read_only: bool = False):
        self.base = (base or places.home()).absolute()
        self.path = self.base / "ergometer.db"
        try:
            self.base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise places.cannot_write(self.base, error) from error
        self._engine = create_engine(f"sqlite:///{self.path}", connect_args={"timeout": _BUSY_S}, poolclass=NullPool)
        event.listen(self._engine, "connect", partial(_configure, read_only))
        have = self._run(applied)
        if have > NEWEST:
            raise StoreError(
                f"the store has layout {have}, newer than this version knows ({NEWEST}): upgrade ergometer, or set "
                "ERGO_HOME to another directory."
            )
        if have < NEWEST:
            self._run(migrate, write=True)

    def _run(self, work: Callable[[Connection], T], *, write: bool = False) -> T:
        """work(connection) in one transaction; one that writes takes the lock at once, so that two can't deadlock."""
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
                return work(connection)
        except SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error)
            raise StoreError(
                f"the store {self.path} cannot be used ({cause}): free the disk, restore the file, or set ERGO_HOME "
                "to another directory."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    def reading(self) -> "Store":
        """The same store, which cannot be written to."""
        return Store(self.base, read_only=True)

    def put(self, record: Record) -> None:
        """Insert the record, or replace the one with its id, in one transaction."""
        self._run(lambda connection: _insert(connection, record), write=True)

    def take(self, records: Sequence[Record]) -> tuple[int, list[str]]:
        """Insert records of another store, all or none: how many were new, and the ids of those that are here but
        differ, which stay as they are."""

        def work(connection: Connection) -> tuple[int, list[str]]:
            taken, differing = 0, []
            for record in records:
                row = connection.execute(text("SELECT record FROM runs WHERE id = :id"), {"id": record.id}).first()
                if row is None:
                    _insert(connection, record)
                    taken += 1
                elif _content(Record.from_json(json.loads(row.record))) != _content(record):
                    differing.append(record.id)
            return taken, differing

        return self._run(work, write=True)

    def records(self, limit: int | None = None) -> list[Record]:
        """Records, oldest first; the newest `limit` of them if a limit is given."""
        rows = self._run(
            lambda connection: connection.execute(
                text("SELECT record FROM runs ORDER BY started_at DESC, rowid DESC LIMIT :limit"),
                {"limit": -1 if limit is None else limit},
            ).all()
        )
        return [self._record(row) for row in reversed(rows)]

    def query(self, where: str = "", **conditions: Any) -> Records:
        """Records for which all conditions hold, oldest first: query("model=lenet,batch=1|2"), query(model="lenet")."""
        asked = Query.parse(",".join([where, *(f"{name}={value}" for name, value in conditions.items())]))
        clauses: list[str] = []
        values: dict[str, str] = {}
        for name, wanted in asked.exact().items():
            marks = {f"{name}{number}": value for number, value in enumerate(wanted)}
            clauses.append(f"CAST({name} AS TEXT) IN ({', '.join(f':{mark}' for mark in marks)})")
            values |= marks
        checked = f"WHERE {' AND '.join(clauses)}" if clauses else ""  # names are ours, values are bound
        sql = text(f"SELECT record FROM runs {checked} ORDER BY started_at, rowid")
        rows = self._run(lambda connection: connection.execute(sql, values).all())
        return Records(record for record in map(self._record, rows) if asked.holds(record))

    def listing(self) -> list[list[Any]]:
        """[id, started_at, status, model, engine, mode, batch, warned, estimated, *LISTED] of every run, newest first.

        estimated: the names of those that are. Quick for any number of runs: no record is read whole.
        """
        costs = ", ".join(f"MAX(CASE WHEN name = '{name}' THEN value END)" for name in LISTED)
        names = ", ".join(f"'{name}'" for name in LISTED)
        estimated = "group_concat(CASE WHEN source = 'estimated' THEN name END)"
        sql = (
            "SELECT id, started_at, status, model, engine, mode, batch, instr(record, '\"warnings\": []') = 0, m.* "
            f"FROM runs LEFT JOIN (SELECT run_id, {estimated}, {costs} FROM metrics "
            f"WHERE name IN ({names}) GROUP BY run_id) m ON m.run_id = id ORDER BY started_at DESC, runs.rowid DESC"
        )
        rows = self._run(lambda connection: connection.execute(text(sql)).all())
        found = [[*row[:8], *row[9:]] for row in rows]
        for row in found:
            if row[2] == "running" and not places.is_held(self.base / "runs" / row[0] / LOCK):
                row[2] = "interrupted"
        return found

    def find(self, text: str, status: str | None = None) -> Records:
        """The run of that id, or those that a query chooses; only with this status, if it is given."""
        found = self.query(text) if "=" in text else Records([self.get(text)])
        right = Records(record for record in found if status in (None, record.status))
        if not right:
            what = f"run with status {status}" if status else "run"
            others = f" ({len(found)} ended otherwise)" if found else ""
            raise UsageError(f"no {what} matches {text!r}{others}: `ergo runs` lists what there is.")
        return right

    def get(self, run: str) -> Record:
        """The record with this id or unique beginning of an id; 'last' is the newest."""
        rows = self._run(
            lambda connection: connection.execute(
                text(
                    "SELECT record FROM runs WHERE :run = 'last' OR substr(id, 1, length(:run)) = :run "
                    "ORDER BY started_at DESC, rowid DESC"
                ),
                {"run": run},
            ).all()
        )
        if not rows:
            raise UsageError(f"no run {run!r} in {self.base}: `ergo runs` lists them.")
        if len(rows) > 1 and run != "last":
            raise UsageError(f"{len(rows)} runs begin with {run!r}: give more of the id (`ergo runs` lists them).")
        return self._record(rows[0])

    def _record(self, row: Row[Any]) -> Record:
        record = Record.from_json(json.loads(row.record))
        # Wherever the home is now: it may have been moved, or named differently, since the run.
        record = replace(record, directory=str(self.base / "runs" / record.id))
        if record.status == "running" and not places.is_held(Path(record.directory) / LOCK):
            record = replace(
                record, status="interrupted", reason="the process that ran it was killed before it could finish"
            )
            try:
                self.put(record)
            except StoreError:
                pass  # a store that can only be read is still shown right
        return record


def _insert(connection: Connection, record: Record) -> None:
    spec = record.spec
    row = {
        "id": record.id,
        "spec_id": spec.id,
        "status": record.status,
        "started_at": record.started_at,
        "model": spec.model,
        "engine": spec.engine,
        "mode": spec.mode,
        "batch": spec.batch,
        "record": json.dumps(record.to_json()),
    }
    metrics = [
        {
            "run_id": record.id,
            "name": name,
            "value": metric.value,
            "unit": metric.unit,
            "n": metric.n,
            "low": metric.low,
            "high": metric.high,
            "source": metric.source,
        }
        for name, metric in record.metrics.items()
    ]
    connection.execute(text("DELETE FROM runs WHERE id = :id"), row)
    connection.execute(
        text(
            "INSERT INTO runs (id, spec_id, status, started_at, model, engine, mode, batch, record) VALUES "
            "(:id, :spec_id, :status, :started_at, :model, :engine, :mode, :batch, :record)"
        ),
        row,
    )
    if metrics:
        connection.execute(
            text(
                "INSERT INTO metrics (run_id, name, value, unit, n, low, high, source) VALUES "
                "(:run_id, :name, :value, :unit, :n, :low, :high, :source)"
            ),
            metrics,
        )


def _content(record: Record) -> Record:
    """Without the place of its files, which is another in every store."""
    return replace(record, directory="")
