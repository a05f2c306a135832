"""What containers receive."""

from tests.e2e import devices
from tests.e2e.pods import CRASHES, Pods, pod
from tests.e2e.release import BOOK, COIN, COLA, DICE, DISK, SLOT, Release


def test_env_names_the_devices(release: Release, pods: Pods) -> None:
    pods.run(pod("two", {COLA: 2}), pod("one", {COLA: 1}))
    given = [pods.env(name)["COLAS"] for name in ("two", "one")]
    assert sorted(",".join(given).split(",")) == ["cherry", "classic", "vanilla"]
    assert given[0].count(",") == 1


def test_device_nodes_are_numbered_anew(release: Release, pods: Pods) -> None:
    pods.run(pod("both", {DICE: 2}), pod("none", {COLA: 1}))
    assert pods.execute("both", "sh", "-c", "head -c 4 /dev/die0 /dev/die1 | wc -c") != "0\n"
    numbers = pods.execute("both", "stat", "-c", "%t:%T", "/dev/die0", "/dev/die1")
    assert numbers.split() == ["1:8", "1:9"]
    assert "die" not in pods.execute("none", "ls", "/dev")


def test_a_mount_is_read_only(release: Release, pods: Pods) -> None:
    pods.run(pod("reader", {BOOK: 1}))
    assert pods.execute("reader", "cat", "/book0") in ("dune\n", "emma\n")
    written = pods.execute("reader", "sh", "-c", "echo x > /book0 || echo refused")
    assert written == "refused\n"


def test_cdi_gives_a_node_to_a_user_that_is_not_root(release: Release, pods: Pods) -> None:
    pods.run(pod("user", {COIN: 2}, user=1000))
    assert pods.execute("user", "head", "-c", "3", "/dev/coin0") == "\0\0\0"
    owners = pods.execute("user", "stat", "-c", "%u", "/dev/coin0", "/dev/coin1")
    assert owners.split() == ["1000", "1000"]


def test_a_step_runs_once_for_a_pod_that_crashes(release: Release, pods: Pods) -> None:
    pods.run(pod("crashing", {DISK: 1}, command=CRASHES))
    disk = pods.env("crashing")["DISKS"]
    assert devices.steps_run(release.cluster) == {disk: 1}
    pods.execute("crashing", "touch", "/tmp/end")
    pods.wait_restarted("crashing")
    assert devices.steps_run(release.cluster) == {disk: 1}

    pods.delete("crashing")
    pods.run(pod("next", {DISK: 2}))
    runs = devices.steps_run(release.cluster)
    assert runs.pop(disk) == 2
    assert list(runs.values()) == [1]


def test_pods_share_what_is_advertised_several_times(release: Release, pods: Pods) -> None:
    pods.run(*(pod(f"share-{number}", {SLOT: 2}) for number in range(3)))
    given = [pods.env(f"share-{number}")["SLOTS"] for number in range(3)]
    assert given == ["0,1"] * 3


def test_a_pod_too_many_stays_pending(release: Release, pods: Pods) -> None:
    pods.run(pod("all", {COLA: 3}))
    pods.create(pod("late", {COLA: 1}))
    pods.wait_for("late", "condition=PodScheduled=false")
    (condition,) = pods.get("late")["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    assert f"Insufficient {COLA}" in condition["message"]
    pods.delete("all")
    pods.wait_for("late", "condition=Ready")


def test_status_says_who_holds_what(release: Release, pods: Pods) -> None:
    pods.run(pod("holder", {COLA: 1}))

    def holders() -> list[list[str]]:
        (resource,) = [one for one in release.status()["resources"] if one["name"] == COLA]
        return list(resource["holders"].values())

    release.cluster.until("the holder is known", lambda: holders() == [["work/holder"]])
    pods.delete("holder")
    release.cluster.until("nobody holds it", lambda: holders() == [])
