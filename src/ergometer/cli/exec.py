"""Runs any command under the sampler: what it cost the whole device, and what it used itself."""

import argparse
import sys

EPILOG = """\
  ergo exec -- python train.py --epochs 1
The exit status is the command's own. The table goes to standard error, so that the command's output
can still be piped.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--period", default="10ms", metavar="TIME", help="time between samples, 1ms or more (default 10ms)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the record as JSON to FILE, or to standard output for -")
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.core.errors import UsageError
    from ergometer.core.quantity import parse_seconds
    from ergometer.report import machine, terminal
    from ergometer.run.execute import run_command
    from ergometer.store.database import Store

    line = arguments.line[1:] if arguments.line[:1] == ["--"] else arguments.line
    if not line:
        raise UsageError("no command given: write ergo exec -- python train.py.")
    machine.check_destination(arguments.json)
    # Standard output is for the JSON then; the command's own goes where the table goes.
    stdout = sys.stderr.fileno() if arguments.json == "-" else None
    with Store() as store:
        record, exit_status = run_command(line, store, period_s=parse_seconds(arguments.period), stdout=stdout)
    if arguments.json:
        machine.write_records([record], arguments.json)
    out = terminal.console(stderr=True)
    out.print(f"[bold]{record.id}[/]  {terminal.status_text(record)}")
    out.print(terminal.metrics(record))
    for remark in terminal.remarks([record]):
        out.print(f"• {terminal.escape(remark)}")
    return exit_status
