"""The policy of a process: editing a configuration must not give control of the node.

Without flags, containers may be given only character devices below ``/dev`` of classes that are
known to be safe. Everything else needs a flag, and each flag adds to that.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from devhost.hostfs.device_classes import BLOCK, MEMORY, UNKNOWN, DeviceClass
from devhost.hostfs.files import is_in_dev, is_wild
from devhost.model import names
from devhost.model.allocation import Allocation, Target
from devhost.model.hardware_sources import PAIR_PATTERN, Pci, Sysfs, Usb
from devhost.model.pattern import matches_any
from devhost.model.sources import Glob, Kind

_Right = Literal["annotation", "cdi", "device", "dra", "exec", "path"]

_WORD: Final = re.compile(r"[\w:-]+")  # that neither a shell nor YAML takes for anything else
_ANY_NODES: Final = ("/dev/any-name", "/dev/0/9")  # that a glob over all of /dev matches
# By which the container runtimes of NVIDIA, AMD, Habana and Ascend add devices.
_RUNTIME_VARIABLES: Final = ("NVIDIA_*", "ASCEND_*", "*_VISIBLE_DEVICES")
_ADDRESS: Final = "{0}{{4,}}:{0}{{2}}:{0}{{2}}[.][0-7]".format("[0-9A-Fa-f]")
DEVICE_PATTERN: Final = rf"{PAIR_PATTERN}(:[^\s/]+)?|pci:({PAIR_PATTERN}|{_ADDRESS})|place:[^\s/]+"
_LINK: Final = re.compile(r"/dev/[^/*?[]+/by-(id|path)/[^/*?[]+")  # that udev makes
WILD_LINK_PATTERN: Final = r"^/dev/[^/]+/by-(id|path)/.*[*?\[]"
_OF_SEVERAL: Final = ("pci:", "place:pci-", "place:platform-serial8250")  # ports, or disks


@dataclass(frozen=True, slots=True)
class Policy:
    """The flags of a process: what it was started to allow.

    Attributes:
        allow_paths: Globs on resolved host paths of mounts, and of files that not everybody may
            read; ``*`` also matches ``/``.
        enforced: Whether asking for more is an error in a file, and refused on a host.
        allow_devices: Classes of devices, ``vendor:product`` of raw USB nodes, globs on resolved
            paths of device nodes, and what devices are (docs/devices.md).
        allow_resources: Names of resources that another device plugin may serve too.
        allow_cdi: Globs on fully qualified CDI names, and on variables by which a container
            runtime adds devices.
        allow_annotations: Globs on annotation keys.
        dra: Whether resources may be offered by DRA.
        node_name: The node for which a file is judged; ``None``: for any.
        adds_values: Whether `allow` in values of the chart adds to it; not where pods get devices.
        by_values: Whether it is that of an instance of the chart, whose values people change.
        trusted: Whether code asks rather than a configuration: it may have any device node.
        executes: Whether commands that are allowed may run in this process.
    """

    allow_paths: tuple[str, ...] = ()
    allow_exec: bool = False
    enforced: bool = False
    allow_devices: tuple[str, ...] = ()
    allow_resources: tuple[str, ...] = ()
    allow_cdi: tuple[str, ...] = ()
    allow_annotations: tuple[str, ...] = ()
    dra: bool = False
    node_name: str | None = None
    adds_values: bool = False
    by_values: bool = False
    trusted: bool = False
    executes: bool = True

    def needed(self, right: _Right, *values: str) -> str:
        """Return what would allow more, to be pasted: a flag, or values of the chart."""
        key = right if right in ("cdi", "exec") else f"{right}s"
        flag, path = f"--allow-{right}", f"allow.{key}"
        if right == "dra":
            flag, path = "--dra", "dra.enabled"
        texts = [text if _WORD.fullmatch(text) else f"'{text}'" for text in values]
        if not self.by_values:
            return f"{' '.join(f'{flag} {text}' for text in texts) or flag} (chart: {path})"
        above, _, key = path.partition(".")
        value = f"[{', '.join(texts)}]" if texts else "true"
        return f"{above}: {{{key}: {value}}}"

    @property
    def runs_commands(self) -> bool:
        """Whether the commands of a file run."""
        return self.allow_exec and self.executes

    @property
    def dra_problem(self) -> str | None:
        """Why no resource may be offered by DRA, or ``None``."""
        return None if self.dra else f"Dynamic Resource Allocation needs {self.needed('dra')}"

    def allows_path(self, path: str) -> bool:
        """Return whether ``--allow-path`` names a resolved host path."""
        return matches_any(path, self.allow_paths)

    @property
    def shown_paths(self) -> tuple[str, ...] | None:
        """Globs on what may be shown although only some users may see it; ``None``: all may."""
        return self.allow_paths if self.enforced else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of flags that allow more than is likely meant."""
        return tuple(
            f"--allow-device '{glob}' covers all of /dev, and every disk with it: name the "
            "devices, such as /dev/disk/by-id/ata-ACME_1"
            for glob in self.node_globs
            if all(matches_any(path, (glob,)) for path in _ANY_NODES)
        )

    @property
    def identities(self) -> tuple[str, ...]:
        """Rights to what a device is: links, and globs on what `DeviceClasses.ids` returns."""
        return tuple(filter(None, map(_identity, self.allow_devices)))

    @property
    def node_globs(self) -> tuple[str, ...]:
        """The rights that are globs on resolved paths of nodes."""
        return tuple(glob for glob in self.allow_devices if "/" in glob)

    def file_problem(self, realpath: str, *, mount: bool) -> str | None:
        """Return why a real path that is no device node may not be given to others, or ``None``.

        Without ``mount`` it is an argument of a command.
        """
        if self.allows_path(realpath):
            return None
        subject = "mounts of" if mount else "files such as"
        return f"{subject} {realpath} need {self.needed('path', realpath)}"

    def node_problem(
        self, path: str, device_class: DeviceClass, use: str | None = None, ids: Iterable[str] = ()
    ) -> str | None:
        """Return why a device node, by its real path, may not be given to a container, or ``None``.

        It may be in ``use`` by the host; ``ids`` are udev's links to it, and `DeviceClasses.ids`.
        """
        if self.trusted or (path in self.allow_devices and not is_wild(path)):
            return None
        needed = f"it needs {self.needed('device', path)}"
        if device_class == MEMORY:
            return f"{path} is of class memory: {needed}, without wildcards"
        named = {word for word in ids if matches_any(word, self.identities)}
        in_full = (word for word in named.intersection(self.identities) if not is_wild(word))
        if use is not None and all(word.startswith(_OF_SEVERAL) for word in in_full):
            return f"{path} is in use by the host ({use}): {needed}, without wildcards"
        if matches_any(path, self.node_globs):
            return None
        if not is_in_dev(path):
            return f"{path} is not below /dev: {needed}"
        name, usb_id = device_class.name, device_class.usb_id
        usb_globs = (glob.lower() for glob in self.allow_devices if ":" in glob)
        allowed = name in self.allow_devices or matches_any(usb_id, usb_globs)
        if device_class.safe or named or (allowed and device_class != UNKNOWN):
            return None
        right = device_right(path, device_class) or name
        return f"{path} is of class {name}: it needs {self.needed('device', right)}"

    def name_problem(self, target: Target, name: str) -> str | None:
        """Return why a variable, annotation or CDI device may not be given, or ``None``."""
        if target == "annotations" and not matches_any(name, self.allow_annotations):
            return f"annotation {name} needs {self.needed('annotation', name)}"
        if target == "cdi" and not matches_any(name, self.allow_cdi):
            return f"CDI device {name} needs {self.needed('cdi', name)}"
        adds_devices = target == "env" and matches_any(name, _RUNTIME_VARIABLES)
        if adds_devices and not matches_any(name, self.allow_cdi):
            needed = f"it needs {self.needed('cdi', name)}"
            return f"by {name} a container runtime adds devices: {needed}"
        return None

    def allocation_problem(self, allocation: Allocation) -> str | None:
        """Return why an answer may not be given, by the names in it, or ``None``."""
        used: tuple[tuple[Target, Iterable[str]], ...] = (
            ("env", allocation.envs),
            ("annotations", allocation.annotations),
            ("cdi", allocation.cdi_devices),
        )
        problems = (self.name_problem(target, name) for target, keys in used for name in keys)
        return next(filter(None, problems), None)


def device_right(path: str, device_class: DeviceClass) -> str | None:
    """Return what has to be in `allow_devices` for a node by its real path; ``None``: nothing."""
    if not is_in_dev(path) or device_class in (UNKNOWN, BLOCK, MEMORY):
        return path
    return None if device_class.safe else device_class.usb_id or device_class.name


def source_identities(kind: Kind, ids: Iterable[str] = ()) -> list[str]:
    """Return rights to what a source selects, by what it is; ``ids`` are those of a node of it."""
    words: list[str] = []
    match kind:
        case Usb(device=[*numbers], serial=serials):
            globs = [re.sub(r"[\s/]", "?", serial) for serial in serials or ("*",)]
            words = [f"{number}:{serial}" for number in numbers for serial in globs]
        case Usb(port=[*ports]):  # the nodes of the device, and those of its interfaces
            places = [f"place:{port}" for port in ports if "-usb" in port]  # not a kernel's name
            words = [word for place in places for word in (place, f"{place}:*")]
        case Pci(device=numbers, address=addresses):
            whole = [f"0000:{text}" if text.count(":") == 1 else text for text in addresses or ()]
            words = [f"pci:{word}" for word in whole or numbers or ()]
        case Sysfs(place=[*places]):
            words = [f"place:{place}" for place in places]
        case Sysfs(parent=parent, name=name) if parent or name:
            words = [word for word in ids if word.startswith("place:")]
        case Glob(paths=paths):
            words = [path for path in paths if "/by-" in path]
    return [word for word in words if device_problem(word) is None]


def _identity(word: str) -> str | None:
    """Return a right to what a device is, with numbers as sysfs has them; ``None`` for others."""
    if word.startswith("place:") or _LINK.fullmatch(word):
        return word
    numbers = re.match(f"{PAIR_PATTERN}(?=:)", word)
    of_usb = f"usb:{numbers[0].lower()}{word[numbers.end() :]}" if numbers else None
    return word.lower() if word.startswith("pci:") else of_usb


def path_glob_problem(glob: str) -> str | None:
    """Return why a glob cannot match an absolute path, or ``None``."""
    return None if glob.startswith(("/", "*", "?", "[")) else f"{glob!r} does not begin with '/'"


def device_problem(text: str) -> str | None:
    """Return why a text is no class, identity or glob on absolute paths, or ``None``."""
    if re.match(WILD_LINK_PATTERN, text):
        return f"{text!r}: a link is named without wildcards; a glob matches what it leads to"
    if "/" in text:
        return path_glob_problem(text)
    if ":" in text and not re.fullmatch(DEVICE_PATTERN, text):
        return (
            f"{text!r} should be like 0403:6001, 0403:* or 0403:6001:SERIAL (lsusb), "
            "pci:8086:15f2 or pci:0000:01:00.0 (lspci -Dnn), or place:PLACE (devhost devices)"
        )
    is_class = ":" in text or not is_wild(text)
    return None if is_class else f"{text!r} is not a class; a glob on paths begins with '/'"


# Functions that return why a value of a field cannot be meant, or ``None``.
VALUE_PROBLEMS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "allow_paths": path_glob_problem,
    "allow_devices": device_problem,
    "allow_resources": names.resource_name_problem,
}
