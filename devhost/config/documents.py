"""The configurations in a file: the file, those of ConfigMaps, or that in the chart's values."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from devhost.config import yaml_errors, yaml_tree
from devhost.config.messages import path_text
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import CheckProblem, Extent, Path, Position, Tree
from devhost.errors import Excerpt, Problem
from devhost.model.names import printable

PROFILES: Final = "the configurations of profiles are not read here; 'devhost validate' checks them"
_MESSAGE_MAX: Final = 1000
_EXCERPT_MAX: Final = 200  # characters
_BEFORE_MAX: Final = 100  # of these, before the problem
_DOCUMENTS_MAX: Final = 100  # the time for each grows with the file
_NEEDS: Final = "needs 'version: v1' and 'resources:'"
_CONVERTED: Final = (
    "'devhost convert' translates pods, Compose files and settings of other device plugins"
)
_KEYS: Final = frozenset({"version", "resources"})
# What a configuration begins with in the text of a ConfigMap, even where one of the keys is wrong.
_OURS: Final = re.compile(
    r"""^(?:[ \t]*["']?version["']?[ \t]*:[ \t]*["']?v|["']?resources["']?[ \t]*:)""", re.MULTILINE
)
_HOOK: Final = re.compile("^config:", re.MULTILINE)  # in the ConfigMap of its hook, beside the file
# Where manifests of Argo CD and Flux have the values of a chart.
_CHART_VALUES: Final[dict[str, tuple[Path, ...]]] = {
    "Application": (
        ("spec", "source", "helm", "valuesObject"),
        ("spec", "sources", "helm", "valuesObject"),
    ),
    "HelmRelease": (("spec", "values"),),
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
        chart: The values of the chart that it is in.
    """

    lines: list[str]
    tree: Tree
    name: str = ""
    base: Path = ()
    indent: int = 0
    value: tuple[str, Position] | None = None
    start: Position | None = None
    chart: "ChartPart | None" = None

    def problem(self, file: str, problem: CheckProblem) -> Problem:
        """Return a problem in the document as one in its file."""
        severity, path, message, *_ = problem
        line, column = self.tree.place(problem)
        column += self.indent
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
        if path[:1] != ("resources",) or len(path) == 1:
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
        value = self.tree.position(path)
        if value.verbatim and (value.line, value.column + self.indent) == (line, column):
            end = start + len(value.text or "") + (0 if value.plain else 2)
        return Excerpt(text, start, min(end, _EXCERPT_MAX), 0 if self.value else line)


@dataclass
class ChartPart:
    """Where a configuration is in values of the chart.

    Attributes:
        tree: The document that has the values.
        path: Their path in it.
        profile: The index of the configuration's profile, if it has one.
        is_first: Whether it is the first of the values.
        unread: Where the profiles of the same values are, if these are not read.
    """

    tree: Tree
    path: Path
    profile: int | None
    is_first: bool
    unread: tuple[int, int] | None


def documents(text: str, *, profiles: bool) -> list[Document]:
    """Return the configurations in a file, at least one, also those of profiles; or `TreeError`."""
    extent = Extent()
    trees = yaml_tree.parse_all(text, extent)
    first, lines = trees[0], yaml_errors.lines(text)
    manifests = [tree for tree in trees if _is_manifest(tree.data)]
    if len(trees) > 1 and not manifests:
        raise TreeError(yaml_tree.ONE_DOCUMENT, *trees[1].position(()).key)
    parts: Iterator[Document] = _of_values(lines, first, (), profiles)
    if manifests:
        by_manifest = (_of_manifest(lines, tree, (), extent, profiles) for tree in manifests)
        parts = itertools.chain.from_iterable(by_manifest)
    configurations = [*itertools.islice(parts, _DOCUMENTS_MAX + 1)]
    if len(configurations) > _DOCUMENTS_MAX:
        raise TreeError(f"more than {_DOCUMENTS_MAX} configurations in one file", 1, 1)
    if not configurations and manifests:
        tree = manifests[0]
        kind = f" ({tree.data['kind']})" if isinstance(tree.data["kind"], str) else ""
        message = (
            f"a Kubernetes manifest{kind} without a configuration, which is the text of a key of a "
            f"ConfigMap; 'helm template' renders charts, {_CONVERTED}"
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
                    yield from _of_values(lines, tree, (*path, *place), profiles)


def _places(value: Any, keys: Path) -> Iterator[Path]:
    """Yield the paths of values below some keys, also of each item of a list."""
    if isinstance(value, list) and keys:
        for index, item in enumerate(value):
            yield from ((index, *path) for path in _places(item, keys))
    elif not keys:
        yield ()
    elif isinstance(value, dict) and keys[0] in value:
        yield from ((keys[0], *path) for path in _places(value[keys[0]], keys[1:]))


def _of_string(lines: list[str], tree: Tree, path: Path, extent: Extent) -> Document:
    """Return the document in a string; a literal block keeps its lines, others do not."""
    tree.refuse_problems(path)
    value, position, key = tree.value(path), tree.position(path), str(path[-1])
    if not isinstance(value, str):
        raise TreeError(f"not a text, but a mapping; write '{key}: |'", *position.key)
    metadata = tree.value(path[:-2]).get("metadata")
    config_map = metadata.get("name") if isinstance(metadata, dict) else None
    name = f"{key} of ConfigMap {config_map}" if isinstance(config_map, str) else key
    mark = lines[position.line - 1][position.column - 1 : position.column]
    if mark != "|":
        content = _parse(value, extent)
        if mark == ">" and content.data is None:
            content = Tree.unreadable(TreeError("'>' joins its lines; write '|'", 1, 1))
        return Document(yaml_errors.lines(value), content, name, value=(key, position))
    written = next(filter(str.strip, itertools.islice(lines, position.line, None)), "")
    first = next(filter(str.strip, yaml_errors.lines(value)), "")
    above = "\n" * position.line  # so that messages have the numbers of the file's lines
    content, indent = _parse(above + value, extent), len(written) - len(first)
    return Document(lines, content, name, indent=indent, start=position)


def _parse(text: str, extent: Extent) -> Tree:
    try:
        return _configuration(yaml_tree.parse(text, extent))
    except TreeError as error:
        return Tree.unreadable(error)


def _of_values(lines: list[str], tree: Tree, path: Path, profiles: bool) -> Iterator[Document]:
    """Yield the configurations in the values of the chart, also if it is a dependency."""
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
            chart = ChartPart(tree, base, profile, config == configs[0], unread)
            yield Document(lines, subtree, path_text(config), base=config, chart=chart)


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
    if isinstance(data, dict) and _OURS.search(str(data.get("config"))):
        raise TreeError(_STRING, *tree.position(("config",)).key)
    items = data if isinstance(data, list) else [data]
    if any(isinstance(item, dict) and "sources" in item for item in items):
        raise TreeError(_RESOURCE, *at)
    if isinstance(data, dict) and "config" in data and not _KEYS & data.keys():
        raise TreeError(_WITHOUT, *tree.position(("config",)).key)
    if data is None:
        raise TreeError(f"the file is empty; {_NEEDS}", 1, 1)
    if not isinstance(data, dict) or not any(
        key.lower().startswith(("version", "resource")) for key in data
    ):
        raise TreeError(f"not a configuration; {_NEEDS}; {_CONVERTED}", 1, 1)
    return tree  # one of the keys is misspelt
