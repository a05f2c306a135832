"""What there is: a host's files, a configuration, and what a kubelet must have of them."""

import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PER_RESOURCE = 8  # names of devices
_TTY_USB = 188  # Documentation/admin-guide/devices.txt in Linux
MANY = 6000  # tokens: a list that fills a client's window
BAD = (
    "",
    "version: v1\nresources: [",
    "version: v2\nresources: []\n",
    "version: v1\nresources: [{name: nonsense, sources: [static: 1]}]\n",
    "version: v1\nresources: [{name: example.com/a, sources: [static: 1], unknown: 1}]\n",
    "version: v1\nresources: [{name: example.com/a, sources: [static: 1], health: {exec: [rm]}}]\n",
    "a: &a [*a]\n",
    "\x00\x01\x02",
    "[" * 20_000,
)


@dataclass
class Declared:
    """A resource of the configuration, with what edits change about it.

    Attributes:
        kind: directory, recursive, glob, dev, tokens or many.
        place: Where its files are, below the root.
        there: Whether the configuration has it.
        replicas: Shares of each device.
        prefix: What `id` puts before the name.
        limit: `maxDevices`.
        excluded: A name that `exclude` leaves out.
        count: Of tokens.
    """

    name: str
    kind: str
    place: str = ""
    there: bool = True
    replicas: int = 1
    prefix: str = ""
    limit: int | None = None
    excluded: str | None = None
    count: int = 3

    def yaml(self) -> str:
        exclude = f", exclude: [{self.excluded}]" if self.excluded else ""
        source = {
            "directory": f"directory: {{path: /{self.place}{exclude}}}",
            "recursive": f"directory: {{path: /{self.place}, recursive: true}}",
            "glob": f'glob: {{paths: "/{self.place}/*"{exclude}}}',
            "dev": f'dev: {{pattern: "{self.place.removeprefix("dev/")}/.*", types: [char, file]}}',
        }.get(self.kind, f"static: {self.count}")
        variable = self.name.rpartition("/")[2].upper()
        more = f", maxDevices: {self.limit}" if self.limit else ""
        more += f', id: "{self.prefix}${{name}}"' if self.prefix else ""
        return (
            f"  - {{name: {self.name}, sources: [{source}], replicas: {self.replicas},"
            f' removeMissingAfter: 500ms, allocate: {{env: {{{variable}: "${{id}}"}}}}{more}}}\n'
        )


@dataclass(frozen=True)
class Wanted:
    """What a kubelet must have of a resource: so many IDs, all of these."""

    count: int
    ids: frozenset[str]


class World:
    """A host's root directory and what is declared for it."""

    def __init__(self, root: Path, lots: random.Random) -> None:
        self.root, self._lots = root, lots
        self.resources = [
            *(Declared(f"example.com/dir{n}", "directory", f"res/dir{n}") for n in range(8)),
            *(Declared(f"example.com/tree{n}", "recursive", f"res/tree{n}") for n in range(3)),
            *(Declared(f"example.com/glob{n}", "glob", f"res/glob{n}") for n in range(6)),
            *(Declared(f"example.com/dev{n}", "dev", f"dev/bus{n}") for n in range(6)),
            *(Declared(f"example.com/token{n}", "tokens") for n in range(6)),
            Declared("example.com/many", "many", count=MANY),
        ]
        self._minors: dict[Path, int] = {}
        self.places = [one.place for one in self.resources if one.place]
        for place in self.places:
            self.mend(place)

    # ── files ──

    def _names(self, place: str) -> list[str]:
        deep = "sub/" if "tree" in place else ""
        return [f"{place}/{deep if n % 2 else ''}d{n}" for n in range(PER_RESOURCE)]

    def mend(self, place: str) -> None:
        """See that a directory is there, and where there are directories in it, those."""
        away = self.root / f"{place}.away"
        path = self.root / place
        if away.exists():
            shutil.rmtree(path, ignore_errors=True)
            away.rename(path)
        (path / "sub" if "tree" in place else path).mkdir(parents=True, exist_ok=True)

    def plug(self) -> str:
        """A device comes, goes or is renamed; return which."""
        place = self._lots.choice(self.places)
        path = self.root / self._lots.choice(self._names(place))
        if not path.parent.is_dir():
            return "nothing"
        if not path.exists():
            self._make(path)
            return "plugged"
        if self._lots.random() < 0.3:
            other = path.with_name(self._other(path.name))
            self._minors[other], self._minors[path] = self._minor(path), self._minor(other)
            path.replace(other)
            return "renamed"
        path.unlink()
        return "unplugged"

    def _other(self, name: str) -> str:
        number = (int(name[1:]) + 2 * self._lots.randrange(4)) % PER_RESOURCE
        return f"d{number}"  # in the same directory, also of a tree

    def _make(self, path: Path) -> None:
        if "/dev/" in str(path) and os.geteuid() == 0:
            os.mknod(path, 0o20660, os.makedev(_TTY_USB, self._minor(path)))
        else:
            path.touch()

    def _minor(self, path: Path) -> int:
        """Return the number of a node: what has the same one is the same device."""
        return self._minors.setdefault(path, len(self._minors))

    def upheaval(self) -> str:
        """A whole directory goes away, comes back, or is replaced; return which."""
        place = self._lots.choice(self.places)
        path = self.root / place
        if not path.is_dir():
            self.mend(place)
            return "directory back"
        if self._lots.random() < 0.5:
            shutil.rmtree(path)
            return "directory removed"
        path.rename(self.root / f"{place}.away")
        return "directory renamed"

    # ── the configuration ──

    def edit(self) -> str:
        """Change some resources; return the new configuration."""
        draw = self._lots.choice
        for one in self._lots.sample(self.resources, self._lots.randint(1, 6)):
            one.there = self._lots.random() < 0.8
            one.replicas = draw((1, 1, 1, 2, 3)) if one.kind != "many" else 1
            one.prefix = draw(("", "", "x-")) if one.kind in ("directory", "dev") else ""
            one.limit = draw((None, None, 2, 5)) if one.kind == "directory" else None
            one.excluded = draw((None, None, "d1")) if one.kind == "directory" else None
            one.count = MANY + draw((0, 1)) if one.kind == "many" else draw((0, 1, 3, 20))
        return self.yaml()

    def yaml(self) -> str:
        order = self._lots.sample(self.resources, len(self.resources))
        resources = "".join(one.yaml() for one in order if one.there)
        return f"version: v1\nresources:\n{resources}" if resources else BAD[2]

    def bad(self) -> str:
        """Return a configuration that must be refused."""
        return self._lots.choice((*BAD, self.yaml() + "oops: 1\n", self.yaml()[:-3]))

    def whole(self) -> str:
        """Have everything in place, and declare every resource; return the configuration."""
        for place in self.places:
            self.mend(place)
        for one in self.resources:
            one.there = True
        return self.yaml()

    # ── what follows ──

    def wanted(self) -> Mapping[str, Wanted]:
        """Return what a kubelet must have of each declared resource."""
        return {one.name: self._wanted(one) for one in self.resources if one.there}

    def _wanted(self, one: Declared) -> Wanted:
        if one.place:
            place = self.root / one.place
            strip = 4 if one.kind == "dev" else len(one.place) + 1
            names = [
                str(path.relative_to(self.root))[strip:]
                for path in place.rglob("*")
                if not path.is_dir() and path.name != one.excluded
            ]
            # `dev` gives the path below /dev; `${name}` is the base name everywhere.
            bases = [f"{one.prefix}{Path(name).name}" if one.prefix else name for name in names]
        else:
            bases = [str(number) for number in range(one.count)]
        ids = (
            {f"{base}::{share}" for base in bases for share in range(one.replicas)}
            if one.replicas > 1
            else set(bases)
        )
        count = len(bases) if one.limit is None else min(one.limit, len(bases))
        return Wanted(count * one.replicas, frozenset(ids))
