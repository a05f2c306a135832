"""A claim that is prepared is as it was, whatever is edited: but for the numbers of its nodes."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from devhost.config.loader import loads
from tests.dra.world import World, eventually

X, Y = "example.com/x", "example.com/y"
NUMBERED: Final = {"devices": [{"hostPath": "${path}", "containerPath": "/dev/q${index}"}]}
VARIABLE: Final = {"dev": "null|(?P<a>zero)"}  # which /dev/null lacks
HERE: Final = {"dev": "null|zero"}
LINKED: Final = "LINKS/*"  # by another path
ELSEWHERE: Final = {"dev": "zero"}

Fields = Mapping[str, Any]
ALLOCATE: Final = st.sampled_from(
    [
        {},
        NUMBERED,
        {"env": {"A": "one"}},
        {**NUMBERED, "env": {"A": "b", "B": "${path}"}},
        {"mounts": [{"hostPath": "LINKS", "containerPath": "/links"}]},
    ]
)
BEFORE: Final = st.builds(
    lambda sources, allocate, keys: {"sources": sources, "allocate": allocate, **keys},
    st.sampled_from([[HERE], [VARIABLE]]),
    ALLOCATE,
    st.sampled_from(
        [
            {},
            {"replicas": 2},
            {"replicas": 2, "maxPerContainer": 1},
            {"preStart": [{"run": ["sh", "-c", "echo >> MARKS"]}]},
        ]
    ),
)
AFTER: Final = st.fixed_dictionaries(
    {
        "name": st.sampled_from([X, X, X, Y]),
        "sources": st.sampled_from([[HERE], [VARIABLE], [LINKED], [ELSEWHERE]]),
        "allocate": ALLOCATE | st.just({"env": {"A": "${a}"}}),
        "backend": st.sampled_from(["dra", "dra", "dra", "devicePlugin"]),
    },
    optional={
        "id": st.just("x-${name}"),
        "inject": st.just("cdi"),
        "maxPerContainer": st.sampled_from([1, 2]),
        "replicas": st.sampled_from([2, 3]),
    },
)
Return = Literal["live", "restarted", "rebooted"]


def text_of(directory: Path, *resources: Fields) -> str:
    """Return a file of JSON, which is YAML."""
    content = json.dumps({"version": "v1", "resources": resources})
    links, marks = directory / "links", directory / "marks"
    return content.replace("LINKS", str(links)).replace("MARKS", str(marks))


async def until_applied(world: World) -> None:
    """Wait until the devices on offer are those of the configuration in force."""

    def is_applied() -> bool:
        host = world.host
        return host.configured and all(
            served.draining
            or (
                served.answers.up_to_date.is_set()
                and served.scan not in host.parts.reconciler.active
            )
            for served in host.resources
        )

    await eventually(is_applied)


def reboot(world: World) -> None:
    """Give the node of each record a number of an earlier boot."""
    for path in (world.state / "claims").glob("*.json"):
        record = json.loads(path.read_text())
        record["boot"] = "an earlier one"
        for edits in record["entries"].values():
            for node in edits.get("deviceNodes", ()):
                node |= {"major": node["major"] + 200, "hostPath": "/dev/elsewhere"}
        for node in (node for device in record["devices"] for node in device["nodes"]):
            kind, number = node["entity"].split(" ")
            major, minor = number.split(":")
            node |= {"boot": "an earlier one", "entity": f"{kind} {int(major) + 200}:{minor}"}
        path.write_text(json.dumps(record))


@given(BEFORE, st.none() | AFTER, st.sampled_from(["live", "restarted", "rebooted"]))
@example(
    {"sources": [VARIABLE], "allocate": NUMBERED},
    {"name": X, "sources": [VARIABLE], "allocate": {**NUMBERED, "env": {"A": "${a}"}}},
    "restarted",
)
@settings(max_examples=15, phases=[Phase.explicit, Phase.generate])
def test_prepared_claim_is_prepared_again(
    before: Fields, after: Fields | None, returns: Return
) -> None:
    async def live(directory: Path) -> None:
        (directory / "links").mkdir()
        (directory / "links" / "n").symlink_to("/dev/null")
        world = World(directory)
        first = text_of(directory, {"name": X, "backend": "dra", **before})
        second = text_of(directory, *([after] if after else []))
        assume(loads(second).config is not None)
        async with world.api.running():
            async with world.serve(first, X):
                share = "maxPerContainer" in before and "replicas" in before
                device = next(name for name in world.published() if name.startswith("null"))
                name = world.claim("u", X, device, **({"shareID": "u"} if share else {}))
                answer = await world.kubelet.prepare(name, "u")
                assert not answer.error
                file = world.cdi / "devhost-claim_u.json"
                content = file.read_bytes()
                if returns == "live":
                    world.reload(second)
                    await until_applied(world)
                    assert await world.kubelet.prepare(name, "u") == answer
            if returns == "rebooted":
                reboot(world)
            async with world.serve(second):
                await until_applied(world)
                again = await world.kubelet.prepare(name, "u")
                nobody_looks = after is None or after["sources"] == [ELSEWHERE]
                if not (again.error and nobody_looks and returns == "rebooted"):
                    assert again == answer
                    assert file.read_bytes() == content
        marks = directory / "marks"
        assert marks.exists() == ("preStart" in before)
        assert not marks.exists() or marks.read_text() == "\n"

    with TemporaryDirectory(prefix="dh") as directory:
        Path(directory).chmod(0o755)
        asyncio.run(live(Path(directory)))
