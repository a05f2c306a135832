"""A look at the host that answers late."""

import asyncio
import threading

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.discovery.survey import Survey, survey
from devhost.host.resource import surveyor
from devhost.host.resource.surveyor import Surveyor
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.config import Resource
from devhost.model.device import Skipped, Snapshot

CONFIG = "version: v1\nresources: [{name: example.com/a, sources: [static: 2]}]\n"


@pytest.fixture
def scanner() -> Scanner:
    resource = loads(CONFIG).require().resources[0]
    return Scanner.of(resource, HostFiles(), Policy(), "node", hold_s=0.0)


async def test_a_late_survey_is_the_next_one(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails once; when the answer comes it is looked again, and there is no second look."""
    release, looks, again = threading.Event(), [0], asyncio.Event()

    def slow(resource: Resource, files: HostFiles) -> Survey:
        looks[0] += 1
        release.wait(60)
        return survey(resource, files)

    monkeypatch.setattr("devhost.discovery.scan.survey", slow)
    monkeypatch.setattr(surveyor, "SCAN_TIMEOUT_S", 0.02)
    looking = Surveyor(again.set)
    for _ in range(3):
        assert (await looking.survey(scanner)).failed
    release.set()
    async with asyncio.timeout(60):
        await again.wait()
    again.clear()
    assert [node.name for node in (await looking.survey(scanner)).nodes] == ["0", "1"]
    assert looks == [1]
    assert again.is_set()  # what came since it had begun is looked at by the one that follows
    again.clear()
    await looking.survey(scanner)
    assert looks == [2]
    assert not again.is_set()


async def test_what_is_slow_and_not_dead_is_given_more_time(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judgement that came late is not given up the next time that it takes so long."""
    monkeypatch.setattr(surveyor, "SCAN_TIMEOUT_S", 0.05)
    release, again = threading.Event(), asyncio.Event()
    given_up: list[bool] = []

    def judge(found: Survey) -> Snapshot:
        if found.failed:
            given_up.append(True)
        else:
            release.wait(60)
        return Snapshot()

    looking, found = Surveyor(again.set), Survey()
    await looking.judged(scanner, found, judge)
    assert given_up == [True]
    await asyncio.sleep(0)
    release.set()
    async with asyncio.timeout(60):
        await again.wait()
    again.clear()
    await looking.judged(scanner, found, judge)  # the late one, which is out of date
    assert again.is_set()
    assert looking._patience > 0.05 * 2
    assert given_up == [True]


async def test_a_look_that_was_taken_over_is_followed_by_another(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload ended the wait for it, and what had been told before that counts too."""
    release, begun, again = threading.Event(), threading.Event(), asyncio.Event()

    def slow(resource: Resource, files: HostFiles) -> Survey:
        begun.set()
        release.wait(60)
        return survey(resource, files)

    monkeypatch.setattr("devhost.discovery.scan.survey", slow)
    looking = Surveyor(again.set)
    former = asyncio.create_task(looking.survey(scanner))
    await asyncio.to_thread(begun.wait, 60)
    former.cancel()
    await asyncio.wait({former})
    taking_over = asyncio.create_task(looking.survey(scanner))
    await asyncio.sleep(0)
    release.set()
    assert not (await taking_over).failed
    assert again.is_set()


async def test_a_late_judgement_is_followed_by_a_look_whatever_else_was_late(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that was late in between does not make it a new one."""
    monkeypatch.setattr(surveyor, "SCAN_TIMEOUT_S", 0.05)
    judged, looked, again = threading.Event(), threading.Event(), asyncio.Event()

    def judge(found: Survey) -> Snapshot:
        if not found.failed:
            judged.wait(60)
        return Snapshot(skipped=found.skipped)

    def slow(resource: Resource, files: HostFiles) -> Survey:
        looked.wait(60)
        return survey(resource, files)

    monkeypatch.setattr("devhost.discovery.scan.survey", slow)
    looking = Surveyor(again.set)
    old, new = Survey(skipped=(Skipped("old", ""),)), Survey(skipped=(Skipped("new", ""),))
    await looking.judged(scanner, old, judge)
    assert (await looking.survey(scanner)).failed
    looked.set()
    judged.set()
    looking._patience = 10.0
    assert not (await looking.survey(scanner)).failed
    again.clear()
    assert (await looking.judged(scanner, new, judge)).skipped == old.skipped
    assert again.is_set()
    again.clear()
    assert (await looking.judged(scanner, new, judge)).skipped == new.skipped
    assert not again.is_set()
