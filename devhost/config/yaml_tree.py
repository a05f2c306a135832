"""YAML text to plain data with positions; bounded, also in what aliases and merges make of it."""

import functools
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from devhost.config import yaml_errors
from devhost.config.foreign_words import explain_template
from devhost.config.yaml_errors import TreeError, error_at, place
from devhost.errors import Severity

Path = tuple[str | int, ...]

ONE_DOCUMENT: Final = "only one YAML document is allowed per file"
DEPTH_MAX: Final = 32
NODES_MAX: Final = 50_000
TEXT_MAX: Final = 4 << 20  # characters, where aliases repeat them
DIRECTIVES_MAX: Final = 100  # libyaml takes quadratic time, in one call that stops all threads
_DIRECTIVE: Final = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")
_TAG: Final = "tag:yaml.org,2002:"
_STRING: Final = f"{_TAG}str"
_MERGE: Final = f"{_TAG}merge"
_VALUE: Final = f"{_TAG}value"
_COLLECTIONS: Final = (f"{_TAG}map", f"{_TAG}seq")
_BOOLEANS: Final = dict.fromkeys(("yes", "true", "on"), True) | dict.fromkeys(
    ("no", "false", "off"), False
)
# What Helm's reader, as those of YAML 1.2, takes for a number, and PyYAML does not: serial numbers
# of digits with a 0 in front, or with one E; and Helm's truth values of one letter.
_AMBIGUOUS: Final = re.compile(
    r"[-+]?(?:\.?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9_]+)?|0[xX][0-9a-fA-F_]+|0o[0-7_]+)|[yYnN]"
)
_INT: Final = re.compile("[-+]?(0{1,20}|[1-9][0-9]{0,20}|0x[0-9a-fA-F]{1,20})")


class CheckProblem(NamedTuple):
    """A problem of a value or, ``on_key``, of its key; or ``at`` another line and column."""

    severity: Severity
    path: Path
    message: str
    on_key: bool = False
    at: tuple[int, int] | None = None

    def below(self, base: Path) -> "CheckProblem":
        """Return the same problem with the path of what contains the value."""
        return self._replace(path=(*base, *self.path))


error: Final = functools.partial(CheckProblem, "error")
warning: Final = functools.partial(CheckProblem, "warning")
note: Final = functools.partial(CheckProblem, "note")


class Position(NamedTuple):
    """Where a value is in the text, counted from 1, and its key.

    Attributes:
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


@dataclass(slots=True)
class Tree:
    """A document: its data, and the positions of its values by path.

    Attributes:
        data: ``None`` also of a text that is no document, which has one problem.
        positions: The position of each value; the root has the empty path.
        problems: Keys that are defined again in one mapping, of which the first value is used, and
            keys that are not strings, with the path of their mapping.
        ambiguous: Strings and keys without quotes that are none to other readers of YAML.
    """

    data: Any = None
    positions: dict[Path, Position] = field(default_factory=dict)
    problems: list[CheckProblem] = field(default_factory=list)
    ambiguous: list[CheckProblem] = field(default_factory=list)

    @classmethod
    def unreadable(cls, reason: TreeError) -> "Tree":
        """Return what stands for a text that cannot be read."""
        return cls(problems=[error((), str(reason), at=(reason.line, reason.column))])

    def position(self, path: Path) -> Position:
        """Return the position of ``path``, or of the nearest value that contains it."""
        while path not in self.positions and path:
            path = path[:-1]
        return self.positions.get(path, Position(1, 1, (1, 1)))

    def place(self, problem: CheckProblem) -> tuple[int, int]:
        """Return line and column of a problem."""
        position = self.position(problem.path)
        return problem.at or (position.key if problem.on_key else position[:2])

    def existing(self, path: Path) -> Path:
        """Return a path without the parts that are not there: shorthands' options, union tags."""
        kept: Path = ()
        for part in path:
            if (*kept, part) in self.positions:
                kept = (*kept, part)
        return kept

    def subtree(self, path: Path) -> "Tree":
        """Return the document that the value at ``path``, which must exist, is by itself."""
        size = len(path)
        positions = {key[size:]: at for key, at in self.positions.items() if key[:size] == path}
        problems, ambiguous = (
            [p._replace(path=p.path[size:]) for p in all_problems if p.path[:size] == path]
            for all_problems in (self.problems, self.ambiguous)
        )
        return Tree(self.value(path), positions, problems, ambiguous)

    def drop_free_keys(self) -> None:
        """Forget the keys at the top that may hold anything, for anchors."""

        def is_free(path: Path) -> bool:
            return str(*path[:1]).startswith("x-")

        self.data = {key: value for key, value in self.data.items() if not is_free((key,))}
        self.problems = [problem for problem in self.problems if not is_free(problem.path)]
        self.ambiguous = [problem for problem in self.ambiguous if not is_free(problem.path)]

    def value(self, path: Path) -> Any:
        """Return the value at ``path``, which must exist."""
        value = self.data
        for part in path:
            value = value[part]
        return value

    def refuse_problems(self, path: Path) -> None:
        """Refuse a second definition of a value, or of what contains it: others may take that."""
        for problem in self.problems:
            if path[: len(problem.path)] == problem.path:
                raise TreeError(problem.message, *self.place(problem))


@dataclass(slots=True)
class Extent:
    """How many values and characters were read: aliases can make many of a small text."""

    nodes: int = 0
    text: int = 0


def parse(text: str, extent: Extent | None = None) -> Tree:
    """Read one YAML document, like `parse_all`."""
    first, *further = parse_all(text, extent)
    if further:
        raise TreeError(ONE_DOCUMENT, *further[0].position(()).key)
    return first


def parse_all(text: str, extent: Extent | None = None, *, texts: bool = False) -> list[Tree]:
    """Read YAML documents; a `TreeError` for what is not plain, or too large.

    ``extent`` is what was read before, of a file that contains several texts. With ``texts``, all
    scalars are strings as they are written. There is at least one document, even if it is empty.
    """
    try:
        loader, extent, trees = _Loader(text), extent or Extent(), []
        while loader.check_node():
            trees.append(_Builder(extent, texts=texts).document(loader.get_node()))
    except yaml.MarkedYAMLError as error:
        raise yaml_errors.explain(error, text) from None
    except yaml.reader.ReaderError as error:
        # error.position counts bytes or characters, depending on the parser.
        character = chr(error.character)
        position = yaml_errors.position_after(text[: max(text.find(character), 0)])
        raise TreeError(f"{error.reason}: {character!r}", *position) from None
    return trees or [Tree()]


class _Loader(Composer, yaml.CSafeLoader):
    """Composes nodes from libyaml's events, within bounds."""

    def __init__(self, text: str) -> None:
        if len(directives := [*_DIRECTIVE.finditer(text)]) > DIRECTIVES_MAX:
            line, _ = yaml_errors.position_after(text[: directives[DIRECTIVES_MAX].end()])
            raise TreeError(f"more than {DIRECTIVES_MAX} %TAG directives", line, 1)
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._depth = self._composed = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose a node with those below it."""
        event: Any = self.peek_event()
        self._composed += 1
        if self._composed > 2 * NODES_MAX:  # keys and values
            raise error_at(f"more than {NODES_MAX} values", event)
        if self._depth > DEPTH_MAX:
            raise error_at(f"nested deeper than {DEPTH_MAX} levels", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _explain_key(key: Node) -> str:
    """Return what to write instead of a mapping as a key, which '{{ }}' is."""
    inside = key.value[0][0].value if isinstance(key, MappingNode) and key.value else ""
    return explain_template(f"{{{{ {inside} }}}}", ()) if isinstance(inside, str) else ""


class _Builder:
    def __init__(self, extent: Extent, *, texts: bool) -> None:
        self._extent, self._texts = extent, texts
        self._tree = Tree()
        self._open: set[Node] = set()  # an alias to one of them is part of it

    def document(self, root: Any) -> Tree:
        self._tree.data = self._value(root, (), place(root))
        return self._tree

    def _value(self, node: Node, path: Path, key: tuple[int, int]) -> Any:
        self._count(node, len(path))
        if node in self._open:
            raise error_at("alias refers to a value that contains it", node)
        line, column = place(node)
        if isinstance(node, ScalarNode):
            start, end, text, plain = node.start_mark, node.end_mark, node.value, not node.style
            written = len(text) if plain else len(text) + 2  # the quotes
            verbatim = start.line == end.line and end.column - start.column == written
            self._tree.positions[path] = Position(line, column, key, text, plain, verbatim)
            data: Any = self._scalar(node)
            if isinstance(data, str):
                self._note_ambiguity(node, path)
            return data
        if node.tag not in _COLLECTIONS:
            raise error_at(f"unsupported tag {node.tag!r}", node)
        self._tree.positions[path] = Position(line, column, key)
        self._open.add(node)
        if isinstance(node, MappingNode):
            data = {}
            self._add(node, path, data, len(path))
        else:
            data = [
                self._value(item, (*path, index), place(item))
                for index, item in enumerate(node.value)
            ]
        self._open.remove(node)
        return data

    def _count(self, node: Node, depth: int, values: int = 1) -> None:
        """Limit how far aliases and merges can expand a small text."""
        self._extent.nodes += values
        if self._extent.nodes > NODES_MAX:
            raise error_at(f"more than {NODES_MAX} values, including aliases", node)
        if depth > DEPTH_MAX:
            raise error_at(f"nested deeper than {DEPTH_MAX} levels", node)

    def _note_ambiguity(self, node: ScalarNode, path: Path, *, on_key: bool = False) -> None:
        text = node.value
        if not node.style and _AMBIGUOUS.fullmatch(text):
            kind = "a truth value" if text.isalpha() else "a number"
            message = f'{"key " * on_key}{text} is {kind} to Helm; quote it: "{text}"'
            self._tree.ambiguous.append(warning(path, message, on_key))

    def _text(self, node: ScalarNode) -> str:
        """Return a scalar's text; limits how much text aliases can repeat."""
        text: str = node.value
        self._extent.text += len(text)
        if self._extent.text > TEXT_MAX:
            raise error_at(f"more than {TEXT_MAX} characters, including aliases", node)
        return text

    def _scalar(self, node: ScalarNode) -> Any:
        """Return the value of a scalar: a string, an integer, a boolean or nothing.

        What YAML 1.1 reads as a fraction or date, or YAML 1.2 as another number or a string (010,
        1:30, 1_000, 0b1), becomes a float, which no option accepts: editors that use YAML 1.2 would
        show something else.
        """
        text, kind = self._text(node), node.tag.removeprefix(_TAG)
        if self._texts or node.tag in (_STRING, _MERGE, _VALUE):  # << and = are special as keys
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if kind == "int" and _INT.fullmatch(text):
            return int(text, 0)
        if kind in ("int", "float", "timestamp"):
            return math.nan
        shown = node.tag.replace(_TAG, "!!")
        raise error_at(f"unsupported tag {shown!r}; quote a string that begins with '!'", node)

    def _add(self, node: MappingNode, path: Path, data: dict[str, Any], depth: int) -> None:
        """Add the pairs of a mapping whose keys ``data`` does not have yet."""
        first: dict[str, int] = {}
        merged: list[Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged.append(value)
            elif key.tag != _STRING:
                message = (
                    f'key {key.value} is not a string in YAML; quote it: "{key.value}"'
                    if isinstance(key, ScalarNode)
                    else f"keys must be strings; {_explain_key(key)}"
                )
                self._tree.problems.append(error(path, message, at=place(key)))
            elif (name := self._text(key)) in first:
                message = f"duplicate key (first defined on line {first[name]})"
                self._tree.problems.append(error((*path, name), message, at=place(key)))
            else:
                first[name] = key.start_mark.line + 1
                self._note_ambiguity(key, (*path, name), on_key=True)
                if name not in data:
                    data[name] = self._value(value, (*path, name), place(key))
        for value in merged:
            for source in value.value if isinstance(value, SequenceNode) else [value]:
                self._merge(source, path, data, depth)

    def _merge(self, source: Node, path: Path, data: dict[str, Any], depth: int) -> None:
        """Add the pairs of a value of ``<<``, or of an item of it."""
        if not isinstance(source, MappingNode) or source in self._open:
            raise error_at("'<<' needs a mapping or a list of mappings", source)
        self._count(source, depth, 1 + len(source.value))
        self._open.add(source)
        self._add(source, path, data, depth + 1)
        self._open.remove(source)
