"""Ordered changes of the database's layout, each applied once and recorded in it."""

from collections.abc import Callable

from sqlalchemy import Connection, inspect, text


def _first(connection: Connection) -> None:
    connection.execute(
        text(
            "CREATE TABLE runs (id TEXT PRIMARY KEY, spec_id TEXT NOT NULL, status TEXT NOT NULL, "
            "started_at TEXT NOT NULL, model TEXT NOT NULL, engine TEXT NOT NULL, mode TEXT NOT NULL, "
            "batch INTEGER NOT NULL, record TEXT NOT NULL)"
        )
    )
    connection.execute(text("CREATE INDEX runs_by_time ON runs (started_at)"))
    connection.execute(text("CREATE INDEX runs_by_spec ON runs (spec_id)"))
    connection.execute(
        text(
            "CREATE TABLE metrics (run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, "
            "name TEXT NOT NULL, value REAL NOT NULL, unit TEXT NOT NULL, n INTEGER NOT NULL, "
            "low REAL, high REAL, source TEXT NOT NULL, PRIMARY KEY (run_id, name))"
        )
    )


# Append only: a number once released never changes its meaning.
MIGRATIONS: tuple[tuple[int, str, Callable[[Connection], None]], ...] = ((1, "runs and metrics", _first),)
NEWEST = MIGRATIONS[-1][0]


def applied(connection: Connection) -> int:
    """The newest migration that this database has; 0 for an empty one."""
    if not inspect(connection).has_table("migrations"):
        return 0
    return int(connection.execute(text("SELECT COALESCE(MAX(number), 0) FROM migrations")).scalar_one())


def migrate(connection: Connection) -> None:
    """Apply what is missing; the caller holds a transaction."""
    connection.execute(text("CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL)"))
    have = applied(connection)
    for number, name, change in MIGRATIONS:
        if number > have:
            change(connection)
            connection.execute(
                text("INSERT INTO migrations (number, name) VALUES (:number, :name)"), {"number": number, "name": name}
            )
