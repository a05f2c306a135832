"""The status page in a real browser: what it shows, that it fits, and that it stays still.

``python -m tests.observe.browser`` fetches the browser.
"""

import json
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from devhost.observe.http import Response, read_page, serve_http
from tests.observe import browser
from tests.observe.page_examples import Json, example, many, resource, whole, wrong
from tests.support.asking import status_port_of, until_status
from tests.support.daemon import Daemon
from tests.support.hosting import Kubelet

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PROGRAM = browser.find()
PICTURES = os.environ.get("DEVHOST_TEST_PICTURES")
DAY = "2026-11-21"
EVERY_MS = 2000  # how often the page asks

pytestmark = pytest.mark.skipif(not PROGRAM, reason="no browser: see CONTRIBUTING.md")


class Served:
    """A page that shows a status, which can be changed."""

    def __init__(self, status: Json) -> None:
        self.status = status
        self.url = ""

    async def __aenter__(self) -> Self:
        look, bound = read_page(), socket.create_server(("127.0.0.1", 0))
        routes = {"/": lambda: look, "/status": lambda: Response(json.dumps(self.status).encode())}
        self._serving = serve_http(bound, routes)
        await self._serving.__aenter__()
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.__aexit__(None, None, None)


class Viewer:
    """Opens pages with a clock that the test moves, and notes what the browser complains of."""

    def __init__(self, chromium: "Browser") -> None:
        self._chromium = chromium
        self.complaints: list[str] = []

    async def open(
        self,
        url: str,
        width: int = 1100,
        height: int = 900,
        scheme: str = "light",
        *,
        clock: bool = True,
    ) -> "Page":
        context = await self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            locale="en-GB",
            timezone_id="UTC",
        )
        shown = await context.new_page()
        shown.on("console", lambda message: self.complain(f"{message.text} {message.location}"))
        shown.on("pageerror", lambda error: self.complain(str(error)))
        if clock:
            await shown.clock.install(time=f"{DAY}T11:00:00Z")
            await shown.clock.pause_at(f"{DAY}T12:00:00Z")  # or it asks a server that has ended
        await shown.goto(url)
        await shown.wait_for_selector("#overview")
        return shown

    def complain(self, text: str) -> None:
        if "favicon" not in text:
            self.complaints.append(text)


@pytest.fixture
async def viewer() -> AsyncIterator[Viewer]:
    api = pytest.importorskip("playwright.async_api", reason="no playwright: see CONTRIBUTING.md")
    async with api.async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        chromium = await playwright.chromium.launch(executable_path=PROGRAM, args=arguments)
        viewer = Viewer(chromium)
        yield viewer
        await chromium.close()
    assert not viewer.complaints


async def later(shown: "Page", js: str) -> None:
    """Move the clock, by which the page asks for the status, until an expression is true."""
    while not await shown.evaluate(js):  # the policy refuses Playwright's own waiting
        await shown.clock.run_for(EVERY_MS)


def kept(name: str, place: Path) -> Path:
    return Path(PICTURES or place) / f"{name}.png"


async def test_page_shows_the_status_and_follows_it(viewer: Viewer) -> None:
    """The page needs no reload, and a device's name stays text."""
    async with Served(example()) as served:
        shown = await viewer.open(served.url)
        assert await shown.title() == "(2) devhost node-1"
        text = await shown.inner_text("body")
        for resource in example()["resources"]:
            assert resource["name"] in text
            for device in resource["devices"]:
                assert device["id"] in text
        assert await shown.locator("img, b").count() == 0
        heads = "details:last-of-type th"
        assert await shown.locator(heads).all_inner_texts() == ["Device", "Health"]
        assert "hash 29417db6effdcabe" in text
        assert "Registered since" not in text  # as long as devhost is running
        assert not re.search(r"\d{4}-\d\d-\d\dT", text)  # times are local ones
        served.status |= {"nodeName": "node-2", "troubles": []}
        await later(shown, "document.title === 'devhost node-2'")
        assert await shown.locator("#problems").count() == 0
        served.status = {}
        await later(shown, "document.getElementById('live').className === 'lost'")
        assert "no answer; as of 12:00:0" in await shown.inner_text("#live")
        assert "node-2" in await shown.inner_text("#who")


@pytest.mark.parametrize("status", [example, many, wrong])
async def test_page_fits_the_window(viewer: Viewer, tmp_path: Path, status: type[Json]) -> None:
    async with Served(status()) as served:
        for kind, scheme, width, height in (
            *(("light", "light", 1100, 900), ("dark", "dark", 1100, 900)),
            *(("tablet", "light", 601, 900), ("window", "light", 851, 900)),
            *(("phone", "light", 360, 740), ("small-phone", "dark", 320, 600)),
        ):
            shown = await viewer.open(served.url, width, height, scheme)
            for summaries in ("summary", "details details summary"):
                await shown.locator(summaries).evaluate_all("all => all.map(one => one.click())")
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await shown.evaluate(wide) <= 0, kind
            names = shown.locator("h2").evaluate_all("all => all.map(one => one.clientHeight)")
            assert max(await names) < 60, kind  # two lines
            await shown.locator("summary").evaluate_all("all => all.map(one => one.click())")
            picture = kept(f"{status.__name__}-{kind}", tmp_path)
            await shown.screenshot(path=picture, full_page=kind not in ("tablet", "window"))
            await shown.context.close()


async def test_page_lines_up(viewer: Viewer) -> None:
    """Columns and counts over all cards, though each has other columns; and a flag is in one piece."""
    status = wrong()
    for device in status["resources"][3]["devices"]:
        device["reason"] = f"{'x' * 20} it needs --allow-device block"
    status["resources"][2] |= {"capacity": 10000, "allocatable": 10000, "holders": {}}
    async with Served(status) as served:
        shown = await viewer.open(served.url)
        heads = await shown.locator("th").evaluate_all(
            "all => all.map(one => [one.innerText, one.getBoundingClientRect().x])"
        )
        assert len(dict(heads)) == len({(label, place) for label, place in heads}) > 4
        counts = await shown.locator(".count:last-child").evaluate_all(
            "all => all.map(one => { const range = new Range(); range.selectNodeContents(one);"
            " return [range.getBoundingClientRect().right, range.getClientRects().length] })"
        )
        assert len({round(right) for right, _ in counts}) == 1
        assert {lines for _, lines in counts} == {1}
        assert "(in the chart: allow.devices)" in await shown.inner_text("body")
        for width in range(500, 1200, 20):
            await shown.set_viewport_size({"width": width, "height": 900})
            lines = "all => all.map(one => one.getClientRects().length)"
            assert {*await shown.locator(".flag").evaluate_all(lines)} == {1}, width


async def test_page_without_resources_says_what_to_do(viewer: Viewer) -> None:
    async with Served(whole([])) as served:
        shown = await viewer.open(served.url)
        assert "`devhost init`" in await shown.inner_text("#nothing")


async def test_page_refresh_keeps_focus_selection_and_scroll(viewer: Viewer) -> None:
    """The filter, what is open, where the focus is; and nothing moves."""
    async with Served(many()) as served:
        devices = served.status["resources"][3]["devices"]
        for device in devices:
            device["checked"] = {"at": f"{DAY}T11:58:58+00:00", "failure": None, "unknown": None}
        shown = await viewer.open(served.url, 800, 700)
        assert await shown.locator(".resource[open]").count() == 0
        await shown.get_by_role("link", name="example.com/scratch-disk-3").click()
        card = shown.locator("[id='resource-example.com/scratch-disk-3']")
        assert await card.get_attribute("open") is not None
        assert await card.locator("tbody tr").count() == 10
        assert "Unhealthy" in await card.locator("tbody tr").first.inner_text()
        await card.get_by_role("button", name="Show all 30 devices").press("Enter")
        assert await card.locator("tbody tr").count() == 30
        first = card.locator("tbody code").first
        await first.evaluate("one => getSelection().selectAllChildren(one)")
        scrolled = await shown.evaluate("scrollY")

        devices[7]["checked"] = devices[7]["checked"] | {"at": f"{DAY}T11:59:59+00:00"}
        served.status |= {"nodeName": "node-2"}
        await later(shown, "document.title.endsWith('node-2')")
        assert await card.locator("tbody tr").count() == 30
        assert await shown.evaluate("document.activeElement.innerText") == "Show the first 10"
        assert await shown.evaluate("getSelection().toString()") == "scratch-disk25"
        assert await shown.evaluate("scrollY") == scrolled
        assert "11:59:59" in await card.inner_text()

        # A resource that goes does not open or close another one.
        del served.status["resources"][0]
        await later(shown, "document.querySelectorAll('.resource').length === 29")
        assert await shown.locator(".resource[open] h2").all_inner_texts() == [
            "example.com/scratch-disk-3"
        ]


async def test_page_filter_shows_what_matches(viewer: Viewer) -> None:
    async with Served(many()) as served:
        shared = served.status["resources"][17]
        shares = [f"{shared['devices'][0]['id']}::{share}" for share in range(2)]
        shared["holders"] = dict(zip(shares, (["x/one"], ["x/one", "x/two"]), strict=True))
        shown = await viewer.open(served.url)
        await shown.keyboard.press("Tab")
        await shown.keyboard.type("SOUND-17 unhealthy")
        assert await shown.inner_text("#found") == "1 resource and 1 device match"
        assert await shown.locator(".resource[open] tbody tr").count() == 1
        assert await shown.locator("#problems").inner_text() == (
            "2 of 3 problems\n"
            "example.com/sound-17: 1 of 7 devices unhealthy\n"
            "example.com/sound-17: 1 of 9 devices missing"
        )
        served.status |= {"nodeName": "node-2"}
        await later(shown, "document.title.endsWith('node-2')")
        assert await shown.locator(".resource").count() == 1
        await shown.reload()
        await shown.wait_for_selector("#overview")
        assert await shown.input_value("#filter") == "SOUND-17 unhealthy"
        assert await shown.locator(".resource").count() == 1
        await shown.get_by_label("Filter").fill("x/two")
        (row,) = await shown.locator("tbody tr").all_inner_texts()
        assert "x/one, x/two" in row
        await shown.get_by_label("Filter").fill("default/web-3 render")
        for row in await shown.locator("tbody tr").all_inner_texts():
            assert "default/web-3" in row
        await shown.get_by_label("Filter").fill("")
        assert await shown.locator(".resource").count() == 30
        assert await shown.locator(".resource[open]").count() == 0


async def test_page_shows_what_has_lost_most_first(viewer: Viewer) -> None:
    """Equal resources are in the file's order; shares are no devices."""
    resources = [resource(number, 20) for number in range(5)]
    for index, lost in ((1, 1), (2, 20), (3, 19)):
        resources[index]["devices"] = resources[index]["devices"][lost:]
        resources[index] |= {"missing": lost, "allocatable": 20 - lost, "capacity": 20 - lost}
    resources[0] |= {"capacity": 2000, "allocatable": 2000}
    resources[4] |= {"since": f"{DAY}T11:27:57+00:00"}
    async with Served(whole(resources)) as served:
        shown = await viewer.open(served.url)
        order = ["sound-2", "scratch-disk-3", "render-1", "serial-0", "token-4"]
        names = [f"example.com/{name}" for name in order]
        assert await shown.locator(".resource h2").all_inner_texts() == names
        assert await shown.locator("#problems a").all_inner_texts() == names[:3]
        assert await shown.locator(".lost h2").all_inner_texts() == names[:1]
        tiles = (await shown.locator("#overview").inner_text()).split("\n")
        assert dict(zip(tiles[::2], tiles[1::2], strict=True)) == {
            "resources registered": "5 of 5",
            "healthy devices": "60",
            "unhealthy": "0",
            "missing": "40",
            "held by pods": "30",
        }
        shares, fresh = (f"[id='resource-{name}']" for name in names[3:])
        assert "2000 of 2000 shares allocatable" in await shown.inner_text(shares)
        await shown.get_by_text(names[4]).click()
        assert "Registered since 11:27:57" in await shown.inner_text(fresh)


# ── for the README ──

CONFIG = """\
version: v1
resources:
  - name: myway5.com/cola
    sources: [directory: /etc/colas]
    replicas: 2
    health: {checks: [readable], interval: 100ms}
  - name: example.com/license
    sources: [static: 3]
  - name: example.com/scanner
    sources: [directory: /run/scanners]
"""


async def test_page_of_a_real_run(
    viewer: Viewer, daemon: Daemon, started: Kubelet, directory: Path, tmp_path: Path
) -> None:
    """The picture of the README: a device has gone, and pods have others."""
    root = directory / "root"
    for place, names in (
        ("etc/colas", ("cherry", "classic", "vanilla")),
        ("run/scanners", ("flatbed-1", "flatbed-2")),
    ):
        (root / place).mkdir(parents=True)
        for name in names:
            (root / place / name).touch()
    daemon.flags += ["--root", str(root), "--node-name", "node-1"]
    await daemon.start(CONFIG)
    await started.wait("myway5.com/cola", 6, 6)
    await started.wait("example.com/license", 3, 3)
    await started.admit("web-0", {"app": {"myway5.com/cola": 2}})
    await started.admit("solver-0", {"app": {"example.com/license": 1}})
    port = await status_port_of(daemon)
    await until_status(port, lambda doc: doc["resources"][0]["expected"] == 3)
    (root / "etc/colas/vanilla").unlink()
    await started.wait("myway5.com/cola", 6, 4)
    shown = await viewer.open(f"http://127.0.0.1:{port}/", 1000, 880, clock=False)
    for text in ("default/web-0", "default/solver-0", "not found any more", "1 missing"):
        await shown.get_by_text(text).first.wait_for()
    picture = kept("status", tmp_path)
    await shown.screenshot(path=picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
