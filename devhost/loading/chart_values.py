"""What the chart's values allow a configuration to use: the flags that the chart makes of them."""

import posixpath
import re
from collections.abc import Iterator
from typing import Any, Final

from devhost.allocation.policy import VALUE_PROBLEMS, Policy
from devhost.errors import Severity
from devhost.loading.spelling import did_you_mean
from devhost.loading.wrong_shapes import shown
from devhost.loading.yamltree import Path, Tree

_KEYS: Final = (*VALUE_PROBLEMS, "exec")
# What the chart mounts in any case, if it allows paths (its templates/_helpers.tpl).
_MOUNTED: Final = (
    *("/dev", "/proc"),
    *("/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices"),
)

_Mistake = tuple[Severity, str, tuple[int, int]]  # with its position


class Allowed:
    """What the values at a place allow, or what one of their profiles does.

    Attributes:
        policy: As flags.
        mistakes: What is not as the chart takes it; errors are not in the policy.
    """

    def __init__(self, tree: Tree, base: Path, profile: Path = ()) -> None:
        self.mistakes: list[_Mistake] = []
        self._tree, self._exec = tree, False
        self._globs: dict[str, list[tuple[Path, str]]] = {}
        self._read((*base, "allow"))
        if profile:  # replaces what it has
            self._read((*profile, "allow"), in_profile=True)
        flags: dict[str, Any] = {
            f"allow_{key}": tuple(glob for _, glob in found) for key, found in self._globs.items()
        }
        self.policy = Policy(**flags, allow_exec=self._exec)
        self._mounted = _mounted(tree.value(base), tree.value(profile or base))
        self._check_globs()

    def _read(self, path: Path, *, in_profile: bool = False) -> None:
        values = self._tree.value(path[:-1])
        if "allow" not in values:
            return
        for one in self._tree.duplicates:
            if one.path[: len(path)] == path:
                self.mistakes.append(("error", one.message, (one.line, one.column)))
        if not isinstance(values["allow"], dict):
            self._note(path, "should be a mapping")
            return
        for key, value in values["allow"].items():
            if key not in _KEYS:
                hint = did_you_mean(key, _KEYS) or f"; known keys: {', '.join(_KEYS)}"
                self._note((*path, key), f"unknown key '{key}'{hint}", on_key=True)
            elif value is not None or in_profile:  # elsewhere, Helm removes what is null
                self._take((*path, key), key, value)

    def _take(self, path: Path, key: str, value: Any) -> None:
        if key == "exec":
            self._exec = value is True
            if not isinstance(value, bool):
                self._note(path, "should be true or false")
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            self._globs[key] = [*self._valid(path, key, value)]
        else:
            self._note(path, "should be a list of strings")

    def _valid(self, path: Path, key: str, globs: list[str]) -> Iterator[tuple[Path, str]]:
        for index, glob in enumerate(globs):
            problem = VALUE_PROBLEMS[key](glob)
            if not glob or any(map(str.isspace, glob)):  # the flag's variable is split there
                problem = f"{glob!r} is empty or contains a space; '?' matches one"
            if problem is None:
                yield (*path, index), glob
            else:
                self._note((*path, index), problem)

    def unmounted(self, glob: str) -> str | None:
        """Say what to do where the chart does not mount what a path or glob names."""
        before = re.split(r"[*?\[]", glob, maxsplit=1)[0]
        path = before if before == glob else before[: before.rfind("/") + 1]
        path = posixpath.normpath(path or "/")
        if any(f"{path}/".startswith(one) for one in self._mounted):
            return None
        how = f"add {path}, or a parent directory that all nodes have, to hostPaths"
        if path == "/":
            how = "set hostRoot.enabled, or a narrower path"
        return f"'{glob}' is not below a directory that the chart mounts; {how}"

    def _check_globs(self) -> None:
        """Warn of what the chart refuses, unless values in another file mount it."""
        for key in ("paths", "devices"):
            for path, glob in self._globs.get(key, ()):
                is_path = key == "paths" or "/" in glob  # else a class of devices
                if is_path and (problem := self.unmounted(glob)):
                    self._note(path, problem, severity="warning")

    def _note(
        self, path: Path, message: str, *, on_key: bool = False, severity: Severity = "error"
    ) -> None:
        at = self._tree.position(path)
        place = at.key if on_key else (at.line, at.column)
        self.mistakes.append((severity, f"{shown(path)}: {message}", place))


def _mounted(*values: dict[str, Any]) -> list[str]:
    """Return what the chart mounts, each with a '/' at its end, by values and a profile's."""
    given = {key: value for one in values for key, value in one.items()}
    roots = [one["hostRoot"] for one in values if isinstance(one.get("hostRoot"), dict)]
    if any(root.get("enabled") for root in roots[-1:]):
        return ["/"]
    paths = given.get("hostPaths")
    found = [*_MOUNTED, *(map(str, paths) if isinstance(paths, list) else ())]
    return [f"{posixpath.normpath(one)}/" for one in found]
