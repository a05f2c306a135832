"""The errors of devhost, one tree; each knows how to print itself.

DevhostError
├── ConfigError        a configuration that cannot be used: every problem with its place
├── DiscoveryError     a source that could not be read (a missing directory is no error)
├── AllocationError    devices that cannot be handed to a container
├── PreStartError      a step before a container's start that failed, or must not be done
└── KubeletError       a kubelet that refuses or cannot be reached
"""

from collections.abc import Sequence
from typing import Literal

from devhost.immutable import immutable

Severity = Literal["error", "warning"]


@immutable
class Problem:
    """One thing that is wrong with a configuration, and where.

    Attributes:
        severity: Whether the configuration can be used all the same.
        file: The file's name as the user gave it.
        line: Counted from 1.
        column: Counted from 1.
        path: The place in the document (``resources[0].allocate.env``); empty for the whole file.
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
    """The root of every error that devhost raises on purpose."""


class ConfigError(DevhostError):
    """A configuration that cannot be used."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DiscoveryError(DevhostError):
    """A source that could not be read; what was known of it stays, as Unhealthy."""


class AllocationError(DevhostError):
    """Devices that cannot be handed to a container; the text reaches the pod's user."""


class PreStartError(DevhostError):
    """A container that must not start yet; the text reaches the pod's user."""


class KubeletError(DevhostError):
    """The kubelet refused a registration or could not be reached."""
