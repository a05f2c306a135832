"""What a configuration may ask for: editing it must not give control of the node.

Without flags, containers may be given only character devices below ``/dev``, and none that give
access to memory or ports. Everything else needs ``--allow-path`` and ``--allow-exec``.
"""

import fnmatch
import posixpath
from typing import Final

from devhost.immutable import immutable
from devhost.model.device import FileKind

# Linux's Documentation/admin-guide/devices.txt: 1:1 mem, 1:2 kmem, 1:4 port.
_MEMORY_NODES: Final = {(1, 1), (1, 2), (1, 4)}
_MEMORY_PATHS: Final = ("/dev/mem", "/dev/kmem", "/dev/port")
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
    """

    allow_paths: tuple[str, ...] = ()
    allow_exec: bool = False
    enforced: bool = False
    allow_devices: tuple[str, ...] = ()
    allow_resources: tuple[str, ...] = ()
    allow_cdi: tuple[str, ...] = ()
    allow_annotations: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()

    def allows_path(self, path: str) -> bool:
        """Say whether ``--allow-path`` names a resolved host path."""
        return any(fnmatch.fnmatchcase(path, glob) for glob in self.allow_paths)

    def written_refusal(self, path: str, *, mount: bool) -> str | None:
        """Return why a host path as written may not be given to a container.

        `refusal` says the rest, once it is known where the path leads.
        """
        plain = posixpath.normpath(path)
        if self.allows_path(plain) or self.allows_path(_usually(plain)):
            return None
        if mount:
            return f"mounts need --allow-path '{path}'"
        if plain in _MEMORY_PATHS:
            return f"access to memory and ports by {plain} needs --allow-path '{plain}'"
        if not path.startswith("/dev/"):
            return f"{path} is not below /dev: it needs --allow-path '{path}'"
        return None

    def refusal(
        self, realpath: str, kind: FileKind | None, number: tuple[int, int] | None, *, mount: bool
    ) -> str | None:
        """Return why a host path may not be given to a container, or ``None``.

        Args:
            realpath: The host path with ``..`` and links resolved.
            kind: What it is; ``None`` where it does not exist.
            number: A device node's major and minor.
            mount: Whether it is mounted rather than passed as a device node.
        """
        if self.allows_path(realpath):
            return None
        what = "mounts of" if mount else f"{kind.value} devices such as" if kind else "paths like"
        if not mount and kind is FileKind.CHAR and realpath.startswith("/dev/"):
            if number not in _MEMORY_NODES:
                return None
            what = "access to memory and ports by"
        return f"{what} {realpath} need --allow-path '{realpath}'"


def _usually(path: str) -> str:
    """Resolve the usual symlinks in a path, without reading the host."""
    for link, target in _USUAL_LINKS.items():
        if path.startswith(link):
            return target + path.removeprefix(link)
    return path
