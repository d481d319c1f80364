"""Lists the models, engines, sensors or data sets that there are."""

import argparse

EPILOG = "Each is a plug-in: a file of that name, or an entry point of an installed package.\n"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("models", "engines", "sensors", "data"), help="what to list")


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.core import registry
    from ergometer.core.quantity import format_shape, format_value
    from ergometer.report import terminal

    found = registry.load_all(arguments.kind)
    if arguments.kind == "models":
        columns = ["model", "network", "task", "input", "classes", "parameters", "MACs", "what its papers say"]
        rows = [
            [
                name,
                model.title,
                model.task,
                format_shape(model.input),
                str(model.classes or ""),
                f"{model.parameters:,}" if model.parameters else "",
                format_value(model.macs, "params") if model.macs else "",
                "\n".join(f"{paper}: {text}" for paper, text in model.papers.items()),
            ]
            for name, model in found.items()
        ]
    elif arguments.kind == "data":
        columns = ["data", "what", "for", "works", "what or why"]
        rows = []
        for name, dataset in found.items():
            probe = dataset.probe()
            works = ["yes" if probe.ok else "no", terminal.escape(probe.reason)]
            rows.append([name, dataset.title, ", ".join(dataset.tasks) or "every network", *works])
    elif arguments.kind == "engines":
        from ergometer.run.environment import probes

        columns = ["engine", "what", "device", "works", "trains", "infers", "op times", "options", "what or why"]
        rows = []
        for (name, device), probe in probes().items():
            engine = found[name]
            able = ["yes" if mode in engine.modes else "no" for mode in ("train", "infer")]
            options = ", ".join(f"{key}={'|'.join(values)}" for key, values in engine.options.items())
            why = probe.reason + (f": {probe.remedy}" if probe.remedy else "")
            here, timed = "yes" if probe.ok else "no", "no" if engine.untraced else "yes"
            rows.append([name, engine.title, device, here, *able, timed, options, terminal.escape(why)])
    else:
        from ergometer.run.examine import probe_sensors

        columns = ["sensor", "what", "works", "what or why"]
        rows = [
            [name, found[name].title, "yes" if probe.ok else "no", terminal.escape(probe.reason)]
            for name, probe in probe_sensors().items()
        ]
    terminal.console().print(terminal.Fitted("", columns, rows, left=columns))
    return 0
