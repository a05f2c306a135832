"""The part of the configuration language that the model knows, as a test declares it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# Names tell nodes apart: no two directories share one, and an ID can be traced to its name.
FILES: Final = {"d0": ("a0", "a1", "b0", "b1"), "d1": ("c0", "c1")}
LINKS: Final = {"k0": "a0", "k1": "b1"}  # in d1, to files of d0: the same node under two names
TOKENS: Final = {"static 1": ("t0",), "static 2": ("t0", "t1")}
SOURCES: Final = ("d0", "d1", "d0/a*", "d0/*1", "d1/c*", "d1/k*", *TOKENS)
IDS: Final = (None, "${name}", "x-${name}", "${name}-y")
NODE: Final = "node-1"


def directory_of(name: str) -> str:
    return "d0" if name in FILES["d0"] else "d1"


def node_of(advertised_id: str) -> str:
    """Return the node that an ID stands for, whatever the template that made it."""
    name = name_of(advertised_id)
    return LINKS.get(name, name)


def name_of(advertised_id: str) -> str:
    return advertised_id.partition("::")[0].removeprefix("x-").removesuffix("-y")


def is_token(advertised_id: str) -> bool:
    return name_of(advertised_id).startswith("t")


@dataclass(frozen=True, slots=True)
class Declared:
    """One resource of the file."""

    name: str
    sources: tuple[str, ...] = ("d0",)
    id: str | None = None
    replicas: int = 1
    max_devices: int | None = None
    overlap: bool = False
    never: bool = True
    answer: int = 0
    here: bool = True
    group: bool = False  # of all that it finds

    def as_yaml(self, root: Path) -> dict[str, Any]:
        resource: dict[str, Any] = {
            "name": self.name,
            "sources": [_source(root, source) for source in self.sources],
            "replicas": self.replicas,
            "overlap": "allow" if self.overlap else "deny",
            "removeMissingAfter": "never" if self.never else "100ms",
            "allocate": _GROUPED if self.grouped else _ANSWERS[self.shown],
            "nodeNames": [NODE if self.here else "elsewhere"],
        }
        if self.grouped:
            resource["group"] = "together"
        elif self.id is not None:
            resource["id"] = self.id
        if self.max_devices is not None:
            resource["maxDevices"] = self.max_devices
        return resource

    @property
    def grouped(self) -> bool:
        return self.group and not set(self.sources) & TOKENS.keys()

    @property
    def shown(self) -> int:
        """The kind of answer; a token has no path that could be mounted."""
        return 0 if self.answer == 3 and set(self.sources) & TOKENS.keys() else self.answer

    def id_of(self, name: str) -> str:
        return (self.id or "${name}").replace("${name}", name)

    def covers(self, name: str) -> bool:
        """Whether a source could find a file or token of this name."""
        return any(_matches(source, name) for source in self.sources)

    def found(self, root: Path) -> dict[str, list[str]]:
        """Return the nodes that are there now, with the names under which they are found."""
        nodes: dict[str, list[str]] = {}
        for source in self.sources:
            for name in sorted((*FILES["d0"], *FILES["d1"], *LINKS, *TOKENS["static 2"])):
                there = is_token(name) or (root / directory_of(name) / name).is_file()
                names = nodes.setdefault(node_of(name), [])
                if there and _matches(source, name) and name not in names:
                    names.append(name)
        return {node: names for node, names in nodes.items() if names}

    def expected_answer(self, root: Path, advertised_ids: Iterable[str]) -> dict[str, Any]:
        """Return what a container receives for these IDs."""
        ids = sorted({token.partition("::")[0] for token in advertised_ids})
        names = [name_of(token) for token in ids]
        envs: dict[str, str] = {}
        mounts = []
        match self.shown:
            case 0:
                envs = {"DEVICE": ",".join(ids)}
            case 1:
                envs = {"DEVICES": " ".join(ids), "N": str(len(ids)), "OF": self.name}
            case 2:
                envs = {f"D_{index}": name for index, name in enumerate(names)}
            case _:
                mounts = [
                    {
                        "hostPath": str((root / directory_of(name) / name).resolve()),
                        "containerPath": f"/opt/{index}",
                        "readOnly": True,
                    }
                    for index, name in enumerate(names)
                ]
        return {"envs": envs, "mounts": mounts, "devices": [], "annotations": {}}


_ANSWERS: Final[list[dict[str, Any]]] = [
    {"env": {"DEVICE": "${id}"}},
    {
        "env": {
            "DEVICES": {"value": "${id}", "separator": " "},
            "N": "${count}",
            "OF": "${resource}",
        }
    },
    {"env": {"D_${index}": "${name}"}},
    {"mounts": [{"hostPath": "${path}", "containerPath": "/opt/${index}"}]},
]


_GROUPED: Final = {"env": {"NODES": "${realpath}"}}


def _source(root: Path, source: str) -> dict[str, Any]:
    if source in TOKENS:
        return {"static": list(TOKENS[source])}
    return {"glob" if "/" in source else "directory": f"{root}/{source}"}


def _matches(source: str, name: str) -> bool:
    if source in TOKENS:
        return name in TOKENS[source]
    directory, _, wanted = source.partition("/")
    if is_token(name) or directory_of(name) != directory:
        return False
    return wanted in ("", f"{name[0]}*", f"*{name[1]}")


def text_of(declared: Iterable[Declared], root: Path) -> str:
    """Return the configuration file; JSON is YAML."""
    resources = [resource.as_yaml(root) for resource in declared]
    return json.dumps({"version": "v1", "resources": resources}, indent=1) + "\n"
