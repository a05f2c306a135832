"""The configurations in a file: the file, those of ConfigMaps, or that in the chart's values."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from devhost.config import yaml_errors, yaml_tree
from devhost.config.foreign_words import explain_file
from devhost.config.messages import path_text
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import Extent, Path, Position, Tree
from devhost.errors import Excerpt, Problem, Severity
from devhost.model.names import printable

PROFILES: Final = "the configurations of profiles are not read here; 'devhost validate' checks them"
_MESSAGE_MAX: Final = 1000
_EXCERPT_MAX: Final = 200  # characters
_BEFORE_MAX: Final = 100  # of these, before the problem
_DOCUMENTS_MAX: Final = 100  # the time for each grows with the file
_NEEDS: Final = "needs 'version: v1' and 'resources:'"
_KEYS: Final = frozenset({"version", "resources"})
# What a configuration begins with in the text of a ConfigMap, even where one of the keys is wrong.
_OURS: Final = re.compile(
    r"""^(?:[ \t]*["']?version["']?[ \t]*:[ \t]*["']?v|["']?resources["']?[ \t]*:)""", re.MULTILINE
)
_VALUES: Final = re.compile("^ *config:", re.MULTILINE)  # of the chart, in a string
_HOOK: Final = re.compile("^config:", re.MULTILINE)  # in the ConfigMap of its hook, beside the file
# Where manifests have the values of a chart, as a mapping or a string: Argo CD, Flux, kustomize.
_OF_ARGO: Final = tuple(
    ("spec", source, "helm", values)
    for source in ("source", "sources")
    for values in ("valuesObject", "values")
)
_CHART_VALUES: Final[dict[str, tuple[Path, ...]]] = {
    "Application": _OF_ARGO,
    "ApplicationSet": tuple(("spec", "template", *path) for path in _OF_ARGO),
    "HelmRelease": (("spec", "values"),),
    "Kustomization": (("helmCharts", "valuesInline"),),
}
_STRING: Final = "'config' is a string; remove the '|' after it, so that it is a mapping"
_WITHOUT: Final = "'config' has no list 'resources'; with existingConfigMap, validate the ConfigMap"
_RESOURCE: Final = "a resource: write it as an item of 'resources:', after 'version: v1'"
# What a problem underlines: a string in quotes, a template, a key, or a string without quotes.
_TOKEN: Final = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|\$\{[^}]*\}|[\w./-]+(?=:(?:\s|$))"""
    r"""|(?:(?!\s\#|\s*$|:\s|,\s|[]}]+\s*$).)+"""
)


def brief(message: str) -> str:
    """Return a message as one printable line of limited length."""
    if len(message) > _MESSAGE_MAX:
        half = _MESSAGE_MAX // 2
        message = f"{message[:half]} … {message[-half:]}"
    return printable(message)


@dataclass
class Document:
    """A configuration in a file.

    Attributes:
        lines: The lines that positions count: those of the file, or of `value`.
        name: Which part of the file it is; empty if it is the file.
        base: The path of the document in the file, for messages.
        indent: How much further right the document is in the file.
        value: If it is a string that the file has in another form: the key, and its position.
        start: If it is a literal block: where that begins, with its '|'.
        unread: Where the profiles of the same values are, if these are not read.
        chart: The values of the chart that it is in.
    """

    lines: list[str]
    tree: Tree | TreeError
    name: str = ""
    base: Path = ()
    indent: int = 0
    value: tuple[str, Position] | None = None
    start: Position | None = None
    unread: tuple[int, int] | None = None
    chart: "ChartPart | None" = None

    def problem(
        self, severity: Severity, file: str, path: Path, message: str, at: tuple[int, int]
    ) -> Problem:
        """Return a problem at a position in the document."""
        line, column = at[0], at[1] + self.indent
        if self.start is not None and line <= self.start.line:  # the block as a whole
            line, column = self.start.line, self.start.column
        excerpt = self._excerpt(path, line, column)
        if self.value is not None:
            key, place = self.value
            message = f"line {line}, column {column} of '{key}': {message}"
            line, column = place.line, place.column
        where, text = brief(path_text((*self.base, *path))), brief(message)
        return Problem(severity, file, line, column, where, text, self._resource(path), excerpt)

    def _resource(self, path: Path) -> str:
        """Return the name of the resource that a path is in."""
        if path[:1] != ("resources",) or len(path) == 1 or isinstance(self.tree, TreeError):
            return ""
        resource = self.tree.value(path[:2])
        name = resource.get("name") if isinstance(resource, dict) else None
        return brief(name) if isinstance(name, str) else ""

    def _excerpt(self, path: Path, line: int, column: int) -> Excerpt | None:
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if not text.strip() or column > len(text) + 1:
            return None
        first = max(column - 1 - _BEFORE_MAX, 0) if len(text) > _EXCERPT_MAX else 0
        start = column - 1 - first
        text = text[first : first + _EXCERPT_MAX]
        token = _TOKEN.match(text, start)
        end = max(token.end() if token else 0, start + 1)
        if isinstance(self.tree, Tree):
            value = self.tree.position(path)
            if value.verbatim and (value.line, value.column + self.indent) == (line, column):
                end = start + len(value.text or "") + (0 if value.plain else 2)
        return Excerpt(text, start, min(end, _EXCERPT_MAX), 0 if self.value else line)


@dataclass
class ChartPart:
    """Where a configuration is in values of the chart.

    Attributes:
        document: The document that has the values.
        path: Their path in it.
        profile: The index of the configuration's profile, if it has one.
        is_first: Whether it is the first of the values.
    """

    document: Document
    path: Path
    profile: int | None
    is_first: bool


def documents(text: str, *, profiles: bool) -> list[Document]:
    """Return the configurations in a file, at least one, also those of profiles; or `TreeError`."""
    extent = Extent()
    trees = yaml_tree.parse_all(text, extent)
    first, lines = trees[0], yaml_errors.lines(text)
    manifests = [tree for tree in trees if _is_manifest(tree.data)]
    if len(trees) > 1 and not manifests:
        raise TreeError(yaml_tree.ONE_DOCUMENT, *trees[1].position(()).key)
    parts: Iterator[Document] = _of_values(Document(lines, first), (), profiles)
    if manifests:
        by_manifest = (_of_manifest(lines, tree, (), extent, profiles) for tree in manifests)
        parts = itertools.chain.from_iterable(by_manifest)
    configurations = [*itertools.islice(parts, _DOCUMENTS_MAX + 1)]
    if len(configurations) > _DOCUMENTS_MAX:
        raise TreeError(f"more than {_DOCUMENTS_MAX} configurations in one file", 1, 1)
    if not configurations and manifests:
        tree = manifests[0]
        kind = f" ({tree.data['kind']})" if isinstance(tree.data["kind"], str) else ""
        message = explain_file(text) or (
            f"a Kubernetes manifest{kind} without a configuration: that begins with 'version: v1' "
            "and 'resources:', or is the text of a key of a ConfigMap"
        )
        raise TreeError(message, *tree.position(("kind",))[:2])
    return configurations or [Document(lines, _configuration(first))]


def _is_manifest(data: Any) -> bool:
    return isinstance(data, dict) and "apiVersion" in data and "kind" in data


def _of_manifest(
    lines: list[str], tree: Tree, path: Path, extent: Extent, profiles: bool
) -> Iterator[Document]:
    """Yield the configurations in ConfigMaps, also of a List, and in values of charts."""
    match tree.value(path):
        case {"kind": "List", "items": [*items]} if not path:
            for index in range(len(items)):
                yield from _of_manifest(lines, tree, ("items", index), extent, profiles)
        case {"kind": "ConfigMap", "data": dict() as data}:
            for key, value in data.items():
                is_text = isinstance(value, str) and _OURS.search(value) and not _HOOK.search(value)
                if is_text or (isinstance(value, dict) and _KEYS & value.keys()):
                    yield _of_string(lines, tree, (*path, "data", key), extent)
        case {"kind": str() as kind}:
            for keys in _CHART_VALUES.get(kind, ()):
                for place in _places(tree.value(path), keys):
                    full = (*path, *place)
                    document = Document(lines, tree)
                    if _VALUES.search(str(tree.value(full))):  # a string
                        document, full = _of_string(lines, tree, full, extent, is_values=True), ()
                    yield from _of_values(document, full, profiles)


def _places(value: Any, keys: Path) -> Iterator[Path]:
    """Yield the paths of values below some keys, also of each item of a list."""
    if isinstance(value, list) and keys:
        for index, item in enumerate(value):
            yield from ((index, *path) for path in _places(item, keys))
    elif not keys:
        yield ()
    elif isinstance(value, dict) and keys[0] in value:
        yield from ((keys[0], *path) for path in _places(value[keys[0]], keys[1:]))


def _of_string(
    lines: list[str], tree: Tree, path: Path, extent: Extent, *, is_values: bool = False
) -> Document:
    """Return the document in a string; a literal block keeps its lines, others do not."""
    tree.refuse_problems(path)
    value, position, key = tree.value(path), tree.position(path), str(path[-1])
    if not isinstance(value, str):
        raise TreeError(f"not a text, but a mapping; write '{key}: |'", *position.key)
    base = path if is_values else ()
    metadata = None if is_values else tree.value(path[:-2]).get("metadata")
    config_map = metadata.get("name") if isinstance(metadata, dict) else None
    name = f"{key} of ConfigMap {config_map}" if isinstance(config_map, str) else key
    mark = lines[position.line - 1][position.column - 1 : position.column]
    if mark != "|":
        tree_or_error = _parse(value, extent, is_values)
        if mark == ">" and isinstance(tree_or_error, TreeError):
            tree_or_error = TreeError("'>' joins its lines; write '|'", 1, 1)
        return Document(yaml_errors.lines(value), tree_or_error, name, base, value=(key, position))
    written = next(filter(str.strip, itertools.islice(lines, position.line, None)), "")
    first = next(filter(str.strip, yaml_errors.lines(value)), "")
    above = "\n" * position.line  # so that messages have the numbers of the file's lines
    tree_or_error, indent = _parse(above + value, extent, is_values), len(written) - len(first)
    return Document(lines, tree_or_error, name, base, indent, start=position)


def _parse(text: str, extent: Extent, is_values: bool) -> Tree | TreeError:
    try:
        tree = yaml_tree.parse(text, extent)
        return tree if is_values else _configuration(tree)
    except TreeError as error:
        return error


def _of_values(document: Document, path: Path, profiles: bool) -> Iterator[Document]:
    """Yield the configurations in the values of the chart, also if it is a dependency."""
    tree = document.tree
    if isinstance(tree, TreeError):
        yield document
        return
    data = tree.value(path)
    if not isinstance(data, dict) or "version" in data or isinstance(data.get("resources"), list):
        return  # a mapping `resources` is of the pods: their CPU and memory
    for key in ((), *((key,) for key, value in data.items() if isinstance(value, dict))):
        base = (*path, *key)
        main = _configs(tree, base, ("config",))
        of_profiles = _configs(tree, base, ("profiles", "config"))
        of_profiles = [place for place in of_profiles if isinstance(place[-2], int)]
        unread = tree.position((*base, "profiles")).key if of_profiles and not profiles else None
        if unread is not None and not main:
            raise TreeError(PROFILES, *unread)
        configs = main if unread else (*main, *of_profiles)
        for config in configs:
            tree.refuse_problems(config)
            subtree = tree.subtree(config)
            profile = None if config in main else int(config[-2])
            if profile is None:  # the chart's defaults
                subtree.data = {"version": "v1", "resources": [], **subtree.data}
            subtree.data.pop("existingConfigMap", None)
            yield replace(
                document,
                tree=subtree,
                name=path_text((*document.base, *config)),
                base=(*document.base, *config),
                unread=unread,
                chart=ChartPart(document, base, profile, config == configs[0]),
            )


def _configs(tree: Tree, base: Path, keys: Path) -> list[Path]:
    """Return the paths of configurations that are not those of other ConfigMaps."""
    places = [(*base, *place) for place in _places(tree.value(base), keys)]
    configs = [place for place in places if isinstance(tree.value(place), dict)]
    return [place for place in configs if _KEYS & tree.value(place).keys()]


def _configuration(tree: Tree) -> Tree:
    """Return the tree of a configuration, right or wrong; a `TreeError` for what is none."""
    data, at = tree.data, tree.position(()).key
    if isinstance(data, dict) and isinstance(data.get("resources"), list):
        return tree
    if message := explain_file(str(data)):
        raise TreeError(message, *at)
    if isinstance(data, dict) and _OURS.search(str(data.get("config"))):
        raise TreeError(_STRING, *tree.position(("config",)).key)
    items = data if isinstance(data, list) else [data]
    if any(isinstance(item, dict) and "sources" in item for item in items):
        raise TreeError(_RESOURCE, *at)
    if isinstance(data, dict) and "config" in data and not _KEYS & data.keys():
        raise TreeError(_WITHOUT, *tree.position(("config",)).key)
    if not isinstance(data, dict):
        problem = "the file is empty" if data is None else "not a mapping"
        raise TreeError(f"{problem}; {_NEEDS}", 1, 1)
    if not any(key.lower().startswith(("version", "resource")) for key in data):
        raise TreeError(f"not a configuration; {_NEEDS}", 1, 1)
    return tree  # one of the keys is misspelt
