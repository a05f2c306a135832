"""The status page: a single file, with a policy that lets it load nothing else."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Final

from devhost.observe.http import Response

_FILE: Final = Path(__file__).with_name("page.html")


def load() -> Response:
    """Read the page; its policy allows only its own style and script, by their hashes."""
    html = _FILE.read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(html, 'style')}",
            f"script-src {_hash(html, 'script')}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = {"Content-Security-Policy": policy}
    return Response(html.encode(), "text/html; charset=utf-8", headers=headers)


def _hash(html: str, element: str) -> str:
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
