"""Variables, nodes and mounts of containers."""

from tests.e2e.pods import Pods, pod
from tests.e2e.release import BOOK, COIN, COLA, DICE, SLOT, Release


def test_containers_have_their_variables_numbered_nodes_read_only_mounts_and_shares(
    release: Release, pods: Pods
) -> None:
    pods.run(
        pod("two", {COLA: 2, DICE: 2, SLOT: 2}),
        pod("one", {COLA: 1, BOOK: 1, SLOT: 2}),
        pod("share", {SLOT: 2}),
    )
    variables = {name: pods.env(name) for name in ("two", "one", "share")}
    assert [env["SLOTS"] for env in variables.values()] == ["0,1"] * 3
    pair, single = (variables[name]["COLAS"] for name in ("two", "one"))
    assert sorted([*pair.split(","), single]) == ["cherry", "classic", "vanilla"]
    assert pods.execute("two", "sh", "-c", "head -c 4 /dev/die0 /dev/die1 | wc -c") != "0\n"
    numbers = pods.execute("two", "stat", "-c", "%t:%T", "/dev/die0", "/dev/die1")
    assert numbers.split() == ["1:8", "1:9"]
    assert "die" not in pods.execute("one", "ls", "/dev")
    assert pods.execute("one", "cat", "/book0") in ("dune\n", "emma\n")
    written = pods.execute("one", "sh", "-c", "echo x > /book0 || echo refused")
    assert written == "refused\n"


def test_container_of_a_user_owns_its_nodes_by_cdi(release: Release, pods: Pods) -> None:
    pods.run(pod("user", {COIN: 2}, user=1000))
    assert pods.execute("user", "head", "-c", "3", "/dev/coin0") == "\0\0\0"
    owners = pods.execute("user", "stat", "-c", "%u", "/dev/coin0", "/dev/coin1")
    assert owners.split() == ["1000", "1000"]
