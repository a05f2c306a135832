"""The records of claims in the state file, which several instances share."""

import json
from pathlib import Path
from typing import Any

import pytest

from devhost.custody.record_files import RecordFiles
from devhost.model.records import ClaimedDevice, ClaimRecord
from tests.host.test_custody import A, B, CustodyFixture, FakeHolders, device, published, resource


def record(uid: str, **keys: Any) -> ClaimRecord:
    device = ClaimedDevice(resource=A, id="a", request="r", pool="p", device="a", scope=0, **keys)
    of: Any = {"driver": "devhost", "namespace": "default", "boot": ""}
    return ClaimRecord(claim=uid, name=uid, state="completed", devices=[device], **of)


def state_file(directory: Path) -> RecordFiles:
    return RecordFiles(directory, lambda _resource: "ours")


def files(state: Path) -> list[Path]:
    return [*(state / "claims").glob("*.json")]


async def test_recorded_claim_holds_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    custody = CustodyFixture(holders=FakeHolders())
    monkeypatch.setattr(custody.backend, "publisher", lambda _resource: "devhost")
    assert published(custody, resource(A), device("a")) == [None]
    nodes = custody.claim_nodes(resource(A), device("a"), "default/u")
    claim = record("u", nodes=nodes)
    custody.file.set({claim.key: claim})
    custody.remove(A)
    custody.end_free()
    assert published(custody, resource(B), device("b")) != [None]
    custody.file.set({record("u").key: None})
    custody.end_free()
    assert published(custody, resource(B), device("b")) == [None]


async def test_of_two_instances_each_sees_what_the_other_has_recorded(tmp_path: Path) -> None:
    first, second = state_file(tmp_path), state_file(tmp_path)
    assert await first.give(lambda: [record("u")], 60) is None
    assert await second.sync(60) is None
    assert [claim.claim for claim in second.table.claims.values()] == ["u"]
    second.set({record("u").key: None})
    await second.sync(60)
    await first.sync(60)
    assert not first.table.claims
    await first.sync(60)
    assert not files(tmp_path), "what another has ended is not written"


async def test_a_file_that_was_lost_is_written_again(tmp_path: Path) -> None:
    state = state_file(tmp_path)
    assert await state.give(lambda: [record("u")], 60) is None
    (tmp_path / "claims").rename(tmp_path / "former")
    await state.sync(60)
    assert json.loads(files(tmp_path)[0].read_text())["claim"] == "u"
    files(tmp_path)[0].write_text("{")
    await state.sync(60)
    assert json.loads(files(tmp_path)[0].read_text())["claim"] == "u"
    files(tmp_path)[0].unlink()
    await state.sync(60)
    assert not files(tmp_path), "one that is removed has ended"


async def test_what_a_newer_version_adds_to_a_claim_is_kept(tmp_path: Path) -> None:
    state = state_file(tmp_path)
    await state.give(lambda: [record("u")], 60)
    entry = json.loads(files(tmp_path)[0].read_text())
    entry["later"] = entry["devices"][0]["later"] = 1
    files(tmp_path)[0].write_text(json.dumps(entry))
    whole = tmp_path / "claims" / "devhost_other.json"
    whole.write_text('{"of": "a newer version"}')
    state = state_file(tmp_path)
    await state.sync(60)
    (kept,) = state.table.claims.values()
    await state.give(lambda: [kept.model_copy(update={"boot": "another"})], 60)
    written = [json.loads(path.read_text()) for path in sorted(files(tmp_path))]
    assert written == [{"of": "a newer version"}, {**entry, "boot": "another"}]
