"""Proves an engine's gradients and updates for a network against double precision in torch.

Three training steps of a small batch: loss, gradient of every parameter, update, and running statistics
of batch-norm. The strict comparison uses the network with smooth activations, because rounding flips the
mask of a ReLU and with it whole gradients; the network itself is compared more loosely. A proof is kept
for the engine's version; `ergo run` asks for it by itself."""

import argparse

EPILOG = """\
examples:
  ergo verify mobilenet_v2 --engine mnn
  ergo verify lenet,squeezenet --engine litert,tinygrad
  ergo verify path/to/net.py:build --input 3x32x32 --classes 10 --engine mnn
exit status: 0 if all are right, 1 if one is wrong, 2 for a wrong request, 3 if something is missing here.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="as in `ergo run`")
    add("--engine", required=True, metavar="NAME,...", help="from `ergo list engines`")
    add("--device", default="cpu", metavar="NAME", help="such as cpu or opencl (default cpu)")
    add("--mode", choices=("train", "infer"), help="what to prove (default: training, where the engine can)")
    add("--input", metavar="CxHxW", help="input shape of your own network")
    add("--classes", type=int, metavar="N", help="number of classes (default: the model's own)")
    add("--layers", action="store_true", help="show every layer, not only the worst")
    add("--again", action="store_true", help="prove anew, whatever is known")
    add("--json", metavar="FILE", help="write the proofs as JSON to FILE, or to standard output for -")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.cli._sweep import specs_to_verify
    from ergometer.core.errors import ErgoError
    from ergometer.report import machine, terminal
    from ergometer.run.prove import proof_of

    machine.check_destination(arguments.json)
    proofs, refused = [], []
    for spec in specs_to_verify(arguments):
        try:
            proofs.append(proof_of(spec, anew=arguments.again))
        except ErgoError as error:
            refused.append((spec, error))
    if arguments.json != "-":
        out = terminal.console()
        if proofs:
            out.print(terminal.proofs(proofs))
        for proof in proofs:
            if arguments.layers or proof.reason:
                out.print(terminal.proof_layers(proof))
        for remark in [proof.reason for proof in proofs if proof.reason]:
            out.print(f"• {terminal.escape(remark)}")
        for spec, why in refused:
            out.print(f"• {terminal.escape(f'{spec.model} on {spec.engine}: {why}')}")
    if arguments.json:
        named = [{"engine": spec.engine_text, "model": spec.model, "refused": str(why)} for spec, why in refused]
        machine.write_json([proof.to_json() for proof in proofs] + named, arguments.json)
    if refused and not proofs:
        return refused[0][1].exit_code
    return 1 if refused or any(proof.reason for proof in proofs) else 0
