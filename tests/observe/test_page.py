"""The status page: nothing from elsewhere, nothing but its own code, and live."""

import base64
import hashlib
import re
import socket
from html.parser import HTMLParser

from devhost.observe.http import Response, page, serving
from tests.support.asking import get


class Parsed(HTMLParser):
    """Collects elements, and what is in those that are code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.code: dict[str, str] = {}
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("style", "script"):
            assert self._inside not in self.code
            self.code[self._inside] = data


def policy(response: Response) -> dict[str, list[str]]:
    parts = response.headers["Content-Security-Policy"].split("; ")
    return {name: values for name, *values in (part.split() for part in parts)}


def test_only_its_own_code_may_run() -> None:
    response = page()
    parsed = Parsed(response.body.decode())
    assert parsed.code.keys() == {"style", "script"}
    hashes = {
        name: base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        for name, code in parsed.code.items()
    }
    assert policy(response) == {
        "default-src": ["'none'"],
        "style-src": [f"'sha256-{hashes['style']}'"],
        "script-src": [f"'sha256-{hashes['script']}'"],
        "connect-src": ["'self'"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
    for _, attributes in parsed.elements:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]


def test_nothing_is_from_elsewhere() -> None:
    html = page().body.decode()
    assert "//" not in re.sub(r"^\s*//.*|  // .*", "", html, flags=re.MULTILINE)
    assert "@import" not in html
    assert "url(" not in html
    for tag, attributes in Parsed(html).elements:
        assert tag not in ("img", "link", "iframe", "object", "embed", "base", "a", "form")
        assert not {"src", "href", "action", "srcset"} & attributes.keys()


def test_nothing_that_is_said_becomes_markup() -> None:
    code = Parsed(page().body.decode()).code["script"]
    for dangerous in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval",
        "Function(",
    ):
        assert dangerous not in code


def test_light_and_dark() -> None:
    """Each colour has a value for both."""
    style = Parsed(page().body.decode()).code["style"]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert "prefers-color-scheme: dark" in style
    assert set(re.findall(r"--[\w-]+(?=:)", light)) == set(re.findall(r"--[\w-]+(?=:)", dark))
    assert not re.findall(r"#[0-9a-f]{3,8}", style.partition("* {")[2])


async def test_a_program_can_have_it() -> None:
    look, bound = page(), socket.create_server(("127.0.0.1", 0))
    async with serving(bound, {"/": lambda: look}):
        found = await get(bound.getsockname()[1], "/")
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in found.headers["Content-Security-Policy"]
