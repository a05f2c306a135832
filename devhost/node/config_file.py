"""The configuration file of a running host: read again when it may have changed.

A ConfigMap's ``..data`` swap, an editor's rename, a plain write, a retargeted symlink and SIGHUP
all lead to one function, which compares the content. An invalid configuration changes nothing.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from devhost.allocation.policy import Policy
from devhost.config.loader import Loaded, loads, read, unusable
from devhost.custody.state_dir import (
    CLOSE_S,
    directory_lock,
    log_transition,
    move_aside,
    read_state,
    write_atomically,
)
from devhost.errors import Problem, describe_os_error
from devhost.hostfs.files import HostFiles
from devhost.model.config import Config
from devhost.watch.threads import (
    PATIENCE_S,
    BlockingCalls,
    run_in_thread,
    run_in_time,
    wait_at_most,
)
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

T = TypeVar("T")

LAST_GOOD: Final = "last-good.yaml"
POLL_S: Final = 30.0  # in case an event is missed, as for sources
RETRY_S: Final = 2.0  # while the file cannot be read, or its copy not be saved
_SETTLE_S: Final = 0.05  # a writer may be in the middle of it
_SETTLE_GONE_S: Final = 1.0  # an editor may have moved it away, to write another
_SETTLES_MAX: Final = 20
_READ_ONCE: Final = "the configuration came from standard input: it cannot be read again"
_BUG: Final = "cannot be loaded because of a bug: {!r}"
_LOG: Final = logging.getLogger(__name__)
_LEVELS: Final = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}

Apply = Callable[[Config], object]


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """The configuration in force, and the problems of a newer one."""

    file: str  # where it came from: the configuration file, or the last good copy of it
    applied: datetime
    problems: tuple[Problem, ...] = ()  # why the present content of the file was not applied
    unreadable: str | None = None  # why the file cannot be read now; also one of the problems
    reloads: int = 0  # how often a new configuration was applied
    failures: int = 0  # how often one was rejected or could not be read
    hash: str = ""  # the beginning of the SHA-256 of the content in force


class _Content(NamedTuple):
    """The content of the file at one time, or why it cannot be read."""

    raw: bytes = b""
    failure: str = ""


class LastGoodConfig:
    """The copy of the configuration that was applied last, for a start with an invalid file."""

    def __init__(self, state_dir: Path, name: str = LAST_GOOD) -> None:
        self.path, self._calls = state_dir / name, BlockingCalls("save config", serial=True)
        self.unsaved: bytes | None = None  # the content to be saved
        self.problem: str | None = None  # why it could not be
        self._saving: asyncio.Task[None] | None = None

    def read(self) -> bytes | None:
        """Return the copy, ``None`` where there is none; raise `OSError` if it cannot be read."""
        try:
            return read_state(self.path)
        except ValueError as error:
            move_aside(self.path, error)
        except FileNotFoundError:
            pass
        return None

    def write(self, raw: bytes) -> None:
        """Replace the copy; raise `OSError` if it cannot be written."""
        with contextlib.suppress(OSError):  # it may be replaced all the same
            if self.read() == raw:
                return
        with directory_lock(self.path.parent):
            write_atomically(self.path, raw)

    def save_soon(self) -> bool:
        """Save what is unsaved; return whether there is anything."""
        if self.unsaved is not None and (self._saving is None or self._saving.done()):
            self._saving = asyncio.create_task(self._save(), name="save config")
        return self.unsaved is not None

    async def close(self) -> None:
        """Save what is unsaved, at most `CLOSE_S`."""
        self.save_soon()
        if self._saving is not None:
            await asyncio.wait({self._saving}, timeout=CLOSE_S)
            self._saving.cancel()

    async def _save(self) -> None:
        problem = None
        try:
            while (raw := self.unsaved) is not None:
                write = functools.partial(self.write, raw)
                await self._calls.run(write, patience=PATIENCE_S)
                if self.unsaved is raw:  # else there is a newer one
                    self.unsaved = None
        except OSError as error:
            problem = f"{self.path}: {error.strerror}"
        self.problem = log_transition("the last good configuration", self.problem, problem)


class ConfigFile:
    """A configuration file, which is read at the start and whenever it changes."""

    def __init__(self, file: str, policy: Policy, last_good: LastGoodConfig | None = None) -> None:
        self.file, self.policy, self.last_good = file, policy, last_good
        self.status = ConfigStatus(file, datetime.now(UTC))
        self._content: _Content | None = None  # checked last; ``None``: to be checked again
        self._due, self._requested = asyncio.Event(), False
        self._calls = BlockingCalls("config", serial=True)

    def load_first(self) -> tuple[Loaded, Loaded | None]:
        """Return the loaded file, and the last good copy where the file is invalid. Blocks.

        From then on, what the file may use is what was allowed by it now.
        """
        try:  # at standard input without a limit: a person may be typing it
            read_file = functools.partial(_read, self.file)
            content = read_file() if self.file == "-" else run_in_time(read_file, PATIENCE_S)
        except OSError as error:  # late, or no thread
            content = _unreadable(error)
        self._content = content
        loaded = self._load_first(content, self.file)
        if loaded.config is not None:
            self.policy = loaded.policy
            self.status = replace(self.status, hash=_hash(content.raw))
            self._set_unsaved(content.raw)
            return loaded, None
        self._reject(loaded, content.failure)
        if self.last_good is None:
            return loaded, None
        file = str(self.last_good.path)
        try:
            copy = run_in_time(self.last_good.read, PATIENCE_S)
        except OSError as error:  # a TimeoutError, too
            return loaded, unusable(file, f"cannot be read: {error.strerror}")
        if copy is None:
            return loaded, None
        self.status = replace(self.status, file=file, hash=_hash(copy))
        return loaded, self._load_first(_Content(copy), file)

    def reload_soon(self) -> None:
        """Read the file again soon, as it may have changed."""
        self._due.set()

    def reload_requested(self) -> None:
        """Read the file again soon, and log also that it has not changed."""
        self._requested = True
        self._due.set()

    async def run(self, watcher: Watcher, apply: Apply) -> None:
        """Apply each new valid content, and save it, until cancelled."""
        subscription = Subscription(watcher, self.reload_soon)
        try:
            while True:
                # Standard input cannot be read twice.
                healthy = self.file == "-" or await self._reload(subscription, apply)
                is_saving = self.last_good is not None and self.last_good.save_soon()
                await wait_at_most(POLL_S if healthy and not is_saving else RETRY_S, self._due.wait)
                if self.file == "-" and self._due.is_set():
                    _LOG.warning(_READ_ONCE)
                self._due.clear()
        finally:
            subscription.close()
            if self.last_good is not None:
                await self.last_good.close()

    async def _reload(self, subscription: Subscription, apply: Apply) -> bool:
        """Apply the content if it has changed; return whether it can be read and is watched."""
        watched = await self._watch(subscription)
        # Read each time after it is watched, so no change is missed in between.
        requested, self._requested = self._requested, False
        content = await self._read_changed()
        if content != self._content:
            await self._apply(content, apply)
        elif requested:
            still = ", still invalid" if self.status.problems else ""
            extra = {"fields": {"file": self.file}}
            _LOG.info("configuration file unchanged%s", still, extra=extra)
        return watched and self._content is not None and not self._content.failure

    async def _watch(self, subscription: Subscription) -> bool:
        """Watch the directories where the file may be replaced; return whether that succeeds."""
        with contextlib.suppress(OSError):
            targets = await self._call(_watch_targets)
            async with asyncio.timeout(PATIENCE_S):
                await subscription.watch(targets)
            return not subscription.polling_reason
        return False

    async def _read_changed(self) -> _Content:
        """Return the content; a changed one is read until two reads agree.

        A writer may be in the middle of it.
        """
        former = self._content
        for _ in range(_SETTLES_MAX):
            try:
                content = await self._call(_read)
            except OSError as error:
                content = _unreadable(error)
            if content == former:
                break
            former = content
            await asyncio.sleep(_SETTLE_GONE_S if content.failure else _SETTLE_S)
        return content

    async def _call(self, work: Callable[[str], T]) -> T:
        call = functools.partial(work, self.file)
        return await self._calls.run(call, patience=PATIENCE_S, on_late=self.reload_soon)

    async def _apply(self, content: _Content, apply: Apply) -> None:
        """Apply a content, or reject it."""
        fields = {"fields": {"file": self.file}}
        try:
            load = functools.partial(_load, content, self.file, self.policy)
            loaded = await run_in_thread("load config", load)
            if loaded.config is not None:
                apply(loaded.config)
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("configuration file not in force", extra=fields)
            self.not_applied(error)
            return
        self._content = content
        log_problems(loaded.problems)
        if loaded.config is None:
            self._reject(loaded, content.failure)
            problem = "cannot be read" if content.failure else "invalid"
            _LOG.error(
                "configuration file %s; still serving the last good one", problem, extra=fields
            )
            return
        self.status = ConfigStatus(
            self.file,
            datetime.now(UTC),
            reloads=self.status.reloads + 1,
            failures=self.status.failures,
            hash=_hash(content.raw),
        )
        _LOG.info("configuration in force", extra=fields)
        self._set_unsaved(content.raw)

    def _set_unsaved(self, raw: bytes) -> None:
        if self.last_good is not None:
            self.last_good.unsaved = raw

    def not_applied(self, error: Exception) -> None:
        """Reject the file because of a bug of devhost, and try it again soon."""
        if self.file != "-":
            self._content = None
            self._reject(unusable(self.file, _BUG.format(error)))

    def _reject(self, loaded: Loaded, unreadable: str = "") -> None:
        self.status = replace(
            self.status,
            problems=loaded.problems,
            unreadable=unreadable or None,
            failures=self.status.failures + 1,
        )

    def _load_first(self, content: _Content, file: str) -> Loaded:
        """Load a content; where a bug of devhost prevents that, it is invalid. Blocks."""
        try:
            return _load(content, file, self.policy)
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("loading failed")
            self._content = None
            return unusable(file, _BUG.format(error))


def log_problems(problems: Iterable[Problem]) -> None:
    """Log each problem in a line of its own, as `validate` prints it, with its position."""
    for problem in problems:
        level = _LEVELS[problem.severity]
        place = {
            key: getattr(problem, key) for key in ("file", "line", "column", "path", "resource")
        }
        fields = {"resource": problem.resource} if problem.resource else {}
        _LOG.log(level, "%s", problem, extra={"details": place, "fields": fields})


def _load(content: _Content, file: str, policy: Policy) -> Loaded:
    if content.failure:
        return unusable(file, content.failure)
    return loads(content.raw, file, policy)


def _read(file: str) -> _Content:
    # Opening a pipe would wait for a writer, reading a terminal for a user.
    mode = 0 if file in ("", "-") else os.stat(file).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return _Content(failure="is not a regular file; use - for standard input")
    return _Content(read(file))


def _unreadable(error: OSError) -> _Content:
    return _Content(failure=f"cannot be read: {describe_os_error(error)}")


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def _watch_targets(file: str) -> frozenset[WatchTarget]:
    """Return the directories in which the file, or a symlink on the way to it, may be replaced."""
    *way, end = (path for path, _, _ in HostFiles().follow(str(Path(file).absolute())))
    replaceable = {*filter(os.path.islink, way), end}
    return frozenset(WatchTarget(os.path.dirname(path), writes=True) for path in replaceable)
