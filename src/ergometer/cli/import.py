"""Takes records of another device, or of another store, into this one. What is here already is not taken again."""

import argparse

EPILOG = """\
FILE is JSON that `ergo export --format json`, or a --json option, wrote. All of its records are checked before the
first is taken. Samples and spans stay where they were measured: `ergo show` has the metrics of such a run, but not
its layers.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of records")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.report import machine
    from ergometer.store.database import Store

    records = [record for file in arguments.files for record in machine.read_records(file)]
    with Store() as store:
        taken, differing = store.take(records)
    known = len(records) - taken - len(differing)
    print(f"{taken} taken, {known} known already, into {store.base}")
    for run in differing:
        print(f"• {run} is here with other contents: the one that is here was kept")
    return 1 if differing else 0
