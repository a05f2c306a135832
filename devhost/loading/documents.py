"""The configurations in a file: usually the file itself.

People also have them in ConfigMaps, as manifests of one or several documents, and in the values of
the chart. Positions are always those of the file.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from devhost.errors import Excerpt, Problem, Severity
from devhost.loading import shapes, syntax, yamltree
from devhost.loading.loaded import brief
from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import Extent, Path, Position, Tree
from devhost.model.spelling import nearest

_EXCERPT_MAX: Final = 200  # characters
_BEFORE_MAX: Final = 100  # of these, before the problem
_OURS: Final = re.compile(
    r"""^[ \t]*["']?(?:version["']?[ \t]*:[ \t]*["']?v|resources["']?[ \t]*:)""", re.MULTILINE
)
_KEYS: Final = frozenset({"version", "resources"})
_DOCUMENTS_MAX: Final = 100  # the time for each grows with the file
PROFILES: Final = (
    "the configurations of profiles are not read here: helm template … | devhost validate -"
)
_FILES: Final = (".yaml", ".yml", ".json")
# What a problem underlines: a string in quotes, a template, a key, or a string without quotes.
_TOKEN: Final = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|\$\{[^}]*\}|[\w./-]+(?=:(?:\s|$))"""
    r"""|(?:(?!\s\#|\s*$|:\s|,\s|[]}]+\s*$).)+"""
)


class Document:
    """A configuration in a file.

    Attributes:
        tree: Its values, or why it is not YAML.
        name: Which part of the file it is; empty if it is the file.
        unread: Where values of the chart have profiles, whose configurations are not read.
    """

    def __init__(
        self,
        text: str,
        tree: Tree | TreeError,
        *,
        name: str = "",
        base: Path = (),
        indent: int = 0,
        value: tuple[str, Position] | None = None,
        start: Position | None = None,
        unread: tuple[int, int] | None = None,
    ) -> None:
        """Describe a part of a file.

        Args:
            text: The text with the lines that positions count: the file, or `value`.
            tree: The document.
            name: Which part of the file it is.
            base: The path of the document in the file, for messages.
            indent: How much further right the document is in the file.
            value: If it is a string that the file has in another form: the key, and its position.
            start: If it is a literal block: where that begins, with its '|'.
            unread: As the attribute.
        """
        self.tree, self.name, self.unread = tree, name, unread
        self._start = start
        self._text, self._base, self._indent, self._value = text, base, indent, value

    @cached_property
    def _lines(self) -> list[str]:
        return syntax.lines(self._text)

    def problem(
        self, severity: Severity, file: str, path: Path, message: str, at: tuple[int, int]
    ) -> Problem:
        """Return a problem at a position in the document."""
        line, column = at[0], at[1] + self._indent
        if self._start is not None and line <= self._start.line:  # the block as a whole
            line, column = self._start.line, self._start.column
        excerpt = self._excerpt(path, line, column)
        if self._value is not None:
            key, place = self._value
            message = f"line {line}, column {column} of '{key}': {message}"
            line, column = place.line, place.column
        shown = shapes.shown((*self._base, *path) if path else ())
        text = brief(message)
        return Problem(severity, file, line, column, shown, text, self._resource(path), excerpt)

    def _resource(self, path: Path) -> str:
        """Return the name of the resource that a path is in."""
        if path[:1] != ("resources",) or len(path) == 1 or isinstance(self.tree, TreeError):
            return ""
        resource = self.tree.value(path[:2])
        name = resource.get("name") if isinstance(resource, dict) else None
        return brief(name) if isinstance(name, str) else ""

    def _excerpt(self, path: Path, line: int, column: int) -> Excerpt | None:
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        if not text.strip() or column > len(text) + 1:
            return None
        first = max(column - 1 - _BEFORE_MAX, 0) if len(text) > _EXCERPT_MAX else 0
        start = column - 1 - first
        text = text[first : first + _EXCERPT_MAX]
        token = _TOKEN.match(text, start)
        end = max(token.end() if token else 0, start + 1)
        if isinstance(self.tree, Tree):
            found = self.tree.position(path)
            if found.verbatim and (found.line, found.column + self._indent) == (line, column):
                end = start + len(found.text or "") + (0 if found.plain else 2)
        return Excerpt(text, start, min(end, _EXCERPT_MAX), 0 if self._value else line)


def documents(text: str) -> list[Document]:
    """Return the configurations in a file, at least one.

    Raises:
        TreeError: The text is not YAML, or there is none in it.
    """
    extent = Extent()
    trees = yamltree.parse_all(text, extent)
    first = trees[0]
    if len(trees) == 1 and not _is_manifest(first):
        return _limited(_of_values(text, first)) or [Document(text, first)]
    if not any(map(_is_manifest, trees)):
        message = "only one YAML document is allowed per file"
        raise TreeError(message, *trees[1].start)
    manifests = _Manifests(text, extent)
    for surely in (True, False):
        ours = (one for tree in trees for one in manifests.configurations(tree, (), surely=surely))
        if found := _limited(ours):
            return found
    raise _nothing_in(next(filter(_is_manifest, trees)))


def _limited(found: Iterable[Document]) -> list[Document]:
    result = [*itertools.islice(found, _DOCUMENTS_MAX + 1)]
    if len(result) > _DOCUMENTS_MAX:
        raise TreeError(f"more than {_DOCUMENTS_MAX} configurations in one file", 1, 1)
    return result


def _is_manifest(tree: Tree) -> bool:
    return isinstance(tree.data, dict) and {"apiVersion", "kind"} <= tree.data.keys()


class _Manifests:
    """Reads the configurations in the manifests of a file."""

    def __init__(self, text: str, extent: Extent) -> None:
        self._text, self._extent = text, extent
        self._lines = syntax.lines(text)

    def configurations(self, tree: Tree, path: Path, *, surely: bool) -> Iterator[Document]:
        """Yield the configurations in a ConfigMap, or in those of a List.

        Args:
            tree: The manifests.
            path: Of one of them.
            surely: Leave out what has no key of a configuration, such as a dashboard.
        """
        manifest = tree.value(path)
        if not isinstance(manifest, dict):
            return
        if manifest.get("kind") == "List" and isinstance(manifest.get("items"), list) and not path:
            for index in range(len(manifest["items"])):
                yield from self.configurations(tree, (*path, "items", index), surely=surely)
        data = manifest.get("data")
        if manifest.get("kind") != "ConfigMap" or not isinstance(data, dict):
            return
        texts = {key: value for key, value in data.items() if isinstance(value, str)}
        ours = [key for key, value in texts.items() if _OURS.search(value)]
        if not (ours or surely) and len(texts) == 1:
            ours = [key for key in texts if key.endswith(_FILES)]
        metadata = manifest.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        for key in ours:
            place: Path = (*path, "data", key)
            tree.refuse_duplicates(place)
            shown = f"{key} of ConfigMap {name}" if isinstance(name, str) else key
            yield self._of_string(texts[key], tree.position(place), key, shown)

    def _of_string(self, value: str, position: Position, key: str, name: str) -> Document:
        """Return the document in a string; a literal block keeps its lines, others do not."""
        mark = self._lines[position.line - 1][position.column - 1 : position.column]
        if mark != "|":
            parsed = self._parsed(value)
            if isinstance(parsed, TreeError) and not position.plain and mark == ">":
                message = f"'>' joins the lines of a text; write '{key}: |'"
                parsed = TreeError(message, position.line, position.column)
                return Document(self._text, parsed, name=name)
            return Document(value, parsed, name=name, value=(key, position))
        below = itertools.islice(self._lines, position.line, None)
        written = next(filter(str.strip, below), "")
        first = next(filter(str.strip, syntax.lines(value)), "")
        above = "\n" * position.line  # so that messages have the numbers of the file's lines
        return Document(
            self._text,
            self._parsed(above + value),
            name=name,
            indent=len(written) - len(first),
            start=position,
        )

    def _parsed(self, text: str) -> Tree | TreeError:
        try:
            return yamltree.parse(text, self._extent)
        except TreeError as error:
            return error


def _of_values(text: str, tree: Tree) -> Iterator[Document]:
    """Yield the configurations in the values of the chart, also if it is a dependency."""
    data = tree.data
    if not isinstance(data, dict) or "version" in data or isinstance(data.get("resources"), list):
        return  # a mapping `resources` is of the pods: their CPU and memory
    for base in ((), *((key,) for key, value in data.items() if isinstance(value, dict))):
        values, path = tree.value(base), (*base, "config")
        config = values.get("config")
        if isinstance(config, dict) and config.keys() == {"existingConfigMap"}:
            message = "the configuration is not here: check the ConfigMap of this name"
            place = tree.position((*path, "existingConfigMap"))
            raise TreeError(message, place.line, place.column)
        unread = _profiles(tree, base)
        found = _is_config(config) or (not base and _is_misspelt(config))
        if unread is not None and not (found and config.get("resources")):
            raise TreeError(PROFILES, *unread)
        if found:
            tree.refuse_duplicates(path)
            part = tree.below(path)
            part.data = {"version": "v1", **part.data}  # the chart's default
            part.data.pop("existingConfigMap", None)
            name = shapes.shown(path)
            yield Document(text, part, name=name, base=path, unread=unread)


def _profiles(tree: Tree, base: Path) -> tuple[int, int] | None:
    """Return where values have profiles with configurations of their own."""
    profiles = tree.value(base).get("profiles")
    of_its_own = isinstance(profiles, list) and any(
        isinstance(one, dict) and _is_config(one.get("config")) for one in profiles
    )
    return tree.position((*base, "profiles")).key if of_its_own else None


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) and bool(_KEYS & value.keys())


def _is_misspelt(value: Any) -> bool:
    return isinstance(value, dict) and any(nearest(str(key), _KEYS) for key in value)


def _nothing_in(tree: Tree) -> TreeError:
    """Explain why a manifest has no configuration."""
    manifest, at = tree.data, tree.position(("kind",))
    data = manifest.get("data")
    if manifest["kind"] == "ConfigMap":
        if isinstance(data, dict):
            for key, value in data.items():
                if isinstance(value, dict | list):
                    message = f"should be a string; write '{key}: |'"
                    return TreeError(message, *tree.position(("data", key)).key)
        message = "no key of this ConfigMap has a configuration ('version: v1' and 'resources:')"
        return TreeError(message, *tree.position(("data",)).key)
    if "resources" in manifest:
        message = "begin with 'version: v1' and 'resources:', not with apiVersion and kind"
        return TreeError(message, *tree.position(("apiVersion",)).key)
    kind = f" ({manifest['kind']})" if isinstance(manifest["kind"], str) else ""
    message = (
        f"a Kubernetes manifest{kind}, not a configuration: that begins with "
        "'version: v1' and 'resources:', or is in a ConfigMap"
    )
    return TreeError(message, at.line, at.column)
