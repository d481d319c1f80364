"""The command line: one file per command, each with configure(parser) and execute(arguments)."""

import argparse
import os
import sys
from importlib import import_module

COMMANDS = {
    "doctor": "what this device can measure, what it cannot, and what would fix it",
    "list": "models, engines, sensors or data sets",
    "show-model": "the layers of a network: shapes, parameters, multiply-accumulates, activations",
    "run": "measure a network's training or inference; a list of values is a sweep",
    "tune": "find the engine and settings that are best for a network here",
    "verify": "prove an engine's gradients and updates against double precision",
    "bundle": "make a network ready for a device that has no torch",
    "runs": "what is in the store",
    "show": "one run in full; where its time went by phase, layer or op",
    "compare": "two runs or sets of runs: faster, slower or no difference",
    "report": "a page about runs, to look at and to pass on",
    "ui": "a local page over the whole store: filter, plot, compare, watch",
    "trace": "one run for Perfetto: ops, layers and phases with power, temperature and memory beside them",
    "export": "records as CSV, JSON, Parquet or Markdown",
    "import": "take records of another device into the store",
    "exec": "run any command under the same sampler",
}

_DESCRIPTION = """\
Ergometer measures what training a neural network costs on this device: time, energy,
memory and heat, joined to the operation, layer and phase that caused them."""

_EPILOG = """\
start here:
  ergo doctor                        what this device can measure, and what would let it measure more
  ergo run mobilenet_v2 --batch 1,2  measure; a list is a sweep
  ergo show last --layers            where the last run's time went
"""

_INTERRUPTED = 130


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps line breaks; told the width, because finding it out imports more than all of argparse."""

    def __init__(self, prog: str):
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 100
        super().__init__(prog, width=min(columns, 110) - 2)


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser of the chosen command; the others are only named, so that `ergo --help` stays quick."""
    root = argparse.ArgumentParser(prog="ergo", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=_Formatter)
    root.add_argument("--version", action="store_true", help="show the version and end")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, formatter_class=_Formatter)
        if name == chosen:
            module = import_module(f"ergometer.cli.{name.replace('-', '_')}")
            sub.description, sub.epilog = module.__doc__, module.EPILOG
            module.configure(sub)
            sub.set_defaults(execute=module.execute)
    return root


def main() -> None:
    """Run the command; end with its exit status."""
    try:
        status = _main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("ergo: interrupted; what had finished is in the store", file=sys.stderr)
        status = _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (as in `ergo runs | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        print(f"ergo: the output cannot be written: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(4)
    if status == _INTERRUPTED:
        # Ctrl-C inside exec(text), which every dataclass uses as it is defined, makes CPython end by the
        # signal instead of with our status, however well it was caught.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _main() -> int:
    root = parser(next((word for word in sys.argv[1:] if not word.startswith("-")), None))
    arguments = root.parse_args()
    if arguments.version:
        from ergometer import __version__

        print(f"ergometer {__version__}")
        return 0
    if arguments.command is None:
        root.print_help()
        return 2
    from ergometer.core.errors import ErgoError

    try:
        return int(arguments.execute(arguments))
    except ErgoError as error:
        print(f"ergo: {error}", file=sys.stderr)
        return error.exit_code
