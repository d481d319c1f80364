"""Writes a run as a trace for Perfetto or chrome://tracing: ops, layers and phases, with power, temperature,
frequency, memory and every core as counters on the same clock."""

import argparse

EPILOG = """\
RUN is an id from `ergo runs`, the beginning of one, or `last`.
Open the file at https://ui.perfetto.dev or in chrome://tracing; both read it where they are, and send it nowhere.
A name that ends in .gz is compressed. Ops, and with them layers, are those of the traced steps, which come after the
timed ones (--trace-steps).
example:
  ergo trace last -o trace.json.gz
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's id, the beginning of one, or last")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write, or -")


def execute(arguments: argparse.Namespace) -> int:
    import sys

    from ergometer.report import machine
    from ergometer.report.trace import opened, trace_of
    from ergometer.store.database import Store

    machine.check_destination(arguments.output, "-o")
    with Store() as store:
        record = store.get(arguments.run)
    spans, samples, missing = opened(record)
    machine.write_pieces(trace_of(record, spans, samples), arguments.output, "-o")
    if missing:
        print(f"• without counters: {missing}", file=sys.stderr)
    if not len(spans.select(kind="op")):
        print("• without ops: this run has no traced steps", file=sys.stderr)
    return 0
