"""Writes a page about one run or several: what it cost, where that went, and how each number was obtained."""

import argparse

EPILOG = """\
RUN is an id from `ergo runs`, the beginning of one, last, or a query such as model=lenet,batch=1|2.
The page is one file that opens in any browser, offline: pass it on as it is. Several runs are shown side by side
first, over the option that was swept. A run whose files are damaged or gone is shown with what is left of it.
examples:
  ergo report -o report.html
  ergo report model=mobilenet_v2,engine=torch -o batches.html
"""

MOST_RUNS = 200


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", default=["last"], metavar="RUN", help="runs or queries (default: last)")
    add("-o", "--output", required=True, metavar="FILE", help="the file to write, or -")


def execute(arguments: argparse.Namespace) -> int:
    import sys

    from ergometer.core.errors import UsageError
    from ergometer.report import html, machine
    from ergometer.report.details import several
    from ergometer.store.database import Store

    machine.check_destination(arguments.output, "-o")
    with Store() as store:
        found = [record for text in arguments.runs for record in store.find(text)]
    records = list({record.id: record for record in found}.values())
    if len(records) > MOST_RUNS:
        raise UsageError(f"{len(records)} runs are too many for one page ({MOST_RUNS}): narrow the query.")
    details = several(records)
    machine.write_pieces(html.report(details), arguments.output, "-o")
    for run, data in details.items():
        for text in data["missing"]:
            print(f"• {run}: {text}", file=sys.stderr)
    return 0
