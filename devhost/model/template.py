"""Templates: ``${name}`` and nothing else, parsed at load, rendered without IO.

The grammar is that of Python's `string.Template` with the braces required. Any other ``$``
is an error. There are no expressions: a template that parses can only fail because a variable
has no value.
"""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Final, Self

from devhost.immutable import immutable

# The same grammar as one pattern, for the JSON Schema.
TEMPLATE_PATTERN: Final = r"^([^$]|\$\$|\$\{[A-Za-z_][A-Za-z0-9_.]*\})*$"


# The variable that is meant by '$(a)', '${ a }', '${{a}}' or '${a:-b}'.
_VARIABLES_MAX: Final = 1000  # a value may be as long as a path, and is put in for each
_MEANT: Final = re.compile(r"(?:[{ ]+|\((?=[\w.]+\)))(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


class TemplateError(ValueError):
    """A string that is not a valid template.

    Attributes:
        offset: The position in the string, counted from 0.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class MissingVariableError(LookupError):
    """A variable of the template has no value.

    Attributes:
        name: The variable's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"${{{name}}} has no value")
        self.name = name


class _Grammar(string.Template):
    idpattern = r"(?!)"  # no $name without braces: $HOME would pass by accident
    braceidpattern = r"[A-Za-z_][A-Za-z0-9_.]*"
    flags = re.ASCII


@immutable
class Variable:
    """A ``${name}`` in a template."""

    name: str


TemplatePart = str | Variable


_NO_NAMES: Final[frozenset[str]] = frozenset()


@immutable
class Template:
    """A parsed template.

    Attributes:
        parts: Literals and variables in order; no two literals are adjacent.
    """

    parts: tuple[TemplatePart, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text``.

        Raises:
            TemplateError: It contains a ``$`` that is not part of ``${name}`` or ``$$``, or very
                many variables.
        """
        if "$" not in text:  # most strings
            return cls((text,) if text else ())
        if text.count("${") > _VARIABLES_MAX:
            raise TemplateError(f"more than {_VARIABLES_MAX} variables", text.index("${"))
        parts: list[TemplatePart] = []
        end = 0
        for match in _Grammar.pattern.finditer(text):
            parts.append(text[end : match.start()])
            if match["braced"] is not None:
                parts.append(Variable(match["braced"]))
            elif match["escaped"] is not None:
                parts.append("$")
            else:
                raise TemplateError(_explain(text, match.start()), match.start())
            end = match.end()
        return cls(_joined([*parts, text[end:]]))

    @property
    def names(self) -> frozenset[str]:
        """The names of the template's variables."""
        if self.is_literal:  # most templates
            return _NO_NAMES
        return frozenset(part.name for part in self.parts if isinstance(part, Variable))

    @property
    def is_literal(self) -> bool:
        """Whether it has no variables."""
        parts = self.parts
        return not parts or (len(parts) == 1 and isinstance(parts[0], str))

    @property
    def opening(self) -> str | None:
        """The name of the variable that it begins with."""
        first = self.parts[0] if self.parts else None
        return first.name if isinstance(first, Variable) else None

    def render(self, values: Mapping[str, str]) -> str:
        """Return the text.

        Raises:
            MissingVariableError: ``values`` does not have a variable of the template.
        """
        if self.is_literal:
            return str(self.parts[0]) if self.parts else ""
        texts = []
        for part in self.parts:
            if isinstance(part, Variable):
                if part.name not in values:
                    raise MissingVariableError(part.name)
                texts.append(values[part.name])
            else:
                texts.append(part)
        return texts[0] if len(texts) == 1 else "".join(texts)

    def __str__(self) -> str:
        return "".join(
            f"${{{part.name}}}" if isinstance(part, Variable) else part.replace("$", "$$")
            for part in self.parts
        )


def _joined(parts: Sequence[TemplatePart]) -> tuple[TemplatePart, ...]:
    """Merge adjacent literals and drop empty ones."""
    if len(parts) == 1:
        return tuple(filter(None, parts))
    merged: list[TemplatePart] = []
    literals: list[str] = []  # joined in one step: repeated concatenation takes quadratic time
    for part in parts:
        if isinstance(part, str):
            literals.append(part)
            continue
        merged += filter(None, ["".join(literals)])
        merged.append(part)
        literals.clear()
    return (*merged, *filter(None, ["".join(literals)]))


def _explain(text: str, offset: int) -> str:
    rest = text[offset + 1 :]
    meant = _MEANT.match(rest)
    better = f"${{{meant['name']}}}" if meant else "${name}"
    if rest.startswith("("):
        return f"invalid template; write {better}, or '$$(' for a literal '$('"
    if rest.startswith("{"):
        name = rest[1:].partition("}")[0]
        if "}" not in rest:
            return f"unclosed '${{'; write {better}, or '$$' for a literal '$'"
        return (
            f"'${{{name}}}' is not a variable: names are letters, digits, '_' and '.', without "
            f"expressions; write {better}, or '$$' for a literal '$'"
        )
    word = rest[: len(rest) - len(rest.lstrip(string.ascii_letters + string.digits + "_"))]
    if word:
        return f"missing braces in '${word}'; write ${{{word}}}, or '$${word}' for the literal text"
    return "write '$$' for a literal '$'"
