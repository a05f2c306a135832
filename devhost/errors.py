"""The exceptions of devhost.

DevhostError
├── ConfigError        an invalid configuration: every problem with its position
├── AllocationError    devices that cannot be given to a container
├── PreStartError      a preStart step that failed or may not run
└── KubeletError       kubelet refused a registration or could not be reached
"""

from collections.abc import Sequence
from typing import Literal

from devhost.immutable import immutable

Severity = Literal["error", "warning"]


@immutable
class Problem:
    """An error or a warning in a configuration, and where.

    Attributes:
        severity: An error makes the configuration invalid, a warning does not.
        file: The file's name as the user gave it.
        line: Counted from 1.
        column: Counted from 1.
        path: The path in the document (``resources[0].allocate.env``); empty for the whole file.
        message: What is wrong and what would be right.
    """

    severity: Severity
    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: {self.severity}: "
        return where + (f"{self.path}: {self.message}" if self.path else self.message)


class DevhostError(Exception):
    """The base class of all exceptions of devhost."""


class ConfigError(DevhostError):
    """An invalid configuration."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class AllocationError(DevhostError):
    """Devices that cannot be given to a container; the pod's events show the message."""


class PreStartError(DevhostError):
    """A container that may not start yet; the pod's events show the message."""


class KubeletError(DevhostError):
    """Kubelet refused a registration or could not be reached."""
