"""What MkDocs lacks for this repository: pages and files that are not below docs/.

A link to one of them, as it works in the repository, leads to its copy in the site.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

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
    "security-policy.md": "SECURITY.md",
}
# Files that pages link are copied below this directory.
COPIES: Final = "files"
_LINK: Final = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Let the links of a page lead to what they name within the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    here = page.file.src_uri
    base = posixpath.dirname(PAGES.get(here, f"docs/{here}"))

    def led(link: re.Match[str]) -> str:
        target = link[2]
        if ":" in target:
            return link[0]
        found = posixpath.normpath(posixpath.join(base, target))
        shown = site_path(found)
        if shown.startswith(f"{COPIES}/") and files.get_file_from_path(shown) is None:
            content = (ROOT / found).read_bytes()
            files.append(File.generated(config, shown, content=content))
        start = posixpath.dirname(here) or "."
        return f"{link[1]}{posixpath.relpath(shown, start)}{link[3]}"

    return _LINK.sub(led, markdown)


def site_path(path: str) -> str:
    """Return the place in the site of a file of the repository."""
    pages: dict[str, Any] = {source: page for page, source in PAGES.items()}
    if path in pages:
        return str(pages[path])
    if path == "README.md":
        return "index.md"
    if PurePosixPath(path).is_relative_to("docs"):
        return path.removeprefix("docs/")
    return f"{COPIES}/{path}"
