"""The status page: it runs its own code alone, and makes no markup of what it shows."""

import base64
import hashlib
import re
import socket

from devhost.observe.http import read_page, serve_http
from tests.support.asking import get


async def test_page_is_served_with_a_policy_that_allows_its_own_code_alone() -> None:
    look, bound = read_page(), socket.create_server(("127.0.0.1", 0))
    async with serve_http(bound, {"/": lambda: look}):
        response = await get(bound.getsockname()[1], "/")
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    html = response.body.decode()
    hashes = [
        base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        for element in ("style", "script")
        for code in re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    ]
    assert response.headers["Content-Security-Policy"] == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert not re.findall(r"<[a-z][^>]* (?:style|on\w+|src|href)=", html)
    dangerous = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\("
    assert not re.findall(dangerous, html)
