"""One round of a device's health checks.

It blocks: a hanging file hangs its thread, a command is stopped. A check that may not be made is
unknown, not unhealthy, and the text names the setting that would allow it.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.variables import arguments, names_paths, real_paths
from devhost.errors import AllocationError, describe_os_error
from devhost.hostfs import command
from devhost.hostfs.files import HostFiles, pinned_path
from devhost.model import names
from devhost.model.config import Check, FileCheck, HealthChecks, Probe
from devhost.model.device import Checked, HostDevice
from devhost.model.device_node import FileKind
from devhost.model.pattern import matches_any
from devhost.model.template import Template

CONTENT_MAX: Final = 4 * 1024
_MODES: Final = {"readable": os.O_RDONLY, "writable": os.O_WRONLY}
_POLITELY: Final = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FORBIDDEN: Final = (errno.EPERM, errno.EACCES)
# It exists, and is opened exclusively by another process (sound devices return EAGAIN).
_IN_USE: Final = (errno.EBUSY, errno.EAGAIN, errno.ETXTBSY)
_ACCESS: Final = (
    "devhost's user needs access to it: root, by securityContext.runAsUser; and for a device its "
    "container, by the chart's deviceAccess.privileged"
)
# Files that show root more than their permission bits tell: those of processes, addresses of the
# kernel and of its sockets, keys, the whole configuration space of PCI devices.
_PRIVATE: Final = re.compile(
    r"/proc/([0-9]+/(?!mounts$|mountinfo$|net/(arp|bonding/[^/]+|dev|if_inet6|ipv6_route|netstat"
    r"|route|snmp6?|sockstat6?|vlan/[^/]+|wireless)$).*"
    r"|bus/pci/.*/.*|iomem|ioports|kallsyms|keys|modules|mtrr)"
    r"|/sys/devices/.*/config",
    re.DOTALL,
)


class _FailedError(Exception):
    """A check has failed; the text names the file or command, and the reason."""


def check_device(
    checks: HealthChecks,
    device: HostDevice,
    files: HostFiles,
    constants: Mapping[str, str],
    *,
    allow: Policy,
) -> Checked:
    """Run all checks of one device; return the outcome, with the first failure. Blocks.

    The `timeout` of the checks is for all commands together; files are not limited. Tokens cannot
    be opened, and pass. `allow` says which nodes may be opened, which secrets read
    (``allow_paths``), and whether commands run.
    """
    round_ = _Round(device, files, constants, allow, until=time.monotonic() + checks.timeout)
    failures: list[str] = []
    unknown: list[str] = []
    for check in checks.checks:
        label = check if isinstance(check, str) else "file" if check.file else "exec"
        try:
            unknown += [f"{label}: {text}" for text in round_.perform(check)]
        except (_FailedError, AllocationError) as error:
            failures.append(f"{label}: {error}")
    now = datetime.now(UTC)
    if failures:
        return Checked(now, failure=names.printable(failures[0]))
    return Checked(now, unknown=names.printable("; ".join(unknown)) or None)


@dataclass(frozen=True, slots=True)
class _Round:
    """The checks of a round.

    A check yields why nodes could not be checked, and raises an error if it fails.
    """

    device: HostDevice
    files: HostFiles
    constants: Mapping[str, str]
    allow: Policy
    until: float

    def perform(self, check: Check) -> Iterator[str]:
        """Run one check for each node."""
        match check:
            case Probe(file=FileCheck() as file):
                yield from self._content(file)
            case Probe(exec=tuple() as argv):
                yield from self._commands(argv)
            case "readable" | "writable":
                yield from self._open(check)

    def _open(self, access: Literal["readable", "writable"]) -> Iterator[str]:
        for path in self.device.paths:
            try:
                realpath = self.files.realpath(path)
                with pinned_path(self.files.to_local(realpath)) as descriptor_path:
                    refusal = self._refusal(realpath, descriptor_path)
                    if refusal is None:
                        _touch(descriptor_path, _MODES[access])
                    else:
                        yield refusal
            except OSError as error:
                if error.errno not in _IN_USE:
                    yield _access_problem(path, error)

    def _refusal(self, realpath: str, descriptor_path: str) -> str | None:
        """Return why a node may not be opened: that alone can reset a machine, or rewind a tape."""
        state = os.stat(descriptor_path)
        kind = FileKind.CHAR if stat.S_ISCHR(state.st_mode) else FileKind.BLOCK
        if kind is FileKind.BLOCK and not stat.S_ISBLK(state.st_mode):
            return None
        number = os.major(state.st_rdev), os.minor(state.st_rdev)
        return HostPaths(self.files, self.allow).policy_problem(realpath, kind, number)

    def _content(self, file: FileCheck) -> Iterator[str]:
        for (path,) in arguments((file.path,), self.device, self.constants):
            if problem := names.path_problem(path):
                raise _FailedError(problem)
            try:
                realpath = self.files.realpath(path)
                content = _read(self.files.root, realpath, self.allow)
            except OSError as error:
                yield _access_problem(path, error)
                continue
            if content is None:
                flag = f"--allow-path '{realpath}'"
                yield f"{path}: not everyone can read it: {flag} would allow it"
            else:
                _compare(path, content, file.matches)

    def _commands(self, argv: Sequence[Template]) -> Iterator[str]:
        if not self.allow.runs_commands:
            yield f"{argv[0]}: running a command needs --allow-exec"
            return
        environment = command.environment(self.constants["resource"], self.device.id)
        paths = HostPaths(self.files, self.allow)
        nodes = paths.current_nodes(self.device, files=names_paths(argv))
        local_paths = real_paths(nodes, self.files.to_local)
        for words in arguments(argv, self.device, self.constants, local_paths):
            result = command.run(words, environment, self.until - time.monotonic())
            if result.failure:
                raise _FailedError(": ".join((words[0], result.failure, *result.lines[-1:])))


def _access_problem(path: str, error: OSError) -> str:
    """Return why a path could not be checked; raise the error of a check that has failed."""
    text = f"{path}: {describe_os_error(error)}"
    if error.errno not in _FORBIDDEN:
        raise _FailedError(text) from None
    return f"{text}: {_ACCESS}"


# ── nodes ──────────────────────────────────────────────────────────────────────────────


def _touch(path: str, mode: int) -> None:
    """Open and close a path, or check that it could be opened.

    A socket or a FIFO is not opened, as a process may wait for that; a directory only to read.
    """
    kind = os.stat(path).st_mode
    written = stat.S_ISDIR(kind) and mode == os.O_WRONLY
    if written or stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind):
        if not os.access(path, os.W_OK if mode == os.O_WRONLY else os.R_OK):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise OSError(number, os.strerror(number))
    else:
        os.close(os.open(path, mode | _POLITELY))


# ── contents ───────────────────────────────────────────────────────────────────────────


def _read(root: str, realpath: str, allow: Policy) -> bytes | None:
    """Return the beginning of a regular file; ``None`` if it is private.

    A private file is one that not everyone can read, and ``--allow-path`` does not name. Its path
    is walked with one descriptor, so that the file that is checked is the one that is read. It is
    opened only if it is not a device: opening one may have side effects.

    Raises:
        OSError: It does not exist or cannot be read.
    """
    allowed = allow.allows_path(realpath)
    if not allowed and _PRIVATE.fullmatch(realpath):
        return None
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in filter(None, realpath.split("/")):
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            mode = os.fstat(at).st_mode
            needed = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
            if not allowed and not mode & needed:
                return None
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        file = os.open(f"/proc/self/fd/{at}", os.O_RDONLY | _POLITELY)
    finally:
        os.close(at)
    try:
        return os.read(file, CONTENT_MAX)
    finally:
        os.close(file)


def _compare(path: str, content: bytes, globs: Sequence[str]) -> None:
    """Match a content. The failure does not contain it, because it may be confidential."""
    text = content.decode("utf-8", "replace").strip()
    if not matches_any(text, globs):
        raise _FailedError(f"{path}: its content does not match {' or '.join(map(repr, globs))}")
