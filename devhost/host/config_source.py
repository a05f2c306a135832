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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from devhost.allocation.policy import Policy
from devhost.errors import Problem
from devhost.host.state_files import CLOSE_S, LastGoodConfig, log_transition
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import Loaded, loads, read, unusable
from devhost.model.config import Config
from devhost.model.immutable import immutable
from devhost.watch.threads import PATIENCE_S, BlockingCalls, run_in_thread, run_in_time
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

T = TypeVar("T")

POLL_S: Final = 30.0  # in case an event is missed, as for sources
RETRY_S: Final = 0.5  # while the file cannot be read; doubled up to
RETRY_MAX_S: Final = 5.0
_SETTLE_S: Final = 0.05  # a writer may be in the middle of it
_SETTLE_GONE_S: Final = 1.0  # an editor may have moved it away, to write another
_SETTLES_MAX: Final = 20
_HASH_LENGTH: Final = 16
_READ_ONCE: Final = "the configuration came from standard input: it cannot be read again"
_BUG: Final = "cannot be loaded because of a bug: {!r}"
_LOG: Final = logging.getLogger(__name__)

Apply = Callable[[Config], object]
Content = tuple[bytes | None, str]  # ``None`` with the reason why it cannot be read


@immutable
class ConfigStatus:
    """Which configuration is in force, and what is wrong with a newer one."""

    file: str  # where it came from: the configuration file, or the last good copy of it
    applied: datetime
    problems: tuple[Problem, ...] = ()  # why the present content of the file was not applied
    unreadable: str | None = None  # why the file cannot be read now; also one of the problems
    reloads: int = 0  # how often a new configuration was applied
    failures: int = 0  # how often one was rejected or could not be read
    hash: str = ""  # the beginning of the SHA-256 of the content in force


class ConfigFile:
    """Reads a configuration file, at the start and whenever it changes while the host runs."""

    def __init__(self, file: str, policy: Policy, last_good: LastGoodConfig | None = None) -> None:
        self.file, self._policy, self._last_good = file, policy, last_good
        self._due, self._asked = asyncio.Event(), False
        self._seen: Content = None, ""  # what was checked last
        self._calls = BlockingCalls("config", serial=True)
        self._good: bytes | None = None  # to be saved
        self._saving: asyncio.Task[None] | None = None
        self.save_problem: str | None = None
        """Why the last good copy could not be written."""
        self.status = ConfigStatus(file, datetime.now(UTC))

    def load_first(self) -> tuple[Loaded, Loaded | None]:
        """Return the loaded file, and the last good copy where the file is invalid. Blocks."""
        try:  # at standard input without a limit: a person may be typing it
            raw, reason = self._read() if self.file == "-" else run_in_time(self._read, PATIENCE_S)
        except OSError as error:  # late, or no thread
            raw, reason = None, f"cannot be read: {error.strerror}"
        self._seen = raw, reason
        loaded = self._load(raw, reason, self.file)
        if raw is not None and loaded.config is not None:
            self.status = replace(self.status, hash=_hash(raw))
            self._good = raw
            return loaded, None
        self._failed(loaded, reason)
        if self._last_good is None:
            return loaded, None
        file = str(self._last_good.path)
        try:
            copy = run_in_time(self._last_good.read, PATIENCE_S)
        except OSError as error:  # a TimeoutError, too
            return loaded, unusable(file, f"cannot be read: {error.strerror}")
        if copy is None:
            return loaded, None
        self.status = replace(self.status, file=file, hash=_hash(copy))
        return loaded, self._load(copy, "", file)

    def reload_soon(self) -> None:
        """The file may have changed."""
        self._due.set()

    def reload_requested(self) -> None:
        """Somebody wants it read again, and to see in the log that it was."""
        self._asked = True
        self._due.set()

    async def run(self, watcher: Watcher, apply: Apply) -> None:
        """Apply each new valid content, and save it, until cancelled."""
        try:
            await self._follow(watcher, apply)
        finally:
            self._save()  # once more, if it has failed
            if self._saving is not None:
                await asyncio.wait({self._saving}, timeout=CLOSE_S)
                self._saving.cancel()

    async def _follow(self, watcher: Watcher, apply: Apply) -> None:
        retry, subscription = RETRY_S, Subscription(watcher, self.reload_soon)
        while True:
            well = self.file == "-"  # standard input cannot be read twice
            try:
                if not well:
                    watched = await self._watch(subscription)
                    # Read each time after it is watched, so no change is missed in between.
                    before, asked, self._asked = self._seen, self._asked, False
                    await self._reload(apply)
                    if asked and self._seen is before:
                        still = ", still invalid" if self.status.problems else ""
                        extra = {"fields": {"file": self.file}}
                        _LOG.info("configuration file unchanged%s", still, extra=extra)
                    well = watched and self._seen[0] is not None
            except Exception:  # noqa: BLE001 (logged; the host goes on)
                _LOG.exception("reading the configuration failed")
            self._save()
            pause = POLL_S if well else min(retry, POLL_S)
            retry = RETRY_S if well else min(retry * 2, RETRY_MAX_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._due.wait()
                if self.file == "-":
                    _LOG.warning(_READ_ONCE)
            self._due.clear()

    async def _watch(self, subscription: Subscription) -> bool:
        """Watch the directories where the file may be replaced, if they can be determined."""
        with contextlib.suppress(OSError):
            targets = await self._call(lambda: _watch_targets(self.file))
            async with asyncio.timeout(PATIENCE_S):
                await subscription.watch(targets)
            return not subscription.polling_reason
        return False

    async def _reload(self, apply: Apply) -> None:
        found = await self._content()
        if found == self._seen:
            return
        found = await self._settled(found)
        if found == self._seen:
            return
        fields = {"fields": {"file": self.file}}
        try:
            loaded = await run_in_thread("load config", lambda: self._checked(*found, self.file))
            if loaded.config is not None:
                apply(loaded.config)
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("configuration file not in force", extra=fields)
            self.not_applied(error)
            return
        raw, reason = self._seen = found
        log_problems(loaded.problems)
        if raw is None or loaded.config is None:
            self._failed(loaded, reason)
            what = "cannot be read" if raw is None else "invalid"
            _LOG.error("configuration file %s; still serving the last good one", what, extra=fields)
            return
        self.status = replace(
            self.status,
            file=self.file,
            applied=datetime.now(UTC),
            problems=(),
            unreadable=None,
            reloads=self.status.reloads + 1,
            hash=_hash(raw),
        )
        _LOG.info("configuration in force", extra=fields)
        self._good = raw

    def not_applied(self, error: Exception) -> None:
        """Say that the file could not be applied because of a mistake of ours; try again soon."""
        if self.file != "-":
            self._seen = None, ""
            self._failed(unusable(self.file, _BUG.format(error)), "")

    async def _settled(self, found: Content) -> Content:
        """Read the file until two reads agree: a writer may be in the middle of it."""
        for _ in range(_SETTLES_MAX):
            before = found
            await asyncio.sleep(_SETTLE_GONE_S if found[0] is None else _SETTLE_S)
            found = await self._content()
            if found == before:
                break
        return found

    async def _content(self) -> Content:
        try:
            return await self._call(self._read)
        except OSError as error:
            return None, f"cannot be read: {error.strerror}"

    async def _call(self, work: Callable[[], T]) -> T:
        return await self._calls.run(work, patience=PATIENCE_S, on_late=self.reload_soon)

    def _read(self) -> Content:
        try:
            if _may_wait(self.file):
                return None, "is not a regular file; use - for standard input"
            return read(self.file), ""
        except OSError as error:
            return None, f"cannot be read: {error.strerror or error}"

    def _load(self, raw: bytes | None, reason: str, file: str) -> Loaded:
        """Load a content; what fails by a mistake of ours is invalid, and tried again. Blocks."""
        try:
            return self._checked(raw, reason, file)
        except Exception as error:  # noqa: BLE001 (logged; what is in force stays)
            _LOG.exception("loading failed")
            self._seen = None, ""
            return unusable(file, _BUG.format(error))

    def _checked(self, raw: bytes | None, reason: str, file: str) -> Loaded:
        return unusable(file, reason) if raw is None else loads(raw, file, self._policy)

    def _failed(self, loaded: Loaded, unreadable: str) -> None:
        self.status = replace(
            self.status,
            problems=loaded.problems,
            unreadable=unreadable or None,
            failures=self.status.failures + 1,
        )

    def _save(self) -> None:
        """Save what is in force, unless it is saved, or that is being tried."""
        idle = self._saving is None or self._saving.done()
        if idle and self._last_good is not None and self._good is not None:
            self._saving = asyncio.create_task(self._write(self._last_good), name="save config")

    async def _write(self, last_good: LastGoodConfig) -> None:
        try:
            while (good := self._good) is not None:
                writing = run_in_thread("save config", functools.partial(last_good.write, good))
                if not (await asyncio.wait({writing}, timeout=PATIENCE_S))[0]:
                    self._report(f"{last_good.path}: no answer in {PATIENCE_S:g} s")
                await writing
                if self._good is good:  # else there is a newer one
                    self._good = None
            self._report(None)
        except OSError as error:
            self._report(f"{last_good.path}: {error.strerror}")
            asyncio.get_running_loop().call_later(RETRY_MAX_S, self.reload_soon)  # and saves it

    def _report(self, problem: str | None) -> None:
        self.save_problem = log_transition(
            "the last good configuration", self.save_problem, problem
        )


def log_problems(problems: Iterable[Problem]) -> None:
    """Log each problem in a line of its own, as `validate` prints it, with its position."""
    for problem in problems:
        level = logging.ERROR if problem.severity == "error" else logging.WARNING
        place = {
            key: getattr(problem, key) for key in ("file", "line", "column", "path", "resource")
        }
        fields = {"resource": problem.resource} if problem.resource else {}
        _LOG.log(level, "%s", problem, extra={"details": place, "fields": fields})


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:_HASH_LENGTH]


def _may_wait(file: str) -> bool:
    """Whether opening a file may never return: a pipe waits for a writer, a terminal for a user."""
    if file in ("", "-") or "\0" in file:
        return False
    mode = os.stat(file).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _watch_targets(file: str) -> frozenset[WatchTarget]:
    """Return the directories in which the file, or a symlink on the way to it, may be replaced."""
    *way, end = (place for place, _, _ in HostFiles().follow(str(Path(file).absolute())))
    replaced = {*filter(os.path.islink, way), end}
    return frozenset(WatchTarget(os.path.dirname(one), writes=True) for one in replaced)
