"""The parser's events to nodes: what is written, aliases still shared, size and depth bounded."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from devhost.loading import scalars
from devhost.loading.syntax import TreeError, error_at, position_after

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # a PyYAML built without libyaml: the same language, slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

DEPTH_MAX: Final = 32
NODES_MAX: Final = 100_000
DIRECTIVES_MAX: Final = 100  # the parser compares each with each
_DIRECTIVE: Final = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")


@dataclass(slots=True)
class Node:
    """A value as it is written: one, however often it is aliased.

    Attributes:
        event: The parser's: a scalar, or the beginning of a collection.
        tag: A scalar's type.
        items: What a list holds.
        pairs: What a mapping holds.
        open: It is being read, so that an alias to it is inside of it.
    """

    event: Any
    tag: str = ""
    items: Sequence["Node"] = ()
    pairs: Sequence[tuple["Node", "Node"]] = ()
    open: bool = True

    @property
    def at(self) -> tuple[int, int]:
        """Line and column, counted from 1."""
        mark = self.event.start_mark
        return mark.line + 1, mark.column + 1


class Reader:
    """Reads the one document of a text."""

    def __init__(self, text: str) -> None:
        if len(directives := [*_DIRECTIVE.finditer(text)]) > DIRECTIVES_MAX:
            line, _ = position_after(text[: directives[DIRECTIVES_MAX].end()])
            raise TreeError(f"more than {DIRECTIVES_MAX} lines that begin with %TAG", line, 1)
        self._events: Iterator[Any] = iter(_Parser(text).get_event, None)
        self._anchors: dict[str, Node] = {}
        self._read = 0

    def root(self) -> Node:
        """Return what the document is.

        Raises:
            TreeError: There is not one document, or it is too large or too deep.
            YAMLError: The text is not YAML.
        """
        root: Node | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise error_at("only one document is allowed in a file", event)
                root = self._node(next(self._events), 0)
        if root is None:
            raise TreeError("the file is empty: it needs 'version: v1' and 'resources:'", 1, 1)
        return root

    def _node(self, event: Any, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise error_at(f"nested deeper than {DEPTH_MAX} levels", event)
        self._read += 1
        if self._read > 2 * NODES_MAX:  # keys and values
            raise error_at(f"more than {NODES_MAX} values", event)
        if isinstance(event, yaml.AliasEvent):
            return self._anchored(event)
        node = Node(event)
        if event.anchor:
            self._anchors[event.anchor] = node
        if isinstance(event, yaml.ScalarEvent):
            node.tag = self._tag(event)
        elif event.tag:
            raise error_at(f"the tag {event.tag!r} is not supported", event)
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

    def _anchored(self, event: Any) -> Node:
        if event.anchor not in self._anchors:
            raise error_at(
                f"'*{event.anchor}' refers to no anchor; a text that begins with '*' "
                "must be quoted",
                event,
            )
        return self._anchors[event.anchor]

    def _tag(self, event: Any) -> str:
        try:
            return scalars.tag(event.tag, event.value, event.implicit)
        except ValueError as error:
            raise error_at(str(error), event) from None
