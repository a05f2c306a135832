"""The exceptions of devhost, and the problems of a configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a source line that a problem is in, with any characters as they are in the file.

    Attributes:
        text: The line, or a part of a long one.
        start: Where the problem begins in the text, counted from 0.
        end: Where it ends.
        line: The line's number in the file; 0 if the file has the text in another form.
    """

    text: str
    start: int
    end: int
    line: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a configuration, or a possible one in pods, and where it is.

    Attributes:
        severity: An error makes the configuration invalid, a warning does with `--strict`; of a
            note, only those who write pods know whether it concerns them.
        file: The file's name as the user gave it.
        line: Counted from 1.
        column: Counted from 1.
        path: The path in the document (``resources[0].allocate.env``); empty for the whole file.
        message: What is wrong and what would be right.
        resource: The name of the resource that it is in; empty if there is none.
        excerpt: The source; ``None`` if there is no line to show.
    """

    severity: Severity
    file: str
    line: int
    column: int
    path: str
    message: str
    resource: str = ""
    excerpt: Excerpt | None = None

    def as_json(self) -> dict[str, str | int]:
        """Return the stable shape of ``-o json``, without the excerpt."""
        names = ("severity", "file", "line", "column", "path", "message", "resource")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: {self.severity}: "
        return where + (f"{self.path}: {self.message}" if self.path else self.message)


class DevhostError(Exception):
    """The base class of all exceptions of devhost."""


class ConfigError(DevhostError):
    """An invalid configuration, with every problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class AllocationError(DevhostError):
    """Devices that cannot be given to a container; the pod's events show the message."""


class MissingRightError(AllocationError):
    """A right that is missing; the message names it, and what it would allow."""


class PreStartError(DevhostError):
    """A container that may not start yet; the pod's events show the message."""


class KubeletError(DevhostError):
    """Kubelet refused a registration or could not be reached."""


class BackendGoneError(KubeletError):
    """A backend has lost what a restart alone can bring back, such as a container's mount."""


def describe_os_error(error: OSError) -> str:
    """Return what an error of the operating system says, without the path that it is about."""
    return error.strerror or str(error)
