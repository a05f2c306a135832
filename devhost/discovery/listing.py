"""The list of devices that a command prints: JSON, checked strictly; pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from devhost.immutable import immutable
from devhost.model import names

_KEYS: Final = ("id", "path", "paths", "attributes", "healthy", "reason", "numaNodes")
_NUMA_NODE_MAX: Final = 1023  # Linux's MAX_NUMNODES, at most 1 << 10
_KEY_MAX: Final = 100  # of an unknown key in a message


class ListingError(ValueError):
    """It is no list of devices; the text says where it is wrong."""


@immutable
class ListedDevice:
    """A device of the list.

    Attributes:
        id: Its ID.
        paths: The host paths of its nodes.
        attributes: What it gives to templates, by name, as pairs.
        problem: Why it is unhealthy.
        numa: Its NUMA nodes; ``None`` where the command does not say.
    """

    id: str
    paths: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    problem: str | None = None
    numa: frozenset[int] | None = None


def parsed(output: bytes) -> tuple[ListedDevice, ...]:
    """Return the devices that a command has printed.

    Raises:
        ListingError: It is no list of devices.
    """
    try:
        value = json.loads(
            output.decode(), object_pairs_hook=_without_duplicates, parse_constant=_no_number
        )
    except ListingError:
        raise
    except UnicodeDecodeError:
        raise ListingError("its output is not UTF-8") from None
    except RecursionError:
        raise ListingError("its output is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        what = f"not JSON: {error.msg} at {where}" if output.strip() else "empty"
        raise ListingError(f"its output is {what}") from None
    except ValueError as error:  # a number with too many digits
        raise ListingError(f"its output is not JSON: {error}") from None
    return devices(value)


def devices(value: Any) -> tuple[ListedDevice, ...]:
    """Return the devices of a list.

    Raises:
        ListingError: It is none.
    """
    whole = _mapping(value, "its output", ("devices",))
    if not isinstance(listed := whole.get("devices"), list):
        raise ListingError('its output should be {"devices": […]}')
    found = tuple(_device(one, f"devices[{at}]") for at, one in enumerate(listed))
    _check_distinct("id", (one.id for one in found))
    _check_distinct("path", (path for one in found for path in one.paths))
    return found


def _device(value: Any, where: str) -> ListedDevice:
    given = _mapping(value, where, _KEYS)
    if "id" not in given:
        raise ListingError(f"{where}: needs 'id'")
    device_id = _text(given["id"], f"{where}.id")
    if problem := names.id_problem(device_id):
        raise ListingError(f"{where}.id: {problem}")
    attributes = _mapping(given.get("attributes", {}), f"{where}.attributes", None)
    return ListedDevice(
        device_id,
        _paths(given, where),
        tuple((name, _text(one, f"{where}.attributes.{name}")) for name, one in attributes.items()),
        _problem(given, where),
        _numa(given, where),
    )


def _paths(given: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if "path" in given and "paths" in given:
        raise ListingError(f"{where}: has both 'path' and 'paths'")
    paths = [given["path"]] if "path" in given else given.get("paths", [])
    if not isinstance(paths, list):
        raise ListingError(f"{where}.paths: should be a list")
    for path in paths:
        if problem := names.path_problem(_text(path, f"{where}.paths")):
            raise ListingError(f"{where}.paths: {problem}")
    return tuple(paths)


def _problem(given: Mapping[str, Any], where: str) -> str | None:
    healthy, reason = given.get("healthy", True), given.get("reason")
    if not isinstance(healthy, bool):
        raise ListingError(f"{where}.healthy: should be true or false")
    text = "" if reason is None else _text(reason, f"{where}.reason")
    if healthy:
        return None
    if not text.strip():
        raise ListingError(f"{where}: is not healthy; needs 'reason'")
    return names.printable(text)


def _numa(given: Mapping[str, Any], where: str) -> frozenset[int] | None:
    if "numaNodes" not in given:
        return None
    found = given["numaNodes"]
    if not isinstance(found, list) or not all(
        type(one) is int and 0 <= one <= _NUMA_NODE_MAX for one in found
    ):
        raise ListingError(f"{where}.numaNodes: should be a list of numbers of NUMA nodes")
    return frozenset(found)


def _mapping(value: Any, where: str, known: Iterable[str] | None) -> Mapping[str, Any]:
    """Return an object with known keys, or with any; those that begin with ``x-`` are ignored."""
    if not isinstance(value, dict):
        raise ListingError(f"{where} should be an object")
    for key in value:
        if problem := names.text_problem(key):
            raise ListingError(f"{where}: {problem}")
        if known is not None and key not in known and not key.startswith("x-"):
            shown = ", ".join(known)
            raise ListingError(f"{where}: unknown key {key[:_KEY_MAX]!r} (known: {shown})")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ListingError(f"{where}: should be text")
    if problem := names.text_problem(value):
        raise ListingError(f"{where}: {problem}")
    return value


def _check_distinct(what: str, texts: Iterable[str]) -> None:
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            raise ListingError(f"its output has the {what} {text!r} twice")
        seen.add(text)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        _check_distinct("key", (key for key, _ in pairs))
    return found


def _no_number(text: str) -> NoReturn:
    raise ListingError(f"its output is not JSON: {text} is no number")
