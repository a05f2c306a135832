"""YAML text to plain data, with the position of everything in it.

The tree is built from the parser's events, not by PyYAML's loader: that way depth, size and
aliases are bounded while reading, duplicate keys are seen, and each value keeps its position
and the text it was written as.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import yaml

from devhost.errors import Severity
from devhost.immutable import immutable
from devhost.loading import scalars, syntax
from devhost.loading.syntax import error_at
from devhost.loading.syntax_error import TreeError
from devhost.loading.yamlnodes import DEPTH_MAX, NODES_MAX, Reader, YamlNode

Path = tuple[str | int, ...]
# What a check found: how bad, where, the message, and whether to point at the key or the value.
Finding = tuple[Severity, Path, str, bool]

TEXT_MAX: Final = 4 << 20  # characters, where aliases repeat them


class Position(NamedTuple):
    """Where a value is in the text, and its key.

    Attributes:
        line: The value's line, counted from 1.
        column: The value's column, counted from 1.
        key: Line and column of its key, or of the value itself if it has no key.
        text: A scalar as written, without quotes; ``None`` for collections.
        plain: Whether the value is a scalar without quotes.
        verbatim: Whether the file has exactly ``text`` here, on one line.
    """

    line: int
    column: int
    key: tuple[int, int]
    text: str | None = None
    plain: bool = False
    verbatim: bool = False


@immutable
class Duplicate:
    """A second definition of a key in one mapping."""

    path: Path
    line: int
    column: int
    first_line: int

    @property
    def message(self) -> str:
        """What is wrong."""
        return f"duplicate key (first defined on line {self.first_line})"


@dataclass(slots=True)
class Tree:
    """A document: its data, and the positions of its values by path.

    Attributes:
        data: Mappings, lists and scalars.
        positions: The position of each value; the root has the empty path.
        duplicates: Keys that are defined again in one mapping; the first value is used.
        non_string_keys: Keys that are not strings, with the path of their mapping.
        start: Line and column where the document begins.
    """

    data: Any = None
    positions: dict[Path, Position] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    non_string_keys: list[tuple[Path, str, int, int]] = field(default_factory=list)
    start: tuple[int, int] = (1, 1)

    def position(self, path: Path) -> Position:
        """Return the position of ``path``, or of the nearest value that contains it."""
        while path not in self.positions and path:
            path = path[:-1]
        return self.positions.get(path, Position(1, 1, (1, 1)))

    def known(self, path: Path) -> Path:
        """Drop the parts of a path that are not there: shorthands' options and union tags."""
        kept: Path = ()
        for part in path:
            if (*kept, part) in self.positions:
                kept = (*kept, part)
        return kept

    def below(self, path: Path) -> "Tree":
        """Return the document that the value at ``path``, which must exist, is by itself."""
        size = len(path)

        def within(other: Path) -> bool:
            return other[:size] == path

        return Tree(
            self.value(path),
            {key[size:]: at for key, at in self.positions.items() if within(key)},
            [replace(one, path=one.path[size:]) for one in self.duplicates if within(one.path)],
            [(one[0][size:], *one[1:]) for one in self.non_string_keys if within(one[0])],
        )

    def value(self, path: Path) -> Any:
        """Return the value at ``path``, which must exist."""
        value = self.data
        for part in path:
            value = value[part]
        return value

    def refuse_duplicates(self, path: Path) -> None:
        """Refuse a second definition of a value, or of what contains it.

        Raises:
            TreeError: There is one, which other programs may take.
        """
        for one in self.duplicates:
            if path[: len(one.path)] == one.path:
                raise TreeError(one.message, one.line, one.column)


@dataclass(slots=True)
class Extent:
    """How much was read: aliases and merges can make much of a small text.

    Attributes:
        nodes: The number of values.
        text: The characters in them.
    """

    nodes: int = 0
    text: int = 0


def parse(text: str, extent: Extent | None = None) -> Tree:
    """Read one YAML document.

    Args:
        text: The document.
        extent: What was read before, of a file that contains several texts.

    Raises:
        TreeError: The text is not a single document of plain YAML, or is too large or too deep.
    """
    first, *others = parse_all(text, extent)
    if others:
        message = "only one YAML document is allowed per file"
        raise TreeError(message, *others[0].start)
    return first


def parse_all(text: str, extent: Extent | None = None) -> list[Tree]:
    """Read YAML documents, at least one; arguments as of `parse`.

    Raises:
        TreeError: The text is not plain YAML, or is too large or too deep.
    """
    try:
        text.encode()
        roots, builder = Reader(text).roots(), _Builder(extent or Extent())
        return [builder.document(root, start) for start, root in roots]
    except UnicodeEncodeError as error:
        position = syntax.position_after(text[: error.start])
        raise TreeError("not UTF-8", *position) from None
    except yaml.MarkedYAMLError as error:
        raise syntax.explained(error, text) from None
    except yaml.reader.ReaderError as error:
        # error.position counts bytes or characters, depending on the parser.
        character = chr(error.character)
        position = syntax.position_after(text[: max(text.find(character), 0)])
        raise TreeError(f"{error.reason}: {character!r}", *position) from None


def _scalar_position(scalar: Any, key: tuple[int, int]) -> Position:
    start, end, text = scalar.start_mark, scalar.end_mark, scalar.value
    plain = bool(scalar.implicit[0])
    written = len(text) if plain else len(text) + 2  # the quotes
    verbatim = start.line == end.line and end.column - start.column == written
    return Position(start.line + 1, start.column + 1, key, text, plain, verbatim)


class _Builder:
    def __init__(self, extent: Extent) -> None:
        self._extent = extent
        self._tree = Tree()

    def document(self, root: YamlNode, start: tuple[int, int]) -> Tree:
        self._tree = Tree(start=start)
        self._tree.data = self._value(root, (), root.at)
        return self._tree

    def _value(self, node: YamlNode, path: Path, key: tuple[int, int]) -> Any:
        self._count(node, len(path))
        if node.open:
            raise error_at("alias refers to a value that contains it", node.event)
        line, column = node.at
        if isinstance(node.event, yaml.ScalarEvent):
            self._tree.positions[path] = _scalar_position(node.event, key)
            return self._scalar(node.tag, node.event)
        self._tree.positions[path] = Position(line, column, key)
        node.open = True
        if isinstance(node.event, yaml.SequenceStartEvent):
            data: Any = [
                self._value(item, (*path, index), item.at) for index, item in enumerate(node.items)
            ]
        else:
            data = self._mapping(node, path)
        node.open = False
        return data

    def _count(self, node: YamlNode, depth: int, values: int = 1) -> None:
        """Limit how far aliases and merges can expand a small text."""
        self._extent.nodes += values
        if self._extent.nodes > NODES_MAX:
            raise error_at(f"more than {NODES_MAX} values, including aliases", node.event)
        if depth > DEPTH_MAX:
            raise error_at(f"nested deeper than {DEPTH_MAX} levels", node.event)

    def _count_text(self, event: Any) -> str:
        """Return a scalar's text; limits how much text aliases can repeat."""
        text: str = event.value
        self._extent.text += len(text)
        if self._extent.text > TEXT_MAX:
            raise error_at(f"more than {TEXT_MAX} characters, including aliases", event)
        return text

    def _scalar(self, tag: str, event: Any) -> Any:
        try:
            return scalars.value(tag, self._count_text(event))
        except ValueError as error:
            raise error_at(str(error), event) from None

    def _mapping(self, node: YamlNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        self._add(node, path, data, len(path))
        return data

    def _add(self, node: YamlNode, path: Path, data: dict[str, Any], depth: int) -> None:
        """Add the pairs of a mapping whose keys ``data`` does not have yet."""
        first: dict[str, int] = {}
        merged: list[YamlNode] = []
        for key, value in node.pairs:
            if key.tag == scalars.MERGE:
                merged.append(value)
            elif key.tag != scalars.STRING:
                self._non_string(key, path)
            elif (name := self._count_text(key.event)) in first:
                self._tree.duplicates.append(Duplicate((*path, name), *key.at, first[name]))
            else:
                first[name] = key.at[0]
                if name not in data:
                    data[name] = self._value(value, (*path, name), key.at)
        for value in merged:
            several = isinstance(value.event, yaml.SequenceStartEvent)
            for source in value.items if several else [value]:
                self._merge(source, path, data, depth)

    def _non_string(self, key: YamlNode, path: Path) -> None:
        shown = key.event.value if isinstance(key.event, yaml.ScalarEvent) else "?"
        self._tree.non_string_keys.append((path, shown, *key.at))

    def _merge(self, source: YamlNode, path: Path, data: dict[str, Any], depth: int) -> None:
        """Add the pairs of a value of ``<<``, or of an item of it."""
        if not isinstance(source.event, yaml.MappingStartEvent) or source.open:
            raise error_at("'<<' needs a mapping or a list of mappings", source.event)
        self._count(source, depth, 1 + len(source.pairs))
        source.open = True
        self._add(source, path, data, depth + 1)
        source.open = False
