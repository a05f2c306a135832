"""The parser's events as nodes: aliases are still shared, size and depth are limited."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from devhost.loading import scalars
from devhost.loading.syntax import error_at, position_after
from devhost.loading.syntax_error import TreeError

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # PyYAML was built without libyaml: same language, slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

DEPTH_MAX: Final = 32
NODES_MAX: Final = 100_000
DIRECTIVES_MAX: Final = 100  # the parser takes quadratic time
_DIRECTIVE: Final = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")


@dataclass(slots=True)
class YamlNode:
    """A value as written: a single node, however many aliases refer to it.

    Attributes:
        event: The parser's event: a scalar or the start of a collection.
        tag: The type of a scalar.
        items: The items of a list.
        pairs: The keys and values of a mapping.
        open: Whether the node is still being read: an alias to it is then part of it.
    """

    event: Any
    tag: str = ""
    items: Sequence["YamlNode"] = ()
    pairs: Sequence[tuple["YamlNode", "YamlNode"]] = ()
    open: bool = True

    @property
    def at(self) -> tuple[int, int]:
        """Line and column, counted from 1."""
        mark = self.event.start_mark
        return mark.line + 1, mark.column + 1


class Reader:
    """Reads the documents of a text."""

    def __init__(self, text: str) -> None:
        if len(directives := [*_DIRECTIVE.finditer(text)]) > DIRECTIVES_MAX:
            line, _ = position_after(text[: directives[DIRECTIVES_MAX].end()])
            raise TreeError(f"more than {DIRECTIVES_MAX} %TAG directives", line, 1)
        self._events: Iterator[Any] = iter(_Parser(text).get_event, None)
        self._anchors: dict[str, YamlNode] = {}
        self._read = 0

    def roots(self) -> list[tuple[tuple[int, int], YamlNode]]:
        """Return where each document begins and its root node, at least one.

        Raises:
            TreeError: There is no document, or one is too deep, or all are too large.
            YAMLError: The text is not YAML.
        """
        roots: list[tuple[tuple[int, int], YamlNode]] = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                start = YamlNode(event).at
                roots.append((start, self._node(next(self._events), 0)))
        if not roots:
            raise TreeError("the file is empty; needs 'version: v1' and 'resources:'", 1, 1)
        return roots

    def _node(self, event: Any, depth: int) -> YamlNode:
        if depth > DEPTH_MAX:
            raise error_at(f"nested deeper than {DEPTH_MAX} levels", event)
        self._read += 1
        if self._read > 2 * NODES_MAX:  # keys and values
            raise error_at(f"more than {NODES_MAX} values", event)
        if isinstance(event, yaml.AliasEvent):
            return self._anchored(event)
        node = YamlNode(event)
        if event.anchor:
            self._anchors[event.anchor] = node
        if isinstance(event, yaml.ScalarEvent):
            node.tag = self._tag(event)
        elif event.tag:
            raise error_at(f"unsupported tag {event.tag!r}", event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node.items = items = []
            while not isinstance(following := next(self._events), yaml.SequenceEndEvent):
                items.append(self._node(following, depth + 1))
        else:
            node.pairs = pairs = []
            while not isinstance(following := next(self._events), yaml.MappingEndEvent):
                key = self._node(following, depth + 1)
                pairs.append((key, self._node(next(self._events), depth + 1)))
        node.open = False
        return node

    def _anchored(self, event: Any) -> YamlNode:
        if event.anchor not in self._anchors:
            raise error_at(
                f"undefined alias '*{event.anchor}'; quote a string that begins with '*'",
                event,
            )
        return self._anchors[event.anchor]

    def _tag(self, event: Any) -> str:
        try:
            return scalars.tag(event.tag, event.value, event.implicit)
        except ValueError as error:
            raise error_at(str(error), event) from None
