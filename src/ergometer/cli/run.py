"""Measures the training or inference step of one or more networks.

Each run is a fresh process. It checks that the network learns, warms up until times are steady, times
steps until the 95 % interval of the median is within 2 % (or the time given ends), then traces some
steps to see which operation cost what. Lists (--batch 1,2,4) make a sweep: a row per run."""

import argparse

EPILOG = """\
examples:
  ergo run mobilenet_v2 --batch 1,2,4,8
  ergo run lenet --mode infer --batch 16 --threads 1,2 --json out.json
  ergo run path/to/net.py:build --input 3x224x224 --classes 10
  ergo run conv_only:width=256,depth=4 densenet40_12 --batch 8
  ergo run lenet --data mnist --batch 32
  ergo run mobilenet_v2 --engine torch,mnn,litert,tinygrad --batch 1,2,4
  ergo run squeezenet --batch 1,64 --memory-limit 1GB
  ergo run resnet_reduced --batch 8 --engine auto
  ergo run conv_only:depth=4,width=128 --engine tinygrad --device opencl --accelerate none,forward,both
exit status: 0 if every run ended ok, 1 if one did not, 2 for a wrong request, 3 if something is missing here,
4 if the store cannot be used, 130 if interrupted.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "models",
        nargs="+",
        metavar="MODEL",
        help="from `ergo list models`, with options as in conv_only:width=256,depth=4; "
        "or your own: file.py:function, file.onnx, file.pt2; or a bundle: file.ergo",
    )
    add("--mode", default="train", metavar="train|infer", help="what to measure (default train)")
    add("--batch", default="1", metavar="N,...", help="samples per step (default 1)")
    add(
        "--engine",
        metavar="NAME,...",
        help="from `ergo list engines`, with options as in torch:precision=bf16; auto: the best here (default torch)",
    )
    add("--goal", default="time", metavar="time|energy|memory", help="what --engine auto makes small (default time)")
    add("--lower-precision", action="store_true", help="let --engine auto also try fewer bits (bf16, tf32, int8)")
    add("--device", default="cpu", metavar="NAME,...", help="such as cpu, cuda or opencl (default cpu)")
    add(
        "--accelerate",
        metavar="none|forward|both",
        help="which products of a step the device gets, where the engine (tinygrad) can place them; also "
        "forward+input, forward+filter; a list is a sweep (default both)",
    )
    add("--threads", metavar="N,...", help="threads of the engine (default: its own choice, or one per pinned core)")
    add("--cores", action="append", metavar="LIST", help="pin to cores: 0,2 or 0-3, big or little; repeat for a sweep")
    add("--input", metavar="CxHxW", help="input shape (default: the model's own)")
    add("--classes", type=int, metavar="N", help="number of classes (default: the model's own)")
    add("--data", metavar="NAME", help="from `ergo list data` (default: the model's own, which is synthetic for most)")
    add("--data-dir", metavar="DIR", help="read the data set from this folder instead of downloading it")
    add("--time", metavar="TIME", help="longest time of the timed steps (default 15s); not with --steps")
    add("--steps", type=int, metavar="N", help="time exactly N steps instead of until the interval is narrow")
    add("--warmup", type=int, metavar="N", help="exactly N warm-up steps instead of until times are steady")
    add("--trace-steps", type=int, default=5, metavar="N", help="steps under the op tracer (default 5; 0: none)")
    add("--repeat", type=int, default=1, metavar="N", help="run everything N times, in turn (default 1)")
    add("--seed", type=int, default=0, metavar="N", help="for weights and data (default 0)")
    add("--memory-limit", metavar="SIZE", help="kill the worker above this, such as 1GB")
    add("--period", default="10ms", metavar="TIME", help="time between samples, 1ms or more (default 10ms)")
    add("--sensors", metavar="NAME,...", help="only these, from `ergo list sensors` (default: all that work)")
    add(
        "--hang-timeout", default="300s", metavar="TIME", help="kill a worker that is silent for so long (default 300s)"
    )
    add("--json", metavar="FILE", help="write the records as JSON to FILE, or to standard output for -")


def execute(arguments: argparse.Namespace) -> int:
    from functools import partial

    from ergometer.cli._sweep import run_all, specs_of
    from ergometer.cli._tuning import checked_goal, chosen
    from ergometer.core.errors import UsageError
    from ergometer.core.quantity import parse_seconds
    from ergometer.report import machine, terminal

    machine.check_destination(arguments.json)
    if not 1 <= arguments.repeat <= 1000:
        raise UsageError(f"--repeat {arguments.repeat} is out of range: give 1 to 1000.")
    specs = specs_of(arguments) * arguments.repeat
    hang_s = parse_seconds(arguments.hang_timeout)
    if hang_s < 1:
        raise UsageError(f"--hang-timeout {arguments.hang_timeout} is out of range: give 1s or more.")
    choose = partial(chosen, checked_goal(arguments.goal), arguments.lower_precision)
    records = run_all(specs, hang_s=hang_s, choose=choose)
    if arguments.json != "-":
        out = terminal.console()
        out.print(terminal.results(records))
        for remark in terminal.remarks(records, brief=True):
            out.print(f"• {terminal.escape(remark)}")
        traced = [record for record in records if record.status == "ok" and record.spec.trace_steps]
        if traced:
            out.print(f"[dim]ergo show {traced[-1].id} --layers  shows where the time went[/]")
    if arguments.json:
        machine.write_records(records, arguments.json)
    if len(records) < len(specs) or any(record.status == "interrupted" for record in records):
        return 130
    return 0 if all(record.status == "ok" for record in records) else 1
