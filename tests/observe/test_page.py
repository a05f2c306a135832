"""The status page: nothing from elsewhere, nothing but its own code, and live."""

import asyncio
import base64
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from devhost.observe import page
from devhost.observe.http import HttpServer, Response
from tests.observe.asking import get

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
BROWSER = os.environ.get("DEVHOST_TEST_BROWSER") or next(
    filter(None, map(shutil.which, BROWSERS)), ""
)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "status.md"

needs_browser = pytest.mark.skipif(
    not BROWSER, reason="no browser: install chromium-headless-shell or set DEVHOST_TEST_BROWSER"
)


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
    response = page.load()
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
    html = page.load().body.decode()
    assert "//" not in re.sub(r"^\s*//.*|  // .*", "", html, flags=re.MULTILINE)
    assert "@import" not in html
    assert "url(" not in html
    for tag, attributes in Parsed(html).elements:
        assert tag not in ("img", "link", "iframe", "object", "embed", "base", "a", "form")
        assert not {"src", "href", "action", "srcset"} & attributes.keys()


def test_nothing_that_is_said_becomes_markup() -> None:
    code = Parsed(page.load().body.decode()).code["script"]
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
    style = Parsed(page.load().body.decode()).code["style"]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert "prefers-color-scheme: dark" in style
    assert set(re.findall(r"--[\w-]+(?=:)", light)) == set(re.findall(r"--[\w-]+(?=:)", dark))
    assert not re.findall(r"#[0-9a-f]{3,8}", style.partition("* {")[2])


# ── in a browser ──


def example() -> dict[str, Any]:
    """Return the document's example, with names that are meant to harm."""
    block = re.findall(r"```json\n(\{\s*\"version\".*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    said: dict[str, Any] = json.loads(block)
    device = said["resources"][0]["devices"][0]
    said["resources"][0]["devices"].append(
        device | {"id": "<img src=x onerror=alert(1)>", "reason": "</script><b>bold</b>"}
    )
    return said


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that says one thing at first, and another from then on."""
    said, asked = example(), 0

    def status() -> Response:
        nonlocal asked
        asked += 1
        return Response(json.dumps(said | {"nodeName": f"node-{min(asked, 2)}"}).encode())

    bound = socket.create_server(("127.0.0.1", 0))
    look = page.load()
    async with HttpServer({"/": lambda: look, "/status": status}).serving(bound):
        yield bound.getsockname()[1]


async def browse(port: int, place: Path, *flags: str) -> tuple[str, str]:
    """Open the page, let it live for some seconds of its own time; return the DOM and the log."""
    process = await asyncio.create_subprocess_exec(
        BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *(f"--user-data-dir={place / 'profile'}", "--enable-logging=stderr", "--log-level=0"),
        *("--virtual-time-budget=7000", "--window-size=1100,1000", *flags),
        f"http://127.0.0.1:{port}/",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    console = [line for line in err.decode().splitlines() if "CONSOLE" in line]
    return out.decode(), "\n".join(console)


@needs_browser
async def test_it_shows_what_is_said_and_follows(port: int, tmp_path: Path) -> None:
    """Without a reload; and what a device is called stays text."""
    dom, console = await browse(port, tmp_path, "--dump-dom")
    assert "<title>devhost node-2</title>" in dom
    assert "live, " in dom
    for resource in example()["resources"]:
        assert resource["name"] in dom
        for device in resource["devices"][:-1]:
            assert device["id"] in dom
    assert "&lt;img src=x onerror=alert(1)&gt;" in dom
    assert "<img" not in dom
    assert "<b>" not in dom
    assert not [line for line in console.splitlines() if "favicon" not in line], console


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_picture(port: int, tmp_path: Path, scheme: str) -> None:
    """Set DEVHOST_TEST_PICTURES to a directory to look at them."""
    kept = Path(os.environ.get("DEVHOST_TEST_PICTURES", tmp_path)) / f"status-{scheme}.png"
    setting = f"--blink-settings=preferredColorScheme={'01'[scheme == 'light']}"
    await browse(port, tmp_path, f"--screenshot={kept}", setting)
    assert kept.read_bytes().startswith(b"\x89PNG")
    assert kept.stat().st_size > 10_000


async def test_a_program_can_have_it(port: int) -> None:
    found = await get(port, "/")
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in found.headers["Content-Security-Policy"]
