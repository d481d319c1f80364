"""Every command, plug-in and metric is documented, and the documentation names nothing that does not exist."""

import re
from pathlib import Path

import pytest

from ergometer.cli import COMMANDS
from ergometer.core import registry
from ergometer.core.quantity import format_shape

ROOT = Path(__file__).parents[2]
DOCS = {"models": "models.md", "engines": "engines.md", "sensors": "sensors.md", "data": "data.md"}


@pytest.mark.parametrize("kind", DOCS)
def test_every_plug_in_has_a_row(kind: str) -> None:
    text = (ROOT / "docs" / DOCS[kind]).read_text()
    for name in registry.names(kind):
        assert f"`{name}`" in text, f"docs/{DOCS[kind]} does not mention {name}"


def test_the_table_of_models_has_their_true_counts() -> None:
    rows = {
        line.split("|")[1].strip(): line for line in (ROOT / "docs/models.md").read_text().splitlines() if "|" in line
    }
    for name, model in registry.load_all("models").items():
        assert f" {model.parameters:,} " in rows[f"`{name}`"], name
        assert f" {format_shape(model.input)} " in rows[f"`{name}`"], name


def test_every_command_and_option_is_documented() -> None:
    from importlib import import_module

    text = (ROOT / "docs/commands.md").read_text()
    for name in COMMANDS:
        assert f"## ergo {name}" in text
        module = import_module(f"ergometer.cli.{name.replace('-', '_')}")
        source = Path(module.__file__ or "").read_text()
        section = text.split(f"## ergo {name}\n")[1].split("\n## ")[0]
        for option in re.findall(r'\(\s*"(--[a-z-]+)"', source):
            assert f"`{option}" in section, f"ergo {name} {option} is not documented"


def test_the_readme_has_the_two_commands_and_its_picture() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make run" in text and "make test" in text
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures and all((ROOT / picture).is_file() for picture in pictures)


def test_links_between_documents_hold() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
