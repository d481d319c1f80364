"""Draws docs/run.svg, the README's picture, from the newest two runs in the store (`make picture`)."""

import io
import re
from pathlib import Path

from rich.console import Console

from ergometer.analyze.attribute import attribute
from ergometer.report import terminal
from ergometer.store.database import Store
from ergometer.store.samples import Samples
from ergometer.store.spans import SpanTable


def main() -> None:
    with Store() as store:
        records = store.records(2)
    last = records[-1]
    folder = Path(last.directory)
    shares = attribute(SpanTable.load(folder / "spans.npz"), Samples.load(folder / "samples.npz"), "layers")
    out = Console(record=True, width=150, highlight=False, file=io.StringIO(), force_terminal=True)
    out.print("[bold]$ ergo run lenet mobilenet_v2 --batch 4[/]")
    out.print(terminal.results(records))
    out.print("[bold]$ ergo show last --layers --top 10[/]")
    out.print(terminal.shares(shares, "layers", 10))
    svg = out.export_svg(title="ergo")
    # The page must not fetch fonts from elsewhere: any monospace will do.
    Path(__file__).with_name("run.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
