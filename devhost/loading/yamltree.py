"""YAML text to plain data, with the place of everything in it.

The tree is built from the parser's events, not by PyYAML's loader: that way depth, size and
aliases are bounded while reading, duplicate keys are seen, and each value keeps its position
and the text it was written as.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from devhost.loading import syntax

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # a PyYAML built without libyaml: the same language, slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

Path = tuple[str | int, ...]

DEPTH_MAX: Final = 32
NODES_MAX: Final = 100_000
_MERGE: Final = "tag:yaml.org,2002:merge"
_STRING: Final = "tag:yaml.org,2002:str"


class TreeError(Exception):
    """The text is not YAML, or not YAML of a kind that a configuration may use.

    Attributes:
        line: Counted from 1.
        column: Counted from 1.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands, and its key.

    Attributes:
        line: The value's line, counted from 1.
        column: The value's column, counted from 1.
        key: Line and column of its key; of the value where it has none.
        text: A scalar as it is written, without quotes; ``None`` for collections.
        plain: A scalar without quotes.
    """

    line: int
    column: int
    key: tuple[int, int]
    text: str | None = None
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that a mapping has twice."""

    path: Path
    line: int
    column: int
    first_line: int


@dataclass(slots=True)
class Tree:
    """A document: its data, and the places of its values by path.

    Attributes:
        data: Mappings, lists and scalars.
        places: The place of each value; the root has the empty path.
        duplicates: Keys that stand twice in one mapping; the first value counts.
        odd_keys: Keys that are not strings, with the path of their mapping.
    """

    data: Any = None
    places: dict[Path, Place] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    odd_keys: list[tuple[Path, str, int, int]] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """Return the place of ``path``, or of the nearest value around it."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, Place(1, 1, (1, 1)))


def parse(text: str) -> Tree:
    """Read one YAML document.

    Raises:
        TreeError: The text is not one document of plain YAML, or too large or too deep.
    """
    try:
        text.encode()
        return _Builder(text).document()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise TreeError("not UTF-8", line, 1) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        message = syntax.explain(error, text, line, column)
        raise TreeError(message, line + 1, column + 1) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position)
        message = f"{error.reason}: {chr(error.character)!r}" if error.reason else str(error)
        raise TreeError(message, line + 1, 1) from None


@dataclass(slots=True)
class _Node:
    """A parsed value, once for each place that it has, however often it is aliased."""

    event: Any
    tag: str = ""
    items: list["_Node"] = field(default_factory=list)
    pairs: list[tuple["_Node", "_Node"]] = field(default_factory=list)
    open: bool = True

    @property
    def at(self) -> tuple[int, int]:
        mark = self.event.start_mark
        return mark.line + 1, mark.column + 1


class _Builder:
    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_Parser))
        self._resolver = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()
        self._anchors: dict[str, _Node] = {}
        self._nodes = 0
        self._tree = Tree()

    def document(self) -> Tree:
        root: _Node | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._error("only one document is allowed in a file", event)
                root = self._node(next(self._events), 0)
        if root is None:
            raise TreeError("the file is empty: it needs 'version: v1' and 'resources:'", 1, 1)
        self._tree.data = self._value(root, (), root.at)
        return self._tree

    # ── events to nodes ──

    def _node(self, event: Any, depth: int) -> _Node:
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX} levels", event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._error(
                    f"'*{event.anchor}' refers to no anchor; a text that begins with '*' "
                    "must be quoted",
                    event,
                )
            return self._anchors[event.anchor]
        node = _Node(event)
        if event.anchor:
            self._anchors[event.anchor] = node
        if isinstance(event, yaml.ScalarEvent):
            node.tag = self._tag(event)
        elif event.tag:
            raise self._error(f"the tag {event.tag!r} is not supported", event)
        elif isinstance(event, yaml.SequenceStartEvent):
            while not isinstance(following := next(self._events), yaml.SequenceEndEvent):
                node.items.append(self._node(following, depth + 1))
        else:
            while not isinstance(following := next(self._events), yaml.MappingEndEvent):
                key = self._node(following, depth + 1)
                node.pairs.append((key, self._node(next(self._events), depth + 1)))
        node.open = False
        return node

    def _tag(self, event: Any) -> str:
        if event.tag == "!":
            return _STRING
        if event.tag and not event.tag.startswith("tag:yaml.org,2002:"):
            raise self._error(
                f"the tag {event.tag!r} is not supported; a text that begins with '!' "
                "must be quoted",
                event,
            )
        if event.tag:
            return str(event.tag)
        resolve = self._resolver.resolve
        return str(resolve(yaml.ScalarNode, event.value, event.implicit))  # type: ignore[no-untyped-call]

    # ── nodes to data ──

    def _value(self, node: _Node, path: Path, key: tuple[int, int]) -> Any:
        self._count(node, len(path))
        if node.open:
            raise self._error("an alias refers to a value that it is part of", node.event)
        line, column = node.at
        if isinstance(node.event, yaml.ScalarEvent):
            plain = bool(node.event.implicit[0])
            self._tree.places[path] = Place(line, column, key, node.event.value, plain)
            return self._scalar(node)
        self._tree.places[path] = Place(line, column, key)
        node.open = True
        if isinstance(node.event, yaml.SequenceStartEvent):
            data: Any = [
                self._value(item, (*path, index), item.at) for index, item in enumerate(node.items)
            ]
        else:
            data = self._mapping(node, path)
        node.open = False
        return data

    def _count(self, node: _Node, depth: int) -> None:
        """Bound what aliases and merges can make of a small text."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._error(f"more than {NODES_MAX} values, aliases counted", node.event)
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX} levels", node.event)

    def _scalar(self, node: _Node) -> Any:
        event = node.event
        try:
            return self._constructor.construct_object(
                yaml.ScalarNode(node.tag, event.value, event.start_mark, event.end_mark)
            )
        except (ValueError, LookupError, AttributeError, TypeError, yaml.YAMLError):
            # A forced type (!!int b) fails in as many ways as PyYAML has constructors.
            raise self._error(f"{event.value!r} cannot be read; quote it", event) from None

    def _mapping(self, node: _Node, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        merged: list[_Node] = []
        for key, value in node.pairs:
            if key.tag == _MERGE:
                merged += self._merged(value)
                continue
            if key.tag != _STRING:
                self._odd(key, path)
                continue
            name: str = key.event.value
            if name in data:
                self._tree.duplicates.append(Duplicate((*path, name), *key.at, first[name]))
                continue
            first[name] = key.at[0]
            data[name] = self._value(value, (*path, name), key.at)
        for source in merged:
            self._merge(source, path, data, len(path))
        return data

    def _odd(self, key: _Node, path: Path) -> None:
        shown = key.event.value if isinstance(key.event, yaml.ScalarEvent) else "?"
        self._tree.odd_keys.append((path, shown, *key.at))

    @staticmethod
    def _merged(value: _Node) -> list[_Node]:
        return value.items if isinstance(value.event, yaml.SequenceStartEvent) else [value]

    def _merge(self, source: _Node, path: Path, data: dict[str, Any], depth: int) -> None:
        """Add the pairs of ``source`` that ``data`` does not have: earlier keys win."""
        if not isinstance(source.event, yaml.MappingStartEvent) or source.open:
            raise self._error("'<<' needs a mapping, or a list of them", source.event)
        self._count(source, depth)
        source.open = True
        before: Mapping[str, Any] = dict(data)
        first: dict[str, int] = {}
        nested: list[_Node] = []
        for key, value in source.pairs:
            if key.tag == _MERGE:
                nested += self._merged(value)
            elif key.tag != _STRING:
                self._odd(key, path)
            elif (name := key.event.value) in first:
                self._tree.duplicates.append(Duplicate((*path, name), *key.at, first[name]))
            else:
                first[name] = key.at[0]
                if name not in before:
                    data[name] = self._value(value, (*path, name), key.at)
        for inner in nested:
            self._merge(inner, path, data, depth + 1)
        source.open = False

    @staticmethod
    def _error(message: str, event: Any) -> TreeError:
        mark = event.start_mark
        return TreeError(message, mark.line + 1, mark.column + 1)
