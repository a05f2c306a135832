"""What a configuration may ask for: editing it must not give control of the node.

Without flags, containers may be given only character devices below ``/dev`` of classes that are
known to be safe (`device_classes`). Everything else needs a flag.
"""

import fnmatch
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from devhost.allocation.device_classes import MEMORY, UNKNOWN, class_of
from devhost.hostfs.kernel_facts import KernelFacts
from devhost.hostfs.mounts import Number
from devhost.immutable import immutable
from devhost.model.device import FileKind

_NO_FACTS: Final = KernelFacts()
_MEMORY_PATHS: Final = ("/dev/mem", "/dev/kmem", "/dev/port")
# Other filesystems below /dev, where more than the kernel and udev make files.
_NOT_DEV: Final = ("/dev/shm/", "/dev/mqueue/", "/dev/hugepages/")  # noqa: S108 (not made here)
_ANY_NODES: Final = ("/dev/any-name", "/dev/0/9")  # that a glob over all of /dev matches
# Symlinks that nearly every machine has.
_USUAL_LINKS: Final = {"/var/run/": "/run/", "/var/lock/": "/run/lock/"}


@immutable
class Policy:
    """What the process was started to allow.

    Attributes:
        allow_paths: Globs on resolved host paths; ``*`` also matches ``/``.
        allow_exec: Whether a configuration may run commands.
        enforced: Whether asking for more is refused; otherwise it is a warning.
        allow_devices: Classes of devices, and globs on resolved paths of device nodes.
        allow_resources: Globs on resource names.
        allow_cdi: Globs on fully qualified CDI names.
        allow_annotations: Globs on annotation keys.
        allow_env: Globs on names of environment variables.
        trusted: Whether code asks rather than a configuration: it may have any device node.
    """

    allow_paths: tuple[str, ...] = ()
    allow_exec: bool = False
    enforced: bool = False
    allow_devices: tuple[str, ...] = ()
    allow_resources: tuple[str, ...] = ()
    allow_cdi: tuple[str, ...] = ()
    allow_annotations: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()
    trusted: bool = False

    def plus(self, other: "Policy") -> "Policy":
        """Return what the flags of both allow; enforced and trusted as this one."""
        keys = [f"allow_{key}" for key in GLOBS]
        both = {key: getattr(self, key) + getattr(other, key) for key in keys}
        return replace(self, **both, allow_exec=self.allow_exec or other.allow_exec)

    def allows_path(self, path: str) -> bool:
        """Say whether ``--allow-path`` names a resolved host path."""
        return any(fnmatch.fnmatchcase(path, glob) for glob in self.allow_paths)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What flags allow more than is likely meant."""
        return tuple(
            f"{flag} '{glob}' covers all of /dev, and every disk with it: name the devices, such "
            "as '/dev/sd[b-z]'"
            for flag, globs in (
                ("--allow-path", self.allow_paths),
                ("--allow-device", self._node_globs),
            )
            for glob in globs
            if all(fnmatch.fnmatchcase(path, glob) for path in _ANY_NODES)
        )

    @property
    def allows_block(self) -> bool:
        """Whether any block device may be allowed."""
        return bool(self.allow_paths or self._node_globs or "block" in self.allow_devices)

    @property
    def _node_globs(self) -> tuple[str, ...]:
        return tuple(one for one in self.allow_devices if "/" in one)

    def _globs_at(self, path: str) -> tuple[str, ...]:
        """Return what may allow a device node at a resolved path."""
        return self._node_globs + (self.allow_paths if _is_below_dev(path) else ())

    def _allows_node(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, glob) for glob in self._globs_at(path))

    def _names_node(self, path: str) -> bool:
        return path in self._globs_at(path) and not set("*?[") & set(path)

    def written_refusal(self, path: str, *, mount: bool) -> str | None:
        """Return why a host path as written may not be given to a container.

        `refusal` says the rest, once it is known where the path leads.
        """
        plain = posixpath.normpath(path)
        if mount:
            if self.allows_path(plain) or self.allows_path(_usually(plain)):
                return None
            return f"mounts need --allow-path '{path}'"
        if plain in _MEMORY_PATHS:
            return None if self._names_node(plain) else _refused_memory(plain)
        if not path.startswith("/dev/"):
            if self._allows_node(plain) or self._allows_node(_usually(plain)):
                return None
            return f"{path} is not below /dev: it needs --allow-device '{path}'"
        return None

    def refusal(
        self,
        realpath: str,
        kind: FileKind | None,
        number: Number | None,
        *,
        mount: bool,
        facts: KernelFacts = _NO_FACTS,
        use: str | None = None,
    ) -> str | None:
        """Return why a host path may not be given to a container, or ``None``.

        Args:
            realpath: The host path with ``..`` and links resolved.
            kind: What it is; ``None`` where it does not exist.
            number: A device node's major and minor.
            mount: Whether it is mounted rather than passed as a device node.
            facts: What the kernel says of a character device.
            use: Why a block device is in use by the host.
        """
        if not mount and kind is not None and number is not None:
            return self._node_refusal(realpath, kind, number, facts, use)
        if self.allows_path(realpath):
            return None
        what = "mounts of" if mount else f"{kind.value} devices such as" if kind else "paths like"
        return f"{what} {realpath} need --allow-path '{realpath}'"

    def _node_refusal(
        self, path: str, kind: FileKind, number: Number, facts: KernelFacts, use: str | None
    ) -> str | None:
        if self.trusted or self._names_node(path):
            return None
        found = class_of(kind, number, facts)
        if found is MEMORY:
            return _refused_memory(path)
        if use is not None:
            return (
                f"{path} is in use by the host ({use}): it needs --allow-device '{path}', without "
                "wildcards"
            )
        if self._allows_node(path):
            return None
        if not _is_below_dev(path):
            return f"{path} is not below /dev: it needs --allow-device '{path}'"
        if found is UNKNOWN:
            return (
                f"{path} is of class unknown (neither sysfs nor Linux' list of devices knows "
                f"{number[0]}:{number[1]}): it needs --allow-device '{path}'"
            )
        if found.safe or found.name in self.allow_devices:
            return None
        flag = f"--allow-path '{path}'" if found.name == "block" else f"--allow-device {found.name}"
        return f"{path} is of class {found.name} ({found.gives}): it needs {flag}"


def path_glob_problem(glob: str) -> str | None:
    """Return why a glob cannot match an absolute path, or ``None``."""
    return None if glob.startswith(("/", "*", "?", "[")) else f"{glob!r} does not begin with '/'"


def device_glob_problem(text: str) -> str | None:
    """Return why a text is neither a class nor a glob on absolute paths, or ``None``."""
    if "/" in text:
        return path_glob_problem(text)
    if set("*?[") & set(text):
        return f"{text!r} is not a class; a glob on paths begins with '/'"
    return None


# What globs allow, by the part of the flag's name after ``--allow-``, and why one is no such glob.
GLOBS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "paths": path_glob_problem,
    "devices": device_glob_problem,
    **dict.fromkeys(("resources", "cdi", "annotations", "env"), lambda _: None),
}


def _is_below_dev(path: str) -> bool:
    return path.startswith("/dev/") and not path.startswith(_NOT_DEV)


def _refused_memory(path: str) -> str:
    return (
        f"{path} is of class {MEMORY.name} ({MEMORY.gives}): it needs --allow-device '{path}', "
        "without wildcards"
    )


def _usually(path: str) -> str:
    """Resolve the usual symlinks in a path, without reading the host."""
    for link, target in _USUAL_LINKS.items():
        if path.startswith(link):
            return target + path.removeprefix(link)
    return path
