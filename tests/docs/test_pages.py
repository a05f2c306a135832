"""Links, configurations, manifests, commands and their output on the pages are right."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import click
import jsonschema
import pytest
import yaml

from devhost.cli import main as cli
from devhost.config.loader import loads
from devhost.model.config import Resource
from devhost.model.values import key_of
from tests.docs import pages
from tests.docs.pages import PAGES, ROOT

_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_KEYS: Final = {key_of(Resource, name) for name in Resource.model_fields}
_VALUES: Final = json.loads((ROOT / "deploy/helm/devhost/values.schema.json").read_text())

# Pages with all that their commands need.
RUNNING: Final = [
    "README.md",
    "docs/configuration.md",
    "docs/from-gdp.md",
    "docs/how-it-works.md",
    "docs/init.md",
    "docs/migrating.md",
    "docs/start/laptop.md",
    *(page for page in PAGES if page.startswith("docs/tasks/")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in _LINK.findall(prose(page)):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.resolve().relative_to(ROOT).as_posix()), link


def prose(page: str) -> str:
    text = re.sub(r"^```.*?^```$", "", pages.read(page), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: "" if "](" in code[0] else code[0], text)


@cache
def anchors(page: str) -> set[str]:
    """Return the anchors of a page that GitHub and MkDocs agree on."""
    names = set()
    for heading in re.findall(r"^#+ (.*)$", pages.read(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading).strip().lower()
        github = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        mkdocs = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text))
        if github == mkdocs:
            names.add(github)
    return names


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(("README", "docs/"))])
def test_files_and_commands_fit_the_site(page: str) -> None:
    """Beside both sidebars on a laptop; what commands print is as wide as it is."""
    blocks = [block for block in pages.blocks(page) if block.language in ("sh", "yaml", "python")]
    lines = [*re.findall(r"^    (.*)$", prose(page), re.MULTILINE)]
    lines += [line for block in blocks for line in block.text.splitlines()]
    assert [line for line in lines if len(line) > 92] == []


@pytest.mark.parametrize("page", PAGES)
def test_yaml_is_valid(page: str) -> None:
    for block in pages.blocks(page):
        if block.language == "yaml" and not (block.title or "").startswith("bad"):
            check(block.text.replace("[…]", "[{name: e.com/x, sources: [static: 2]}]"))


def check(text: str) -> None:
    """Check a configuration, a part of one, values of the chart, or Kubernetes objects."""
    documents = [document for document in yaml.safe_load_all(text) if document is not None]
    for document in documents:
        if isinstance(document, list):
            loads(yaml.safe_dump({"version": "v1", "resources": document}), "list").require()
        elif "resources" in document and "version" in document:
            loads(text, "page").require()
        elif document.keys() <= _KEYS:
            rest = {"name": "example.com/x", "sources": ["/dev/x/by-id/*"]}
            file = {"version": "v1", "resources": [rest | document]}
            loads(yaml.safe_dump(file), "part").require()
        elif "kind" in document:
            assert document["apiVersion"], document["kind"]
        elif document.keys() <= _VALUES["properties"].keys():
            jsonschema.validate(document, _VALUES)
        else:
            assert document.keys() & {"jobs", "tests"}, f"what is this? {text}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(page):
        words = command.split()
        if words[0] == "make":
            if re.fullmatch(r"[a-z-]+", words[1]):
                assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), command
        elif len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):
            name = words[1]
            assert name in cli.list_commands(click.Context(cli)), command
            declared = cli.get_command(click.Context(cli), name)
            assert declared is not None
            options = {"--help", "-h", *(name for o in declared.params for name in o.opts)}
            assert {*re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", command)} <= options, command


def commands(page: str) -> Iterator[str]:
    """Yield the commands of make and devhost that a page shows, in blocks or in a line."""
    lines = list(re.findall(r"`([^`\n]+)`", prose(page)))
    for block in pages.blocks(page):
        if block.language in ("sh", "console", ""):
            lines += re.sub(r"\\\n\s*", "", block.text).splitlines()
    for line in lines:
        match = re.search(r"(?:^|[$/]\s*|-- |bin/|\| )((?:devhost|make) [^|&#>;)]+)", line)
        if match and "…" not in match[1]:
            yield match[1]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "console" in {b.language for b in pages.blocks(page)}]
)
def test_commands_print_what_is_shown(page: str) -> None:
    """`python -m tests.docs.pages` writes what they print now."""
    ran = 0
    for command, printed in pages.run(page):
        ran += 1
        shown = re.escape(command.shown.rstrip()).replace("…", ".*?")
        assert re.fullmatch(shown, printed.rstrip(), re.DOTALL), (
            f"$ {command.command}\n{printed}\nbut the page shows\n{command.shown}"
        )
    assert ran or page not in RUNNING


def test_troubleshooting_quotes_what_devhost_says() -> None:
    """The messages before the colon of its entries, up to what stands for `…`."""
    code = "".join(path.read_text() for path in (ROOT / "devhost").rglob("*.py"))
    code = re.sub(r'"\s+f?"', "", code)  # a text over several lines
    rows = re.findall(r"^- (.*?): [^/]", pages.read("docs/troubleshooting.md"), re.MULTILINE)
    quotes = {code for row in rows for code in re.findall(r"`([^`]* [^`]*)`", row)}
    foreign = {"systemctl daemon-reload", "endpoint not found in cache for a registered resource"}
    parts = {part.strip() for q in quotes - foreign for part in re.split(r"…|/host |by-id", q)}
    assert len(parts) > 10
    assert [part for part in parts if part not in code] == []
