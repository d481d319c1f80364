"""Shows one run: its conditions, every metric with its spread and origin, and where the step went."""

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ergometer.analyze.attribute import Share
    from ergometer.core.record import Record

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
    from dataclasses import asdict

    from ergometer.core.errors import UsageError
    from ergometer.report import machine, terminal
    from ergometer.store.database import Store

    if arguments.top < 1:
        raise UsageError(f"--top {arguments.top} is out of range: give 1 or more.")
    if not arguments.run:
        raise UsageError("no run given: `ergo runs` lists them.")
    machine.check_destination(arguments.json)
    with Store() as store:
        record = store.get(arguments.run)
    shares = _shares(record, arguments.level) if arguments.level else []
    if arguments.json:
        more = {"breakdown": [asdict(share) for share in shares]} if arguments.level else {}
        machine.write_records([record], arguments.json, more=more)
    if arguments.json == "-":
        return 0
    out = terminal.console()
    spec = record.spec
    how = spec.mode
    if spec.mode in ("train", "infer"):
        how += f", batch {spec.batch}, engine {spec.engine} on {spec.device}"
    out.print(f"[bold]{record.id}[/]  {terminal.name_of(record)}  {how}, {terminal.status_text(record)}")
    host = record.host
    out.print(
        f"{host.get('processor')}, {host.get('cores')} cores, kernel {host.get('kernel')}, {record.started_at[:19]} UTC"
    )
    if arguments.level:
        out.print(terminal.shares(shares, arguments.level, arguments.top))
    else:
        out.print(terminal.metrics(record))
        for remark in terminal.remarks([record]):
            out.print(f"• {terminal.escape(remark)}")
    return 0


def _shares(record: "Record", level: str) -> "list[Share]":
    from pathlib import Path

    from ergometer.analyze.attribute import attribute
    from ergometer.core.errors import ErgoError
    from ergometer.store.samples import Samples
    from ergometer.store.spans import SpanTable

    folder = Path(record.directory)
    found = attribute(SpanTable.load(folder / "spans.npz"), Samples.load(folder / "samples.npz"), level)
    if not found:
        raise ErgoError(f"run {record.id} has no traced steps: only a run that ended ok with --trace-steps has them.")
    return found
