"""YAML text to plain data, with the place of everything in it.

The tree is built from the parser's events, not by PyYAML's loader: that way depth, size and
aliases are bounded while reading, duplicate keys are seen, and each value keeps its position
and the text it was written as.
"""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml

from devhost.immutable import immutable
from devhost.loading import scalars, syntax
from devhost.loading.nodes import DEPTH_MAX, NODES_MAX, Node, Reader
from devhost.loading.syntax import TreeError, error_at

Path = tuple[str | int, ...]

TEXT_MAX: Final = 4 << 20  # characters, where aliases repeat them


class Place(NamedTuple):
    """Where a value stands, and its key.

    Attributes:
        line: The value's line, counted from 1.
        column: The value's column, counted from 1.
        key: Line and column of its key; of the value where it has none.
        text: A scalar as it is written, without quotes; ``None`` for collections.
        plain: A scalar without quotes.
        verbatim: The file has ``text`` as it is, on one line, at this place.
    """

    line: int
    column: int
    key: tuple[int, int]
    text: str | None = None
    plain: bool = False
    verbatim: bool = False


@immutable
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

    def value(self, path: Path) -> Any:
        """Return what stands at ``path``, which is there."""
        value = self.data
        for part in path:
            value = value[part]
        return value


def parse(text: str) -> Tree:
    """Read one YAML document.

    Raises:
        TreeError: The text is not one document of plain YAML, or too large or too deep.
    """
    try:
        text.encode()
        return _Builder(text).document()
    except UnicodeEncodeError as error:
        place = syntax.position_after(text[: error.start])
        raise TreeError("not UTF-8", *place) from None
    except yaml.MarkedYAMLError as error:
        raise syntax.explained(error, text) from None
    except yaml.reader.ReaderError as error:
        # Its position counts bytes or characters, depending on the parser.
        character = chr(error.character)
        place = syntax.position_after(text[: max(text.find(character), 0)])
        raise TreeError(f"{error.reason}: {character!r}", *place) from None


def _place(scalar: Any, key: tuple[int, int]) -> Place:
    """Return the place of a scalar."""
    start, end, text = scalar.start_mark, scalar.end_mark, scalar.value
    plain = bool(scalar.implicit[0])
    written = len(text) if plain else len(text) + 2  # the quotes
    verbatim = start.line == end.line and end.column - start.column == written
    return Place(start.line + 1, start.column + 1, key, text, plain, verbatim)


class _Builder:
    def __init__(self, text: str) -> None:
        self._root = Reader(text).root()
        self._nodes = 0
        self._text = 0
        self._tree = Tree()

    def document(self) -> Tree:
        self._tree.data = self._value(self._root, (), self._root.at)
        return self._tree

    def _value(self, node: Node, path: Path, key: tuple[int, int]) -> Any:
        self._count(node, len(path))
        if node.open:
            raise error_at("an alias refers to a value that it is part of", node.event)
        line, column = node.at
        if isinstance(node.event, yaml.ScalarEvent):
            self._tree.places[path] = _place(node.event, key)
            return self._scalar(node.tag, node.event)
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

    def _count(self, node: Node, depth: int, values: int = 1) -> None:
        """Bound what aliases and merges can make of a small text."""
        self._nodes += values
        if self._nodes > NODES_MAX:
            raise error_at(f"more than {NODES_MAX} values, aliases counted", node.event)
        if depth > DEPTH_MAX:
            raise error_at(f"nested deeper than {DEPTH_MAX} levels", node.event)

    def _count_text(self, event: Any) -> str:
        """Return a scalar's text, which aliases must not repeat beyond measure either."""
        text: str = event.value
        self._text += len(text)
        if self._text > TEXT_MAX:
            raise error_at(f"more than {TEXT_MAX} characters, aliases counted", event)
        return text

    def _scalar(self, tag: str, event: Any) -> Any:
        try:
            return scalars.value(tag, self._count_text(event))
        except ValueError as error:
            raise error_at(str(error), event) from None

    def _mapping(self, node: Node, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        merged: list[Node] = []
        for key, value in node.pairs:
            if key.tag == scalars.MERGE:
                merged.append(value)
                continue
            if key.tag != scalars.STRING:
                self._odd(key, path)
                continue
            name = self._count_text(key.event)
            if name in data:
                self._tree.duplicates.append(Duplicate((*path, name), *key.at, first[name]))
                continue
            first[name] = key.at[0]
            data[name] = self._value(value, (*path, name), key.at)
        self._merge_all(merged, path, data, len(path))
        return data

    def _odd(self, key: Node, path: Path) -> None:
        shown = key.event.value if isinstance(key.event, yaml.ScalarEvent) else "?"
        self._tree.odd_keys.append((path, shown, *key.at))

    def _merge_all(self, values: list[Node], path: Path, data: dict[str, Any], depth: int) -> None:
        """Merge the values of a mapping's ``<<``: mappings, or lists of them."""
        for value in values:
            several = isinstance(value.event, yaml.SequenceStartEvent)
            for source in value.items if several else [value]:
                self._merge(source, path, data, depth)

    def _merge(self, source: Node, path: Path, data: dict[str, Any], depth: int) -> None:
        """Add the pairs of ``source`` that ``data`` does not have: earlier keys win."""
        if not isinstance(source.event, yaml.MappingStartEvent) or source.open:
            raise error_at("'<<' needs a mapping, or a list of them", source.event)
        self._count(source, depth, 1 + len(source.pairs))
        source.open = True
        first: dict[str, int] = {}
        nested: list[Node] = []
        for key, value in source.pairs:
            if key.tag == scalars.MERGE:
                nested.append(value)
            elif key.tag != scalars.STRING:
                self._odd(key, path)
            elif (name := self._count_text(key.event)) in first:
                self._tree.duplicates.append(Duplicate((*path, name), *key.at, first[name]))
            else:
                first[name] = key.at[0]
                if name not in data:
                    data[name] = self._value(value, (*path, name), key.at)
        self._merge_all(nested, path, data, depth + 1)
        source.open = False
