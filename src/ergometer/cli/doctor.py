"""Shows what this device can measure, what it cannot, why, and what would fix it."""

import argparse

EPILOG = """\
Every sensor and engine is tried, not guessed. ERGO_SYSROOT names another root directory in which
/proc and /sys are looked for, such as a recorded tree of another device.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def execute(arguments: argparse.Namespace) -> int:
    from ergometer.core.quantity import format_value
    from ergometer.report import terminal
    from ergometer.run.examine import examine

    found = examine()
    out = terminal.console()
    host = found.host
    memory = format_value(host["memory_bytes"], "B") if host["memory_bytes"] else "unknown"
    out.print(f"[bold]{host['name']}[/]: {host['processor']}, {host['cores']} cores, {memory}, kernel {host['kernel']}")
    for title, findings in (("sensors", found.sensors), ("engines", found.engines), ("system", found.system)):
        rows = [
            [
                name,
                "[green]yes[/]" if probe.ok else "[red]no[/]",
                terminal.escape(probe.reason),
                terminal.escape(probe.remedy),
            ]
            for name, probe in findings.items()
        ]
        columns = [title, "works", "what or why", "what would fix it"]
        out.print(terminal.Fitted("", columns, rows, left=columns))
    return 0
