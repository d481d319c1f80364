"""Compares two runs, or two sets of runs: faster, slower, or no difference that chance would not explain."""

import argparse

EPILOG = """\
A and B are runs (an id, the beginning of one, or last) or queries, such as model=lenet,batch=16,engine=torch.
The ratio is that of the medians, B over A, with a bootstrap interval; p is of the Mann-Whitney test. With 5 runs or
more on each side, runs are compared with runs, and "no difference" is wrong about once in a hundred times. With
fewer, parts of runs are compared, and a difference must exceed 3 %, because runs of the same spec differ too.
examples:
  ergo run lenet --batch 16 --engine torch,mnn --repeat 5
  ergo compare model=lenet,engine=torch model=lenet,engine=mnn
  ergo compare host=old-build host=new-build --fail-if slower:5%
exit status: 0; 1 if a limit of --fail-if is broken.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("first", metavar="A", help="a run, or a query")
    add("second", metavar="B", help="what it is compared with")
    add("--metric", metavar="NAME,...", help="which (default: step_time, energy_per_step and peak_memory)")
    add("--fail-if", action="append", metavar="WORD:N%", help="exit with 1 if so: slower:5%%, faster, more or less")
    add("--json", metavar="FILE", help="write the comparison as JSON to FILE, or to standard output for -")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.report import comparison, machine, terminal
    from ergometer.store.database import Store

    limits = [comparison.Limit(text) for text in arguments.fail_if or ()]
    machine.check_destination(arguments.json)
    with Store() as store:
        first, second = (store.find(text, status="ok") for text in (arguments.first, arguments.second))
    metrics = arguments.metric.split(",") if arguments.metric else []
    rows = comparison.rows(first, second, metrics)
    remarks = comparison.remarks(first, second)
    fields = comparison.differing(first, second)
    if arguments.json != "-":
        out = terminal.console()
        for letter, side in (("A", first), ("B", second)):
            out.print(f"{letter}: {terminal.escape(terminal.named(side))}")
        for name, (a, b) in fields.items():
            out.print(f"   {terminal.escape(f'{name}: {a} against {b}')}")
        out.print(terminal.comparison(rows))
        for remark in remarks:
            out.print(f"• {terminal.escape(remark)}")
    if arguments.json:
        sides = {"A": [record.id for record in first], "B": [record.id for record in second]}
        machine.write_json(
            sides | {"metrics": comparison.as_json(rows), "differing": fields, "remarks": remarks}, arguments.json
        )
    return 1 if any(limit.broken_by(row) for limit in limits for row in rows) else 0
