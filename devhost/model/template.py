"""Templates, ``${name}`` and nothing else, and what nodes give to them.

The grammar is that of Python's `string.Template` with the braces required. A template that parses
can only fail because a variable has no value.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from devhost.model.device_node import LINK_VARIABLES, Node, ToLocal

# The same grammar as one pattern, for the JSON Schema.
VARIABLE_PATTERN: Final = r"\$\{[A-Za-z_][A-Za-z0-9_.]*\}"
TEMPLATE_PATTERN: Final = rf"^([^$]|\$\$|{VARIABLE_PATTERN})*$"

_VARIABLES_MAX: Final = 1000  # a value may be as long as a path, and is put in for each
_WORD: Final = re.compile("[A-Za-z0-9_]+")


class TemplateError(ValueError):
    """A string that is not a valid template, and where it is not."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class MissingVariableError(LookupError):
    """A variable of the template has no value."""

    def __init__(self, name: str) -> None:
        super().__init__(f"${{{name}}} has no value")
        self.name = name


class _Grammar(string.Template):
    idpattern = r"(?!)"  # no $name without braces: $HOME would pass by accident
    braceidpattern = r"[A-Za-z_][A-Za-z0-9_.]*"
    flags = re.ASCII


@dataclass(frozen=True, slots=True)
class Variable:
    """A ``${name}`` in a template."""

    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: literals and variables in order; no two literals are adjacent."""

    parts: tuple[str | Variable, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text; a `TemplateError` for another ``$``, or very many variables."""
        if "$" not in text:  # most strings
            return cls((text,) if text else ())
        if text.count("${") > _VARIABLES_MAX:
            raise TemplateError(f"more than {_VARIABLES_MAX} variables", text.index("${"))
        parts: list[str | Variable] = []
        literals, end = list[str](), 0
        for match in _Grammar.pattern.finditer(text):
            literals.append(text[end : match.start()])
            end = match.end()
            if match["escaped"] is not None:
                literals.append("$")
            elif match["braced"] is not None:
                parts += [*filter(None, ["".join(literals)]), Variable(match["braced"])]
                literals = []
            else:
                raise TemplateError(_explain(text, match.start()), match.start())
        return cls((*parts, *filter(None, ["".join([*literals, text[end:]])])))

    @property
    def names(self) -> frozenset[str]:
        """The names of the template's variables."""
        return frozenset(part.name for part in self.parts if isinstance(part, Variable))

    @property
    def first_variable(self) -> str | None:
        """The name of the variable that it begins with."""
        first = self.parts[0] if self.parts else None
        return first.name if isinstance(first, Variable) else None

    @property
    def sample(self) -> str:
        """The text with the letter x for each variable."""
        return self.render(dict.fromkeys(self.names, "x"))

    def render(self, values: Mapping[str, str]) -> str:
        """Return the text; a `MissingVariableError` if a variable of it has no value."""
        try:
            return "".join(
                values[part.name] if isinstance(part, Variable) else part for part in self.parts
            )
        except KeyError as error:
            raise MissingVariableError(error.args[0]) from None

    def __str__(self) -> str:
        return "".join(
            f"${{{part.name}}}" if isinstance(part, Variable) else part.replace("$", "$$")
            for part in self.parts
        )


def _explain(text: str, offset: int) -> str:
    rest = text[offset + 1 :]
    if rest.startswith("("):
        return "'$(' is for Kubernetes; write a variable such as ${nodeName}, or '$$(' for the text"
    if rest.startswith("{"):
        inside, closed, _ = rest.partition("}")
        problem = f"'${inside}}}' is not a variable" if closed else "unclosed '${'"
        return (
            f"{problem}: a variable is ${{name}}, of letters, digits, '_' and '.', without "
            "expressions; write '$$' for a literal '$'"
        )
    if word := _WORD.match(rest):
        return f"missing braces in '${word[0]}'; write ${{{word[0]}}}, or '$$' for a literal '$'"
    return "write '$$' for a literal '$'"


# ── values ──


def variables(
    node: Node, device_id: str | None, nodes: Sequence[Node] = (), to_local: ToLocal = str
) -> dict[str, str]:
    """Return the variables of a node, for templates; ``None`` while its device has no ID yet.

    Of all `nodes` of the device, one with a role gives ``${role.path}`` and so on; of several with
    one role the node itself, or the first.
    """
    values = _plain_variables(node, to_local)
    if device_id is not None:
        values["id"] = device_id
    by_role = {sibling.role: sibling for sibling in reversed(nodes)} | {node.role: node}
    for role, sibling in by_role.items():
        if role is not None:
            of_role = _plain_variables(sibling, to_local)
            values |= {f"{role}.{name}": value for name, value in of_role.items()}
    return values


def _plain_variables(node: Node, to_local: ToLocal) -> dict[str, str]:
    if (state := node.state) is not None:
        return {
            "name": node.path.rpartition("/")[2],
            **node.variables,
            **{name: to_local(link) for name, link in udev_links(node).items()},
            "path": to_local(node.path),
            "realpath": to_local(state.realpath),
        }
    values = {"name": node.name, **node.variables}
    if node.hardware is not None and node.path:  # the kernel has it
        values |= {"path": node.path, "realpath": node.path}
    return values


def udev_links(node: Node) -> dict[str, str]:
    """Return udev's links to a node that was found in sysfs; a pattern's groups are no paths."""
    if node.hardware is None:
        return {}
    return {name: node.variables[name] for name in LINK_VARIABLES if name in node.variables}
