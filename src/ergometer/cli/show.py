"""Shows one run: its conditions, every metric with its spread and origin, and where the step went."""

import argparse

EPILOG = """\
RUN is an id from `ergo runs`, the beginning of one, or `last`.
A ~ marks what is estimated: single calls shorter than the sensor resolves get their share by time.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's id, the beginning of one, or last")
    level = parser.add_mutually_exclusive_group()
    level.add_argument(
        "--phases", dest="level", action="store_const", const="phases", help="forward, backward, optimizer"
    )
    level.add_argument("--layers", dest="level", action="store_const", const="layers", help="by module of the network")
    level.add_argument("--ops", dest="level", action="store_const", const="ops", help="by operation")
    parser.add_argument("--top", type=int, default=30, metavar="N", help="rows of a breakdown (default 30)")
    parser.add_argument("--json", metavar="FILE", help="write the record as JSON to FILE, or to standard output for -")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.report import machine, terminal
    from ergometer.store.database import Store

    with Store() as store:
        record = store.get(arguments.run)
    if arguments.json:
        machine.write_records([record], arguments.json)
    if arguments.json == "-":
        return 0
    out = terminal.console()
    spec = record.spec
    out.print(
        f"[bold]{record.id}[/]  {terminal.name_of(record)}  {spec.mode}, batch {spec.batch}, engine {spec.engine} "
        f"on {spec.device}, {terminal.status_text(record)}"
    )
    host = record.host
    out.print(
        f"{host.get('processor')}, {host.get('cores')} cores, kernel {host.get('kernel')}, {record.started_at[:19]} UTC"
    )
    if arguments.level:
        out.print(_breakdown(record, arguments.level, arguments.top))
    else:
        out.print(terminal.metrics(record))
        for remark in terminal.remarks([record]):
            out.print(f"• {terminal.escape(remark)}")
    return 0


def _breakdown(record, level: str, most: int):  # type: ignore[no-untyped-def]
    from pathlib import Path

    from ergometer.analyze.attribute import attribute
    from ergometer.core.errors import ErgoError
    from ergometer.report import terminal
    from ergometer.store.samples import Samples
    from ergometer.store.spans import SpanTable

    folder = Path(record.directory)
    found = attribute(SpanTable.load(folder / "spans.npz"), Samples.load(folder / "samples.npz"), level)
    if not found:
        raise ErgoError(
            f"run {record.id} has no traced steps ({record.status}): only a finished run with --trace-steps has."
        )
    return terminal.shares(found, level, most)
