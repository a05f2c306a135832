"""The source ``exec``: the devices that a command lists."""

import os
from collections.abc import Iterator
from typing import Final

from devhost.discovery import command
from devhost.discovery.listing import ListedDevice, ListingError, parsed
from devhost.discovery.match import Match, Readings
from devhost.discovery.roots import BaseRoot, Reading, Root, failure
from devhost.hostfs.files import HostFiles
from devhost.hostfs.tally import Tally
from devhost.immutable import immutable
from devhost.limits import LISTING_BYTES_MAX
from devhost.model import names
from devhost.model.device import Listed
from devhost.model.sources import Exec

_FAILURES: Final = 3  # in a row: then the former list counts no longer
_REASON_MAX: Final = 300


@immutable
class CommandTerms:
    """On what terms commands of sources run.

    Attributes:
        allowed: Whether they may.
        node_name: The name of the node, for their environment.
    """

    allowed: bool
    node_name: str


NOT_ALLOWED: Final = CommandTerms(allowed=False, node_name="")


@immutable
class CommandRoot(BaseRoot):
    """What a command lists for a resource.

    Attributes:
        argv: The command.
        resource: The resource's name, for its environment.
        timeout: Its time limit in seconds.
        every: Seconds between its end and its next start.
        terms: Whether it may run, and what else its environment has.
    """

    argv: tuple[str, ...]
    resource: str
    timeout: float
    every: float
    terms: CommandTerms

    @property
    def interval(self) -> float:
        """It is not run again before."""
        return self.every

    @property
    def base(self) -> str:
        """The host's root: it lists paths."""
        return ""

    def read(self, files: HostFiles, tally: Tally) -> Reading:
        """Run the command."""
        if not self.terms.allowed:
            missing = f"{self.argv[0]} is not run: running a command needs --allow-exec"
            return CommandReading(self, files, (), missing=names.printable(missing))
        try:
            return CommandReading(self, files, self._listed(files, tally))
        except (OSError, ValueError) as error:
            text = failure(error) if isinstance(error, OSError) else str(error)
            reason = names.printable(f"{self.argv[0]}: {text}")
            if len(reason) > _REASON_MAX:
                reason = f"{reason[:_REASON_MAX]}…"
            return CommandReading(self, files, None, failure=reason)

    def _listed(self, files: HostFiles, tally: Tally) -> tuple[ListedDevice, ...]:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "DEVHOST_ROOT": files.root,
            "DEVHOST_NODE_NAME": self.terms.node_name,
            "DEVHOST_RESOURCE": self.resource,
        }
        ended = command.run(
            self.argv, environment, self.timeout, tally.stop, output_max=LISTING_BYTES_MAX
        )
        if len(ended.output) > LISTING_BYTES_MAX:
            raise ListingError(f"its output is longer than {LISTING_BYTES_MAX // 1024} KiB")
        if ended.status != 0:
            late = f"did not end in {self.timeout:g} s"
            text = late if ended.status is None else ended.description()
            raise ListingError(": ".join(filter(None, (text, ended.last_line))))
        found = parsed(ended.output)
        for one in found:
            for path in one.paths or ("",):
                tally.add(path, one.id)
        return found


class CommandReading(Reading):
    """What a command has listed.

    Attributes:
        devices: The devices; ``None`` where it has failed, and those before it as well.
        failures: How often in a row it has failed.
    """

    root: CommandRoot

    def __init__(
        self,
        root: CommandRoot,
        files: HostFiles,
        devices: tuple[ListedDevice, ...] | None,
        *,
        missing: str | None = None,
        failure: str | None = None,
        stale: str | None = None,
        failures: int = 0,
    ) -> None:
        super().__init__(root, files, missing=missing, failure=failure)
        self.devices, self.stale = devices, stale
        self.failures = failures or int(failure is not None)

    def after(self, former: Reading | None) -> "CommandReading":
        """Return the former list where the command has failed, but not too often in a row."""
        if self.failure is None:
            return self
        before = former if isinstance(former, CommandReading) else None
        devices = before.devices if before else None
        failures = min(before.failures + 1 if before else 1, _FAILURES)
        reason = self.failure if devices is not None else f"{self.failure}; it has never succeeded"
        kept = devices is not None and failures < _FAILURES
        return CommandReading(
            self.root,
            self._files,
            devices,
            failure=None if kept else reason,
            stale=f"{reason}; its last list stays" if kept else None,
            failures=failures,
        )

    def renewed(self) -> "CommandReading":
        """Return the same list, with nothing looked at yet."""
        return CommandReading(
            self.root,
            self._files,
            self.devices,
            missing=self.missing,
            failure=self.failure,
            stale=self.stale,
            failures=self.failures,
        )


@immutable
class CommandFinder:
    """Finds the devices that a command lists.

    Attributes:
        options: The command.
        resource: The name of the resource.
        terms: On what terms it runs.
    """

    options: Exec
    resource: str
    terms: CommandTerms

    @property
    def roots(self) -> tuple[Root, ...]:
        """What the command lists."""
        return (self._root,)

    @property
    def _root(self) -> CommandRoot:
        one = self.options
        return CommandRoot(one.command, self.resource, one.timeout, one.interval, self.terms)

    @property
    def by_path_alone(self) -> bool:
        """What a device is does not follow from its path."""
        return False

    def _reading(self, readings: Readings) -> CommandReading:
        reading = readings[self._root]
        assert isinstance(reading, CommandReading), "of that root"  # noqa: S101
        return reading

    def find(self, readings: Readings) -> Iterator[Match]:
        """Yield the nodes of each device; a device without any is a token."""
        reading = self._reading(readings)
        for one in sorted(reading.devices or (), key=lambda one: names.natural_key(one.id)):
            variables = {"name": one.id, **{f"attr.{key}": text for key, text in one.attributes}}
            unit = "\0".join(("", *self.options.command, one.id))
            listed = Listed(unit, names.printable(one.id), one.numa, one.problem)
            if not one.paths:
                yield Match("", one.id, variables, listed=listed)
            for path in one.paths:
                yield Match(path, one.id, variables, at=(reading, path[1:]), listed=listed)

    @property
    def summary(self) -> str:
        """The source in words."""
        return names.printable(f"exec {' '.join(self.options.command)}")

    def looked(self, readings: Readings) -> str:
        """Say how many devices it lists."""
        count = len(self._reading(readings).devices or ())
        return f"{self.options.command[0]} lists {count} {'device' if count == 1 else 'devices'}"

    def left(self, _readings: Readings) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Nothing is left: all that it lists is taken."""
        return iter(())

    def unmatched(self, _readings: Readings) -> str:
        """Say that it lists none."""
        return names.printable(f"{self.options.command[0]} lists no devices")
