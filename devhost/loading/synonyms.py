"""What Kubernetes, docker and other device plugins call an option."""

import re
from collections.abc import Mapping
from typing import Any, Final

_NUMBER: Final = re.compile(r"(?:0x)?([0-9A-Fa-f*]{1,4})")

# The keys of this language for each; the first that the mapping may have and lacks is meant.
SYNONYMS: Final = {
    "PathInContainer": ("containerPath",),
    "PathOnHost": ("hostPath",),
    "CgroupPermissions": ("permissions",),
    "binds": ("mounts",),
    "apiVersion": ("version",),
    "command": ("run",),
    "count": ("replicas",),
    "destination": ("containerPath",),
    "device": ("sources", "hostPath", "devices"),
    "devices": ("sources", "resources"),
    "environment": ("env",),
    "exec": ("run",),
    "failureThreshold": ("failures",),
    "groups": ("sources",),
    "host": ("hostPath",),
    "limit": ("maxDevices",),
    "max": ("maxDevices",),
    "min": ("minDevices",),
    "mountPath": ("containerPath",),
    "nodeSelector": ("nodeNames",),
    "path": ("sources", "glob", "hostPath", "paths"),
    "paths": ("sources",),
    "periodSeconds": ("interval",),
    "plugins": ("resources",),
    "readOnly": ("permissions",),
    "resource": ("name", "resources"),
    "resourceName": ("name",),
    "shared": ("replicas",),
    "sharing": ("replicas",),
    "source": ("sources", "hostPath"),
    "successThreshold": ("recoveries",),
    "role": ("as",),
    "target": ("containerPath",),
    "timeoutSeconds": ("timeout",),
    "volumeMounts": ("mounts",),
    "volumes": ("mounts",),
}


def source_mistake(key: str, mapping: Mapping[str, Any], kinds: tuple[str, ...]) -> str:
    """Return what to write instead of a source in other words; empty if that is not known."""
    value = mapping.get(key)
    if key in ("type", "kind") and isinstance(value, str) and value in kinds:
        path = mapping.get("path", mapping.get("name"))
        return f"; write {value}: {path if isinstance(path, str) else '…'}"
    named = key in ("path", "paths", "device", "file", "hostPath", "name", "pattern")
    if named and isinstance(value, str) and value.startswith("/"):
        return f"; write the path itself: - {value}"
    if key == "count" and type(value) is int:
        return f"; write static: {value}"
    return ""


def device_number(mapping: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """Return ``vendor:product`` of a mapping with other keys for them."""
    found, products = [], ("product", "productId", "idProduct", "deviceId", "device")
    for keys in (("vendor", "idVendor", "vendorId"), products):
        given = (texts.get(key, "") for key in keys if key in mapping)
        text = next((one for one in given if ":" not in one), "")
        number = _NUMBER.fullmatch(text)
        found.append(number[1] if number else keys[0].upper() if text else "*")
    return ":".join(found)
