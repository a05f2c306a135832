"""Devices of pods are known though the record is lost, or kubelet does not know the pods."""

import json
from pathlib import Path

import pytest

from tests.support.daemon import until
from tests.support.devices import reasons
from tests.support.hosting import Hosting, Kubelet, contract

ALPHA, BETA, OTHER = "example.com/alpha", "example.com/beta", "example.com/other"


@pytest.fixture
def files(directory: Path) -> Path:
    path = directory / "files"
    path.mkdir()
    for name in ("a", "b"):
        (path / name).touch()
    return path


def config(files: Path, *names: str, options: str = "") -> str:
    resources = "".join(f"- {{name: {name}, sources: [directory: {files}]}}\n" for name in names)
    return f"version: v1\nresources:\n{resources}{options}"


def recorded(state: Path) -> set[tuple[str, str]]:
    records = set[tuple[str, str]]()
    for path in (state / "records").glob("*.json"):
        try:
            content = json.loads(path.read_bytes())
            records |= {(content["resource"], entry["device"]) for entry in content["records"]}
        except (OSError, ValueError, TypeError):
            continue
    return records


def record_file(state: Path) -> Path:
    (path,) = (state / "records").glob("*.json")
    return path


def lose(state: Path, loss: str) -> None:
    if loss == "directory":
        state.rename(state.with_name("gone"))
    elif loss == "removed":
        record_file(state).unlink()
    elif loss == "all":
        (state / "records").rename(state / "former")
    else:
        record_file(state).write_text(loss)


@pytest.mark.parametrize("loss", ["removed", "directory", "all", "[]", "{", ""])
async def test_state_file_that_is_lost_while_devhost_runs_is_written_again(
    started: Kubelet, hosting: Hosting, directory: Path, files: Path, loss: str
) -> None:
    """After a restart with another name, the nodes still belong to the pods."""
    state = directory / "state"
    hosting.start(config(files, ALPHA), state_dir=state)
    await started.wait(ALPHA, 2, 2)
    await started.admit("one", {"app": {ALPHA: 1}})
    await until(lambda: len(recorded(state)) == 1, "the record")
    lose(state, loss)
    await until(lambda: len(recorded(state)) == 1, "the record again")
    await started.admit("two", {"app": {ALPHA: 1}})
    await until(lambda: recorded(state) == {(ALPHA, "a"), (ALPHA, "b")}, "both records")
    await hosting.stop()
    hosting.start(config(files, BETA), state_dir=state)
    await started.wait(BETA, 2, 0)


@contract
async def test_device_waits_while_a_pod_holds_one_of_devhost_without_a_record(
    started: Kubelet, hosting: Hosting, directory: Path, files: Path
) -> None:
    """The device may be the same under a former name; a token has no node that two pods could have."""
    state = directory / "state"
    hosting.start(config(files, ALPHA), state_dir=state)
    await started.wait(ALPHA, 2, 2)
    await started.admit("one", {"app": {ALPHA: 1}})
    await hosting.stop()
    record_file(state).unlink()
    tokens = f"- {{name: {OTHER}, sources: [static: 1]}}\n"
    renamed = config(files, BETA, options=tokens)
    host = hosting.start(renamed, state_dir=state)
    await started.wait(BETA, 2, 0)
    await started.wait(OTHER, 1, 1)
    for reason in reasons(host.resources[0].devices.offered).values():
        assert "is held by default/one, and no record says" in str(reason)
    assert not recorded(state)
    await started.free("one")
    await started.wait(BETA, 2, 2)


@contract
async def test_unknown_pods_free_no_device(started: Kubelet, hosting: Hosting, files: Path) -> None:
    holders = hosting.start(config(files, ALPHA)).parts.holders
    await started.wait(ALPHA, 2, 2)
    await started.admit("one", {"app": {ALPHA: 1}})
    hosting.reload(config(files, BETA))
    await started.wait(BETA, 2, 1)
    await started.kill()
    await started.start(knows_pods=False)
    await started.wait(BETA, 2, 1)
    lists, on_list = 0, holders.on_list

    def count_lists() -> None:
        nonlocal lists
        lists += 1
        on_list()

    holders.on_list = count_lists
    # In a second; devhost waits a tenth of it for the pods that a kubelet admits.
    await until(lambda: lists >= 20, "many lists")
    assert (await started.capacity())[BETA] == (2, 1)
    await started.restart()
    await started.wait(BETA, 2, 1)
    await started.free("one")
    await started.wait(BETA, 2, 2)


async def test_device_that_a_pod_holds_is_recorded_again_under_its_name(
    started: Kubelet, hosting: Hosting, directory: Path, files: Path
) -> None:
    """A start without the file then waits for nothing."""
    state, token = directory / "state", f"- {{name: {OTHER}, sources: [static: 1]}}\n"
    text = config(files, ALPHA, options=token)
    hosting.start(text)
    await started.wait(ALPHA, 2, 2)
    await started.wait(OTHER, 1, 1)
    await started.admit("one", {"app": {ALPHA: 1, OTHER: 1}})
    await hosting.stop()
    hosting.start(text, state_dir=state)
    await started.wait(ALPHA, 2, 2)
    await until(lambda: len(recorded(state)) == 2, "the records")
    await started.free("one")
    await until(lambda: not recorded(state), "no records, because no pod holds it")


async def test_device_that_another_instance_has_handed_out_under_another_name_is_unhealthy(
    started: Kubelet, hosting: Hosting, directory: Path, files: Path
) -> None:
    """The instances share the file: no pod gets as far as an Allocate that fails."""
    (files / "b").unlink()
    state = directory / "state"
    hosting.start(config(files, ALPHA), state_dir=state)
    hosting.start(config(files, BETA), state_dir=state)
    await started.wait(ALPHA, 1, 1)
    await started.wait(BETA, 1, 1)
    await started.admit("one", {"app": {ALPHA: 1}})
    await started.wait(BETA, 1, 0)
