"""What the documents say is true: examples run, shown output is printed, tables are complete.

After a change that moves numbers, `make outputs` rewrites what is shown; `python tests/test_docs.py
README.md` does so in pages of some names.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
import yaml  # type: ignore[import-untyped]
from over_all import more, over

import wavecast

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = [*PAGES, ROOT / "Makefile", ROOT / "mkdocs.yml", ROOT / "constraints.txt", ROOT / ".ci/run"]

FOLLOWED = {page.name for page in (ROOT / "docs" / "howto").glob("add-*.md")}
"""Pages whose commands `tests/test_recipes.py` runs."""

RUNNABLE = re.compile(r"<!-- runnable -->\n```python\n(.*?)```", re.DOTALL)
SHOWN = re.compile(
    r"(<!-- output: wavecast (?P<command>.*?) -->\n```text\n)(?P<output>.*?)```", re.DOTALL
)
MADE = re.compile(r"(<!-- output: python -m (?P<module>[\w.]+) -->\n```text\n).*?```", re.DOTALL)
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(wavecast (?!--)[^`]+)`")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")

every_page = over("page", PAGES, called=lambda page: page.relative_to(ROOT))


def pages_with(content: re.Pattern[str], quick: Sequence[str] = ()) -> pytest.MarkDecorator:
    """A test for each page that has such content, a slow one but for the pages named `quick`."""
    pages = [page for page in PAGES if content.search(page.read_text(encoding="utf-8"))]
    first = [page for page in pages if page.name in quick]
    rest = more(*(page for page in pages if page.name not in quick))
    return pytest.mark.parametrize("page", [*first, *rest], ids=lambda p: str(p.relative_to(ROOT)))


def commands() -> Iterator[str]:
    """The arguments of every `wavecast` command in a shell block, or within the README's text."""
    for page in PAGES:
        if page.name in FOLLOWED:
            continue
        text = page.read_text(encoding="utf-8")
        lines = [
            line
            for block in SHELL.findall(text)
            for line in block.replace("\\\n", " ").splitlines()
        ]
        if page.name == "README.md":
            lines += INLINE.findall(text)
        for line in lines:
            if line.startswith("wavecast "):
                yield line.removeprefix("wavecast ")


def command_names() -> Iterator[str]:
    """The name of every command that `wavecast --help` shows, those of groups included."""
    from typer.main import get_command

    from wavecast.cli import app

    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from (f"{name} {inner}" for inner in command.commands)
            if command.invoke_without_command:
                yield name
        elif not command.hidden:
            yield name


def printed(command: str) -> str:
    """What a command prints into a pipe."""
    pytest.importorskip("torch")
    from wavecast.cli import app

    out = io.StringIO()
    with redirect_stdout(out):
        app(shlex.split(command), standalone_mode=False)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


@pages_with(RUNNABLE)
def test_runnable_examples_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = RUNNABLE.findall(page.read_text(encoding="utf-8"))
    if blocks:
        pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)  # where dataclasses look themselves up
    for block in blocks:
        exec(compile(block, str(page), "exec"), vars(example))


@pages_with(SHOWN, quick=["README.md", "tutorial.md", "will-it-fit.md"])
def test_shown_output_is_what_the_command_prints(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for shown in SHOWN.finditer(page.read_text(encoding="utf-8")):
        assert shown["output"] == printed(shown["command"]), "run make outputs"


@over("command", sorted(set(commands())))
def test_shown_commands_are_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments parse, GPUs are known, and files are there; nothing long is run."""
    import typer
    from typer.main import get_command

    from wavecast.cli import app

    word, *arguments = shlex.split(command)
    group = get_command(app)
    assert word in group.commands, f"there is no command {word}"  # type: ignore[attr-defined]
    shown: typer.core.TyperCommand = group.commands[word]  # type: ignore[attr-defined]
    while hasattr(shown, "commands"):  # a command of a group
        alone = getattr(shown, "invoke_without_command", False)
        if alone and (not arguments or arguments[0].startswith("-")):
            break  # the group itself
        word, *arguments = arguments
        assert word in shown.commands, f"there is no command {word}"
        shown = shown.commands[word]
    context = shown.make_context(word, arguments)
    gpus = context.params.get("gpu") or context.params.get("names") or ()
    for gpu in [gpus] if isinstance(gpus, str) else gpus:
        assert gpu == "all" or gpu.endswith(".toml") or wavecast.device(gpu)
    target = context.params.get("target")
    more = context.params.get("more") or context.params.get("targets") or ()
    for file in (str(target or ""), *more):
        if file.startswith(("examples/", "measurements/")):
            assert (ROOT / file.partition(":")[0]).is_file()


@every_page
def test_links_lead_to_files(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_readme_names_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert {a or b for a, b in named} <= targets, page.name


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert wavecast.__version__ == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    supported = re.findall(r"^\| ([\d.]+) \| yes \|$", (ROOT / "SECURITY.md").read_text(), re.M)
    assert supported == [version.rpartition(".")[0]]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)


def test_the_reference_names_every_parameter_of_trace() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    for name in inspect.signature(wavecast.trace).parameters:
        assert f"| `{name}` |" in reference


def test_the_reference_has_every_command() -> None:
    table = (ROOT / "docs" / "reference.md").read_text().partition("\n## Commands\n")[2]
    rows = re.findall(r"^\| `([^`]+)` \|", table.partition("\n## ")[0], re.MULTILINE)
    listed = {
        next((name for name in command_names() if f"{row} ".startswith(f"{name} ")), row)
        for row in rows
    }
    assert listed == set(command_names())


def test_the_reference_has_an_example_of_every_public_name() -> None:
    blocks = PYTHON.findall((ROOT / "docs" / "reference.md").read_text())
    used = set(re.findall(r"\bwc\.(\w+)", "\n".join(blocks)))
    assert set(wavecast.__all__) <= used


def test_the_number_of_gpus_is_right() -> None:
    shipped = len(list((ROOT / "src/wavecast/data/devices").glob("*.toml")))
    for page in ("README.md", "CHANGELOG.md"):
        numbers = re.findall(r"(\d+)\s+GPUs(?: from|, with a range)", (ROOT / page).read_text())
        assert numbers == [str(shipped)], page


def test_the_site_has_every_page() -> None:
    """Decision records and appendices are linked from pages, and are not in the menu."""

    def pages(nav: object) -> Iterator[str]:
        if isinstance(nav, str):
            yield nav
        elif isinstance(nav, list | dict):
            for item in nav.values() if isinstance(nav, dict) else nav:
                yield from pages(item)

    listed = set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    written = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert {page for page in written if not page.startswith(("adr/", "appendix/"))} == listed


def test_the_decision_records_are_one_link_away() -> None:
    index = (ROOT / "docs" / "adr" / "index.md").read_text()
    for page in (ROOT / "docs" / "adr").glob("0*.md"):
        assert page.name in index
    assert "adr/index.md" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "adr/index.md" in (ROOT / "docs" / "concepts" / "architecture.md").read_text()


def test_every_appendix_is_linked_from_a_page() -> None:
    pages = [page for page in PAGES if page.parent.name != "appendix"]
    linked = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for page in (ROOT / "docs" / "appendix").glob("*.md"):
        assert f"appendix/{page.name}" in linked, page.name


def test_the_architecture_page_has_the_rooms_in_their_order() -> None:
    from test_architecture import HOUSES

    page = (ROOT / "docs" / "concepts" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)`(?: itself)? \|", page.partition("\n## The rooms\n")[2], re.M)
    rooms = ["wavecast" if room == "" else room for room in HOUSES["wavecast"]]
    assert rows == [room for room in rooms if room != "__main__"]
    hearts = re.findall(r"^\| `(\w+)` \|[^|]*\| `([\w/.]+)` \|", page, re.M)
    assert len(hearts) > 15
    source = ROOT / "src" / "wavecast"
    assert [room for room, heart in hearts if not (source / room / heart).is_file()] == []


def test_no_file_of_ours_knows_a_machine() -> None:
    for file in OURS:
        for place in ("/root/", "/home/", "/work/", "/opt/", "/tmp/", "index-url", "find-links"):
            assert place not in file.read_text(encoding="utf-8"), f"{file.name}: {place}"


def rewrite(only: Collection[str]) -> None:
    """Put what the commands print now into the pages, or into pages of some names only."""
    os.environ["SOURCE_DATE_EPOCH"] = "1788220800"  # as tests/conftest.py

    def refreshed(shown: re.Match[str]) -> str:
        return f"{shown[1]}{printed(shown['command'])}```"

    def made(shown: re.Match[str]) -> str:
        command = [sys.executable, "-m", shown["module"]]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return f"{shown[1]}{run.stdout.rstrip()}\n```"

    for page in [page for page in PAGES if not only or page.name in only]:
        text = page.read_text(encoding="utf-8")
        page.write_text(MADE.sub(made, SHOWN.sub(refreshed, text)), encoding="utf-8")


if __name__ == "__main__":
    rewrite(sys.argv[1:])
