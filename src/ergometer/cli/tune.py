"""Finds the engine and settings that are best for a network on this device, by real steps, and remembers them.

Every engine that works here and is proved on the network is tried with its own defaults; those far behind are dropped,
of the others more settings are tried (memory layout, placement, large cores, threads). They take turns, or run one
after another (by energy or memory, on an accelerator), until one is clearly better or the time is over.
`ergo run --engine auto` uses what was found, and searches first where nothing is remembered."""

import argparse

EPILOG = """\
What was found holds for this host, network, batch size, mode, goal, memory limit and these versions of the engines;
when one of them changes, the search is made anew. An engine that is not yet proved on the network is proved, and the
network made ready for it, outside of the time given; those that take minutes to compile take part once `ergo verify`
has proved them.
examples:
  ergo tune mobilenet_v2 --batch 8
  ergo tune lenet --batch 1,32 --goal memory --engine torch,mnn,litert
  ergo run resnet_reduced --engine auto --memory-limit 500MB
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="as for `ergo run`")
    add("--mode", default="train", metavar="train|infer", help="what to make fast (default train)")
    add("--batch", default="1", metavar="N,...", help="samples per step (default 1)")
    add("--goal", default="time", metavar="time|energy|memory", help="what is best (default time)")
    add("--engine", metavar="NAME,...", help="search among these (default: all that work here)")
    add("--device", default="cpu", metavar="NAME", help="such as cpu, cuda or opencl (default cpu)")
    add(
        "--lower-precision",
        action="store_true",
        help="also try fewer bits (bf16, tf32, int8), which changes the results",
    )
    add("--memory-limit", metavar="SIZE", help="only what stays below this, such as 500MB")
    add("--time", default="60s", metavar="TIME", help="longest search for each network and batch size (default 60s)")
    add("--input", metavar="CxHxW", help="input shape (default: the model's own)")
    add("--classes", type=int, metavar="N", help="number of classes (default: the model's own)")
    add("--again", action="store_true", help="search again, whatever is remembered")
    add("--json", metavar="FILE", help="write what was found as JSON to FILE, or to standard output for -")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.cli._tuning import as_json, tune_all
    from ergometer.report import machine, terminal

    machine.check_destination(arguments.json)
    found = tune_all(arguments)
    if arguments.json != "-":
        out = terminal.console()
        for one in found:
            out.print(terminal.tuning(one.title, one.rows))
            out.print(f"• {terminal.escape(one.verdict)}")
    if arguments.json:
        machine.write_json([as_json(one) for one in found], arguments.json)
    return 0
