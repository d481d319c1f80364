"""Lists the runs in the store, oldest first."""

import argparse

EPILOG = """\
The store is ERGO_HOME, or ergometer under the user's data directory. A run whose process was killed is
shown as interrupted.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=int, metavar="N", help="only the newest N")
    parser.add_argument("--json", metavar="FILE", help="write the records as JSON to FILE, or to standard output for -")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.core.errors import UsageError
    from ergometer.report import machine, terminal
    from ergometer.store.database import Store

    if arguments.last is not None and arguments.last < 1:
        raise UsageError(f"--last {arguments.last} is out of range: give 1 or more.")
    machine.check_destination(arguments.json)
    with Store() as store:
        records = store.records(arguments.last)
    if arguments.json:
        machine.write_records(records, arguments.json)
    if arguments.json != "-":
        if not records:
            print("No runs yet: start with `ergo run lenet`.")
        else:
            terminal.console().print(terminal.runs(records))
    return 0
