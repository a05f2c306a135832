"""A host after another boot: the same hardware, with all that the kernel counts counted otherwise."""

import re
from collections.abc import Sequence
from typing import Final

_USB: Final = re.compile(r"(usb)?([0-9]+)(-.*)?")
_COUNTED: Final = re.compile(r"(i2c-|v4l-subdev|[A-Za-z_:-]*[A-Za-z_-])([0-9]+)(.*)")
_SOUND: Final = re.compile(r"(card|controlC|pcmC|hwC|midiC)([0-9]+)(.*)")
_LETTERED: Final = re.compile(r"(sd)([a-z])([0-9]*)")
_OWNERS: Final = ("usb", "pci", "platform", "acpi", "pnp", "scsi")
_NAMED: Final = ("usb", "if", "pci", "dir", "platform", "acpi", "pnp", "hid")  # nothing is counted
_NOT_DEVICES: Final = ("link", "file", "char")


class Line:
    def __init__(self, text: str, owner: int) -> None:
        self.indent = text[: len(text) - len(text.lstrip())]
        self.subsystem, self.name, *self.rest = text.strip().split(" ")
        self.owner = owner  # the line of the device on a bus that it is below

    @property
    def is_node(self) -> bool:
        """Return whether a container can be given it."""
        if self.subsystem in ("usb", "pci"):
            return False
        number = bool(self.rest) and re.fullmatch("[0-9]+:[0-9]+", self.rest[0])
        return self.subsystem == "net" or bool(number)

    def __str__(self) -> str:
        return f"{self.indent}{' '.join((self.subsystem, self.name, *self.rest))}"


def parsed(text: str) -> list[Line]:
    above: list[tuple[int, int]] = []
    lines: list[Line] = []
    for line in text.splitlines():
        if line.split("#")[0].strip() and line.split()[0] not in _NOT_DEVICES:
            depth = len(line) - len(line.lstrip())
            above = [pair for pair in above if pair[0] < depth]
            if line.split()[0] in _OWNERS:
                above.append((depth, len(lines)))
            lines.append(Line(line, above[-1][1] if above else -1))
    return lines


def others(text: str) -> list[str]:
    """Return what a tree has beside devices: links and files."""
    return [line for line in text.splitlines() if line.startswith(_NOT_DEVICES)]


def after_boot(text: str) -> str:
    """Return a whole tree after another boot; links lead to the same devices."""
    lines = parsed(text)
    again = renumbered(lines)
    names = {
        line.name: match.split()[1]
        for line, match in zip(lines, again, strict=True)
        if line.is_node and line.subsystem != "sound"
    }
    rest = [
        " ".join(
            "/".join(names.get(part, part) for part in word.split("/")) for word in line.split(" ")
        )
        if line.startswith("link")
        else line
        for line in others(text)
    ]
    return "\n".join([*again, *rest])


def renumbered(lines: Sequence[Line]) -> list[str]:
    """Return the same devices after a replug of all, in another order.

    Bus and device numbers are others, and what the kernel counts is counted the other way round,
    but for the nodes of one device.
    """
    again, counted = [], _recounted(lines)
    for line in lines:
        name, rest = line.name, list(line.rest)
        if line.subsystem in ("usb", "if") and (match := _USB.fullmatch(name)):
            name = f"{match[1] or ''}{int(match[2]) + 2}{match[3] or ''}"
            rest = [
                f"bus={int(word[4:]) + 2}" if word.startswith("bus=")
                else f"dev={int(word[4:]) + 40}" if word.startswith("dev=")
                else word
                for word in rest
            ]  # fmt: skip
        elif line.subsystem == "vfio":
            name = f"{name}0" if name.isdecimal() else name
        elif line.subsystem == "pci":
            rest = [f"{word}0" if word.startswith("group=") else word for word in rest]
        elif (family := _family(line)) is not None:
            stem, number, end = _parts(line)
            count = counted[family]
            name = f"{stem}{chr(count + ord('a')) if number.isalpha() else count}{end}"
            rest = [
                re.sub(f"^(devname=.*){re.escape(line.name)}$", rf"\g<1>{name}", w) for w in rest
            ]
        again.append(f"{line.indent}{' '.join((line.subsystem, name, *rest))}")
    return again


def _recounted(lines: Sequence[Line]) -> dict[tuple[str, int], int]:
    """Return other numbers of what is counted, by family and number."""
    counts: dict[str, dict[int, list[int]]] = {}  # by family and owner
    for line in lines:
        if (family := _family(line)) is not None:
            owners = counts.setdefault(family[0], {})
            numbers = owners.setdefault(line.owner, [])
            numbers += [family[1]] if family[1] not in numbers else []
    counted: dict[tuple[str, int], int] = {}
    for name, owners in counts.items():
        free = sorted({number for numbers in owners.values() for number in numbers})
        for numbers in reversed(owners.values()):
            for number in sorted(numbers):
                if (name, number) not in counted:
                    counted[name, number] = free.pop(0) + (0 if name == "sd" else 1)
    return counted


def _parts(line: Line) -> tuple[str, str, str]:
    pattern = _SOUND if line.subsystem == "sound" else _COUNTED
    match = _LETTERED.fullmatch(line.name) or pattern.fullmatch(line.name)
    return (match[1], match[2], match[3]) if match else ("", "", "")


def _family(line: Line) -> tuple[str, int] | None:
    """Return what is counted together, and the number."""
    stem, number, _ = _parts(line) if line.subsystem not in _NAMED else ("", "", "")
    if not number:
        return None
    order = ord(number) - ord("a") if number.isalpha() else int(number)
    return ("sound" if line.subsystem == "sound" else stem, order)
