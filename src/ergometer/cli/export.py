"""Writes records of the store as a table or as JSON, for other programs and other devices."""

import argparse

EPILOG = """\
QUERY: conditions that must all hold, such as model=lenet,batch=1|2,engine=torch or model=resnet*.
Fields are those of a run's spec, id, spec_id, status, started_at, host, and the options of engines.
csv and parquet have a column for every metric and for its unit, interval, count and origin; md has those that
are read most; json is what `ergo import` reads.
examples:
  ergo export --format csv model=lenet -o lenet.csv
  ergo export --format json -o phone.json        # then, elsewhere: ergo import phone.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("query", nargs="?", default="", metavar="QUERY", help="which records (default: all)")
    add("--format", choices=("csv", "json", "parquet", "md"), required=True, help="how to write them")
    add("-o", "--output", default="-", metavar="FILE", help="where to (default: standard output)")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.core.errors import UsageError
    from ergometer.report import machine, table
    from ergometer.store.database import Store

    machine.check_destination(arguments.output, "-o")
    if arguments.format == "parquet" and arguments.output == "-":
        raise UsageError("Parquet is not text: name a file with -o.")
    with Store() as store:
        records = store.query(arguments.query)
    if not records:
        raise UsageError("no record matches: `ergo runs` lists what there is.")
    if arguments.format == "json":
        machine.write_records(records, arguments.output, "-o")
    elif arguments.format == "parquet":
        with machine.placed(arguments.output, "-o") as path:
            table.write_parquet(records.rows(), path)
    else:
        text = table.csv_text(records.rows()) if arguments.format == "csv" else table.markdown(records.rows())
        machine.write_pieces([text], arguments.output, "-o")
    return 0
