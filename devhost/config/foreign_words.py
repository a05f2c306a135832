"""Words of other programs that people write here, and what devhost calls them."""

import re
from collections.abc import Collection
from typing import Final

_RENDER: Final = "render it first, such as by 'helm template'"
_GO_TEMPLATE: Final = re.compile(r"\{\{-?\s*([^{}\n]*?)\s*-?\}\}")
_OF_HELM: Final = re.compile(r"\.(Values|Release|Chart|Capabilities|Files|Template)\b|[a-z]+ ")


def _by_word(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the names that each word may stand for."""
    names: dict[str, tuple[str, ...]] = {}
    for name, words in table.items():
        for word in words.split():
            names[word] = (*names.get(word, ()), name)
    return names


# By key: in lower case, what others call it.
_KEYS: Final = _by_word(
    {
        "attr": "attributes attribute attrs",
        "checks": "probes",
        "hostPath": "source src path",
        "containerPath": "mountpath target path",
        "device": "id",
        "env": "environment envs",
        "exec": "command cmd",
        "failures": "failurethreshold",
        "health": "healthcheck healthchecks livenessprobe readinessprobe",
        "glob": "path paths pattern",
        "include": "glob globs pattern filter match",
        "interval": "periodseconds every",
        "matches": "contains content pattern value",
        "maxDevices": "limit limits nummaxdevices",
        "mounts": "volumes volumemounts",
        "name": "resourcename resource",
        "nodeNames": "nodes nodename node",
        "paths": "path glob pattern include",
        "pattern": "path glob regex regexp",
        "recoveries": "successthreshold",
        "replicas": "shares sharing timeslicing",
        "run": "command cmd exec",
        "serial": "serialnumber iserial",
        "sources": "device devices hostpath path paths",
        "timeout": "timeoutseconds",
    }
)
# By the class of the mapping and the key: what to write.
_NOTES: Final = {
    ("DeviceNode", "readOnly"): "for a device, write permissions: r",
    ("HealthChecks", "readable"): "write health: readable",
    ("HealthChecks", "writable"): "write health: writable",
    ("Probe", "readable"): "write - readable",
    ("Probe", "writable"): "write - writable",
    ("Allocate", "path"): "below 'devices', write - {hostPath: …, containerPath: …}",
    ("Glob", "include"): "write the globs of what to include as 'paths'",
    ("Resource", "dra"): "write backend: dra",
    ("Config", "services"): "of Docker Compose, whose files 'devhost convert' translates",
    ("Sysfs", "ATTRS"): "for a device above it, write parent: {attr: …}",
    ("Resource", "count"): "'replicas' shares each device, 'maxDevices' limits their number, "
    "and a source 'static' makes some",
    ("Resource", "groups"): "of generic-device-plugin, whose files 'devhost convert' translates",
    ("Resource", "nodeSelector"): "write nodeNames, with globs of names; by labels, use `profiles` "
    "of the chart",
    **dict.fromkeys([("Usb", "attributes"), ("Pci", "attributes")], "'attr' is below 'node'"),
} | {
    ("Config", key): "a value of the chart, where 'resources' is below 'config'"
    for key in ("image", "allow", "hostPaths", "deviceAccess", "cdi", "kubelet")
}
_SELECTORS: Final = ("Usb", "UsbSelector", "Pci", "PciSelector")
_NUMBER: Final = re.compile("(?:id)?_?(?:v|vendor|p|product|device)(?:_?id)?", re.IGNORECASE)
# By variable: what others call it.
_VARIABLES: Final = _by_word(
    {
        "path": "device device.path devicePath device_path hostPath node file",
        "index": "idx i n",
        "id": "device.id deviceId device_id deviceID",
        "name": "device.name deviceName basename",
        "nodeName": "node.name NODE_NAME hostname",
    }
)
# Files of other programs that `convert` does not read, by what only they have.
_OTHERS: Final = {
    r"resourceList['\"]?:": "of the SR-IOV device plugin: for each entry, write `pci` with `pf`",
    r"\bakri\.sh/": "of Akri: docs/tasks/pods.md says what to write instead",
    r"permittedHostDevices": "of KubeVirt, which goes on needing it: see docs/tasks/pods.md",
    r"timeSlicing|migStrategy": "of NVIDIA's plugin, which works beside devhost",
}


def explain_file(text: str) -> str:
    """Return whose settings a file has, and what helps, or an empty string."""
    return next((f"a file {of}" for mark, of in _OTHERS.items() if re.search(mark, text)), "")


def explain_key(model: str, key: str) -> str:
    """Return what to write instead of a key in a mapping of a class, or an empty string."""
    if model in _SELECTORS and _NUMBER.fullmatch(key):
        return 'vendor and product are one key: device: "VENDOR:PRODUCT"'
    return _NOTES.get((model, key), "")


def translate_key(key: str, keys: Collection[str]) -> str:
    """Return which of the keys one of another program stands for, or an empty string."""
    return next((option for option in _KEYS.get(key.lower(), ()) if option in keys), "")


def translate_variable(name: str, allowed: Collection[str]) -> str:
    """Return which of the variables one of another program stands for, or an empty string."""
    return next((variable for variable in _VARIABLES.get(name, ()) if variable in allowed), "")


def explain_template(text: str, allowed: Collection[str]) -> str:
    """Return what to write instead of a template of Go or Jinja in a text, or an empty string."""
    if (template := _GO_TEMPLATE.search(text)) is None:
        return ""
    inside = template[1]
    if _OF_HELM.match(inside):
        return _RENDER
    word = inside.strip(". ")
    variable = word if word in allowed else word.lower() if word.lower() in allowed else "name"
    return f"write a variable, such as ${{{translate_variable(word, allowed) or variable}}}"
