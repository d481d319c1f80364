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
    else:
        from ergometer.run.examine import probe_engines, probe_sensors

        probes = probe_engines() if arguments.kind == "engines" else probe_sensors()
        columns = [arguments.kind.removesuffix("s"), "what", "works", "what or why"]
        rows = [
            [name, found[name.split(" on ")[0]].title, "yes" if probe.ok else "no", terminal.escape(probe.reason)]
            for name, probe in probes.items()
        ]
    terminal.console().print(terminal.Fitted("", columns, rows, left=columns))
    return 0
