"""Shows the layers of a network, in the order of execution, for one sample.

Activations are what a layer keeps for the backward pass. The network is built without memory for its
weights and nothing is computed, so that one larger than this device can be looked at."""

import argparse

EPILOG = """\
examples:
  ergo show-model mobilenet_v2
  ergo show-model vgg16 --input 3x32x32
  ergo show-model conv_only:width=256,depth=4
  ergo show-model path/to/net.py:build --input 3x224x224 --classes 10
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name from `ergo list models`, or your own: file.py:function, .onnx, .pt2")
    add("--input", metavar="CxHxW", help="input shape (default: the model's own)")
    add("--classes", type=int, metavar="N", help="number of classes (default: the model's own)")
    add("--engine", default="torch", metavar="NAME", help="the engine that looks into it (default torch)")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.core import registry
    from ergometer.core.errors import ErgoError, UnavailableError, UsageError
    from ergometer.core.quantity import parse_shape
    from ergometer.core.spec import Spec
    from ergometer.report import terminal
    from ergometer.run.resolve import check, resolve

    shape = parse_shape(arguments.input) if arguments.input else None
    check(arguments.model, shape, arguments.classes, inference_only=True)
    model = resolve(Spec(model=arguments.model, input=shape, classes=arguments.classes))
    engine = registry.load("engines", arguments.engine)()
    probe = engine.probe("cpu")
    if not probe.ok:
        raise UnavailableError(f"engine {arguments.engine} does not work here, {probe.reason}: {probe.remedy}.")
    try:
        layers = engine.layers_of(model)
    except ErgoError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        why = f"{type(error).__name__}: {first}"
        raise UsageError(f"{arguments.model} does not run on samples of this shape: {why}.") from error
    out = terminal.console()
    out.print(terminal.layers(model, layers))
    return 0
