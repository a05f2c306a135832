"""The pages and files of the site that are not below docs/, which MkDocs does not know.

A link to one of them, as it works in the repository, leads to its copy in the site.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a dependency of the extra `docs` alone
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
# Page of the site: file of the repository.
PAGES: Final = {
    "architecture.md": "ARCHITECTURE.md",
    "chart.md": "deploy/helm/devhost/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "index.md": "README.md",
    "measurements.md": "bench/RESULTS.md",
    "security-policy.md": "SECURITY.md",
    "tests.md": "tests/README.md",
}
# Other files that pages link are copied below this directory.
COPIES: Final = "files"
_LINK: Final = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages, and the files that pages link."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    linked = {
        path
        for page in files.documentation_pages()
        for link in _LINK.finditer(page.content_string)
        if (path := _linked(link, page.src_uri)) and site_path(path).startswith(COPIES)
    }
    for path in sorted(linked):
        if (ROOT / path).is_file():  # otherwise MkDocs reports the link
            content = (ROOT / path).read_bytes()
            files.append(File.generated(config, site_path(path), content=content))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Return a page whose links lead to places within the site."""
    here = page.file.src_uri

    def led(link: re.Match[str]) -> str:
        path = _linked(link, here)
        if path is None:
            return link[0]
        start = posixpath.dirname(here) or "."
        return f"{link[1]}{posixpath.relpath(site_path(path), start)}{link[3]}"

    return _LINK.sub(led, markdown)


def _linked(link: re.Match[str], page: str) -> str | None:
    """Return what a link of a page of the site leads to: a file of the repository."""
    base = posixpath.dirname(PAGES.get(page, f"docs/{page}"))
    return None if ":" in link[2] else posixpath.normpath(posixpath.join(base, link[2]))


def site_path(path: str) -> str:
    """Return the place in the site of a file of the repository."""
    for page, source in PAGES.items():
        if path == source:
            return page
    if PurePosixPath(path).is_relative_to("docs"):
        return path.removeprefix("docs/")
    return f"{COPIES}/{path}"
