"""The steps that Hypothesis draws: files, the configuration, restarts of either side, pods."""

import asyncio
import contextlib
import shutil
from dataclasses import replace
from typing import Any, Final, Self

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from devhost.fake_kubelet.kubelet import AdmissionError, Answer
from tests.model.declared import FILES, IDS, LINKS, SOURCES, Declared, is_token, node_of
from tests.model.expected import Past, Problem, check, listed_for_pods
from tests.model.sequence import Sequence, both_run, host_runs, step

_BEGUN_S: Final = 0.05  # after that an Allocate has begun, most times
NAMES: Final = tuple(f"example.com/{letter}" for letter in "pqrs")
FILE = st.sampled_from([name for names in FILES.values() for name in names])
LINK = st.sampled_from(list(LINKS))
FREE_FILE = st.sampled_from(["a1", "b0", "c0", "c1"])  # no link leads to these
PLACE = st.integers(0, 3)  # of a resource
DECLARED = st.builds(
    Declared,
    name=st.sampled_from(NAMES),
    sources=st.lists(st.sampled_from(SOURCES), min_size=1, max_size=3, unique=True).map(tuple),
    id=st.sampled_from(IDS),
    replicas=st.sampled_from([1, 1, 1, 2, 3]),
    max_devices=st.sampled_from([None, None, None, 1, 2]),
    overlap=st.sampled_from([False, False, False, True]),
    never=st.booleans(),
    answer=st.integers(0, 3),
    here=st.sampled_from([True, True, True, True, False]),
)
BEGINNING = st.lists(DECLARED, min_size=1, max_size=3, unique_by=lambda declared: declared.name)
FIELDS = st.sampled_from(
    ["sources", "id", "replicas", "max_devices", "overlap", "never", "answer", "here"]
)
INVALID = st.sampled_from(["oops: 1\n", "resources: []\n", "{", "\t- x: ["])


def kubelet_is_away(machine: "Sequence") -> bool:
    return not machine.bench.kubelet_is_there


def host_is_away(machine: "Sequence") -> bool:
    return not machine.bench.hosts


class Machine(Sequence):
    """A sequence in which what is listed at rest is known exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.past: dict[str, Past] = {}
        self.former: dict[str, set[str]] = {}  # by the name of a file, those that it had before

    # ── the model's side ──

    def note_change(self) -> None:
        for declared in self.here:
            self.past.setdefault(declared.name, Past()).step(declared, self.root)

    def note_restart(self) -> None:
        self.past.clear()

    def note_lists(self) -> None:
        super().note_lists()
        behind = {declared.name: self.behind(declared, new=True) for declared in self.here}
        for declared in self.here:
            entries = self.entries(declared)
            self.past[declared.name].rest(entries, behind[declared.name], declared.max_devices)
        self.past = {declared.name: self.past[declared.name] for declared in self.here}

    def check_lists(self) -> None:
        taken, alone = set[str](), set[str]()
        for declared in self.here:
            entries = self.entries(declared)
            withheld = self.withheld(declared, entries)
            entries = {key: well for key, well in entries.items() if node_of(key) not in withheld}
            limit = declared.max_devices  # what is withheld has seats, too
            free = replace(declared, max_devices=None if limit is None else limit - len(withheld))
            try:
                past, behind = self.past[declared.name], self.behind(declared)
                unfree, shared = taken | withheld, taken - alone
                offered = check(free, self.root, entries, past, unfree, shared, behind)
            except Problem as problem:
                raise Problem(f"{declared.name}: {problem}: {entries}") from None
            taken |= offered | withheld
            alone |= set[str]() if declared.overlap else offered | withheld

    def entries(self, declared: Declared) -> dict[str, bool]:
        """Return what devhost lists, but for what has left that pods hold: those must be there."""
        entries, held = self.bench.entries(declared.name), self.held(declared.name)
        if not held <= entries.keys():
            raise Problem(f"{declared.name}: {held - entries.keys()} are held, and left: {entries}")
        left = listed_for_pods(declared, entries, self.past[declared.name], held)
        return {device_id: well for device_id, well in entries.items() if device_id not in left}

    def held(self, name: str) -> set[str]:
        """Return the IDs of a resource that pods hold."""
        return {
            device_id
            for resource, answer in self.pods.values()
            if resource == name
            for device_id in answer["deviceIds"][resource]
        }

    def withheld(self, declared: Declared, entries: dict[str, bool]) -> set[str]:
        """Return the nodes of unhealthy devices that pods hold under another name."""
        held = {
            node_of(device_id)
            for resource, answer in self.pods.values()
            for device_id in answer["deviceIds"][resource]
            if not is_token(device_id) and (resource != declared.name or device_id not in entries)
        }
        return {node_of(key) for key, well in entries.items() if not well} & held

    def behind(self, declared: Declared, *, new: bool = False) -> set[str]:
        """Return the nodes that resources behind one offer and do not share.

        Since some time, or also `new`: at rest, what one had no seat for stays with who took it.
        """
        return {
            node_of(device_id)
            for rival in self.here[self.here.index(declared) + 1 :]
            for device_id, well in self.bench.entries(rival.name).items()
            if well and not rival.overlap and not is_token(device_id)
            if new
            or device_id.partition("::")[0]
            in self.past[rival.name].kept | self.past[rival.name].maybe
        }

    # ── the beginning ──

    @initialize(declared=BEGINNING, files=st.sets(FILE))
    def begin(self, declared: list[Declared], files: set[str]) -> None:
        async def begin() -> None:
            for name in files:
                self.path(name).touch()
            await self.start(declared)

        self.run(begin(), f"begin({declared}, {files})")

    # ── files ──

    @step(name=FILE)
    async def create(self, name: str) -> None:
        if self.path(name).parent.is_dir() and not self.path(name).is_symlink():
            self.touch(name)
        self.nudge_links(name)

    @step(name=st.one_of(FILE, LINK))
    async def remove(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)
        self.nudge_links(name)

    @step(name=FILE)
    async def exchange(self, name: str) -> None:
        """Another inode at the path, by a rename."""
        fresh = self.root / "fresh"
        if self.path(name).parent.is_dir():
            fresh.touch()
            fresh.rename(self.path(name))
        self.nudge_links(name)

    @step(name=FILE, new_name=FILE)
    async def rename(self, name: str, new_name: str) -> None:
        old, new = self.path(name), self.path(new_name)
        linked = {name, new_name} & set(LINKS.values()) and old.is_symlink()
        if name != new_name and old.exists() and new.parent.is_dir() and not linked:
            # Where a source finds the new name, the IDs of the former ones leave.
            self.former[new_name] = {name} | self.former.pop(name, set())
            for past in self.past.values():
                past.uncertain(self.former[new_name])
            old.rename(new)
        self.nudge_links(name)
        self.nudge_links(new_name)

    @step(name=FREE_FILE, dangling=st.booleans())
    async def link(self, name: str, dangling: bool) -> None:
        """A symlink out of the directory takes the place of what is there."""
        self.number += 1
        target = self.root / "t" / str(self.number)  # each a node of its own
        target.touch()
        fresh = self.root / "fresh"
        if self.path(name).parent.is_dir():
            fresh.symlink_to(self.root / "t" / "nothing" if dangling else target)
            fresh.rename(self.path(name))
            self.bench.listener.renewed.add(name)

    @step(name=LINK)
    async def second_name(self, name: str) -> None:
        """A symlink to a file that has a name of its own."""
        if self.path(name).parent.is_dir() and not self.path(name).is_symlink():
            self.path(name).symlink_to(self.path(LINKS[name]))

    @step(
        directory=st.sampled_from(list(FILES)),
        how=st.sampled_from(["remove", "away", "back", "empty"]),
    )
    async def whole_directory(self, directory: str, how: str) -> None:
        path, away = self.root / directory, self.root / f"away-{directory}"
        match how:
            case "remove" if path.is_dir():
                shutil.rmtree(path)
            case "away" if path.is_dir():
                shutil.rmtree(away, ignore_errors=True)
                path.rename(away)
            case "back" if away.is_dir() and not path.exists():
                away.rename(path)
            case _:
                path.mkdir(exist_ok=True)
        self.nudge()

    # ── the configuration ──

    def edit(self, declared: list[Declared]) -> None:
        """Write a good configuration, and note it as in force."""
        before = {resource.name: resource for resource in self.declared}
        if not self.rested:  # nodes may have gone to another resource and come back
            for name, past in self.past.items():
                past.forget()
                if name in before and before[name].max_devices is not None:
                    past.was_full()
        for resource in declared:
            past = self.past.setdefault(resource.name, Past())
            past.changed(before.get(resource.name, replace(resource, here=False)), resource)
        for name in before.keys() - {resource.name for resource in declared}:
            gone = replace(before[name], here=False)
            self.past.setdefault(name, Past()).changed(before[name], gone)
        super().edit(declared)

    @step(resource=DECLARED, place=PLACE)
    async def add(self, resource: Declared, place: int) -> None:
        rest = [declared for declared in self.declared if declared.name != resource.name]
        await self.edited([*rest[:place], resource, *rest[place:]])

    @step(index=PLACE)
    async def take_out(self, index: int) -> None:
        await self.edited(
            [declared for place, declared in enumerate(self.declared) if place != index]
        )

    @step(index=PLACE, name=st.sampled_from(NAMES))
    async def rename_resource(self, index: int, name: str) -> None:
        declared = self._changed(index, name=name)
        if len({resource.name for resource in declared}) == len(declared):
            await self.edited(declared)

    @step(index=PLACE, field=FIELDS, like=DECLARED)
    async def change(self, index: int, field: str, like: Declared) -> None:
        await self.edited(self._changed(index, **{field: getattr(like, field)}))

    def _changed(self, index: int, **changes: Any) -> list[Declared]:
        return [
            replace(resource, **changes) if place == index else resource
            for place, resource in enumerate(self.declared)
        ]

    @step(places=st.permutations(range(4)))
    async def reorder(self, places: list[int]) -> None:
        declared = [self.declared[place] for place in places if place < len(self.declared)]
        if len(declared) == len(self.declared):
            await self.edited(declared)

    @step(host_runs, nonsense=INVALID)  # with a host: else it may never have been in force
    async def spoil(self, nonsense: str) -> None:
        """An invalid file: what was in force stays."""
        self.bench.config.write_text(self.text + nonsense)
        await self.read()

    # ── pods ──

    @step(both_run, changes=False, index=PLACE, count=st.integers(1, 3))
    async def admit(self, index: int, count: int) -> None:
        """At rest a pod is admitted if enough is free, and is given what is declared."""
        await self.rest()
        if index >= len(self.here):
            return
        resource = self.here[index]
        listed = self.bench.entries(resource.name).items()
        free = {device_id for device_id, well in listed if well} - self.held(resource.name)
        try:
            answer = await self.admitted(resource.name, count)
        except AdmissionError as error:
            assert len(free) < count, f"{error}\nfree: {free}\n{self.seen()}"
        else:
            ids = set(answer["deviceIds"][resource.name])
            assert len(ids) == count
            assert ids <= free, f"{ids}, free: {free}"
            expected = resource.expected_answer(self.root, ids)
            answered = {key: answer[key] for key in expected}  # type: ignore[literal-required]
            answered["mounts"].sort(key=lambda mount: mount["containerPath"])
            assert answered == expected
        self.never()

    @step(
        both_run,
        indexes=st.lists(PLACE, min_size=1, max_size=3),
        count=st.integers(1, 2),
        name=FILE,
        edit=st.none() | st.tuples(PLACE, FIELDS, DECLARED),
        slow=st.booleans(),
        rest=st.just(True),
    )
    async def admit_during_changes(
        self,
        indexes: list[int],
        count: int,
        name: str,
        edit: tuple[int, str, Declared] | None,
        slow: bool,
    ) -> None:
        """Each pod is admitted or refused, and the kubelet lives."""
        names = [declared.name for declared in self.here]
        wanted = [names[index] for index in indexes if index < len(names)]
        with self.bench.slow_allocate() if slow else contextlib.nullcontext():
            admissions = [
                asyncio.ensure_future(self.admitted(declared, count)) for declared in wanted
            ]
            await asyncio.sleep(_BEGUN_S if slow else 0)
            self.path(name).unlink(missing_ok=True)
            self.nudge_links(name)
            if edit is not None:
                index, field, like = edit
                await self.edited(self._changed(index, **{field: getattr(like, field)}))
            for outcome in await asyncio.gather(*admissions, return_exceptions=True):
                assert isinstance(outcome, AdmissionError | dict), repr(outcome)

    @step(both_run, changes=False)
    async def start_containers_again(self) -> None:
        """Start the containers of pods: each gets what its pod holds, whatever happened since."""
        await self.rest()
        for pod, (_, answer) in self.pods.items():
            again = await self.bench.kubelet.start_container(pod, "app")
            assert _sorted(again) == _sorted(answer)

    # ── either side is away for a time ──

    @step(both_run, rest=st.just(False))
    async def kill_kubelet(self) -> None:
        await self.bench.kill_kubelet()
        self.orphaned.clear()

    @step(kubelet_is_away)
    async def start_kubelet(self) -> None:
        await self.bench.start_kubelet()

    @step(both_run, rest=st.just(False))
    async def stop_host(self) -> None:
        await self.stop()

    @step(host_is_away)
    async def start_host(self) -> None:
        self.note_restart()
        self.bench.start_host()

    @classmethod
    def drawn(cls, declared: list[Declared], *files: str) -> Self:
        """Return one with these resources and files, for a sequence that was drawn once."""
        machine = cls()
        machine.begin(declared, set(files))
        return machine


def _sorted(answer: Answer) -> dict[str, Any]:
    return {
        key: sorted(map(str, value)) if isinstance(value, list) else value
        for key, value in answer.items()
    }
