"""Makes a network ready for an engine, in one file that a device without torch can run.

Made where torch is; `ergo run FILE` then needs Ergometer and that engine alone. The file holds the network
for the batch sizes given, its first weights, and no code. The engine is proved for the network first."""

import argparse

EPILOG = """\
examples:
  ergo bundle mobilenet_v2 --engine litert -o model.ergo
  ergo bundle lenet --engine mnn --batch 1,16 -o lenet.ergo
then on the device:
  ergo run model.ergo --batch 4
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs=1, metavar="MODEL", help="as in `ergo run`")
    add("--engine", required=True, metavar="NAME", help="one that runs without torch, from `ergo list engines`")
    add("-o", "--output", required=True, metavar="FILE.ergo", help="the file to write")
    add("--batch", default="1,2,4,8", metavar="N,...", help="batch sizes that it can be run with (default 1,2,4,8)")
    add("--mode", default="train,infer", metavar="train,infer", help="what it can be run for (default both)")
    add("--input", metavar="CxHxW", help="input shape (default: the model's own)")
    add("--classes", type=int, metavar="N", help="number of classes (default: the model's own)")
    add("--seed", type=int, default=0, metavar="N", help="for the weights (default 0)")
    parser.set_defaults(device="cpu")


def execute(arguments: argparse.Namespace) -> int:
    import sys
    from pathlib import Path

    from ergometer.cli._sweep import specs_to_bundle
    from ergometer.core.quantity import format_value
    from ergometer.run.bundling import write_bundle

    path = Path(arguments.output)
    specs = specs_to_bundle(arguments)
    write_bundle(specs, path, lambda text: print(f"ergo: {text}", file=sys.stderr, flush=True))
    print(f"{path}: {format_value(path.stat().st_size, 'B')}, {specs[0].model} for {specs[0].engine}")
    print(f"on the device: ergo run {path.name} --batch {specs[0].batch}")
    return 0
