"""Socket names, and who lives behind which."""

import contextlib
import errno
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.kubelet.channel import connect_error
from devhost.kubelet.instances import (
    Instances,
    mark_standby,
    new_instance,
    path_length_problem,
    resource_hash,
)

T, U = "example.com/t", "example.com/u"


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Sockets"]:
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    with contextlib.closing(Sockets()) as sockets:
        yield sockets


class Sockets:
    """Sockets in the current directory, on which somebody listens or not."""

    def __init__(self) -> None:
        self.open: dict[str, socket.socket] = {}

    def bind(self, name: str) -> None:
        self.open[name] = socket.socket(socket.AF_UNIX)
        self.open[name].bind(name)

    def listen(self, name: str, backlog: int = 5) -> None:
        self.bind(name)
        self.open[name].listen(backlog)

    def die(self, name: str) -> None:
        self.open.pop(name).close()

    def dead(self, name: str) -> None:
        self.bind(name)
        self.die(name)

    def close(self) -> None:
        for one in self.open.values():
            one.close()


def none_left(*_: object) -> list[str]:
    raise OSError(errno.EMFILE, "Too many open files")


def three() -> tuple[Instances, Instances, Instances]:
    """Return instances on the current directory, the oldest first."""
    here = Path()
    return Instances(here), Instances(here), Instances(here)


def changed(instances: Instances) -> tuple[bool, int]:
    """Look; return whether something changed, and how many dead sockets were removed."""
    resources, removed = instances.check_all()
    return bool(resources), removed


def active_older(instances: Instances, resource: str) -> set[str]:
    """Read the directory, and look who speaks."""
    instances.read_directory()
    return instances.active_older(resource)


def test_an_instance_of_the_future_is_none(sockets: Sockets) -> None:
    """A writer to the directory does not silence a resource by a name."""
    one = Instances(Path())
    others = Instances(Path())
    others.own = "f" * 20
    sockets.listen(others.fresh_name(T))
    others.own = f"{int(one.own[:16], 16) + 3600 * 10**9:016x}ffff"
    sockets.listen(others.fresh_name(T))
    one.check_all()
    one.check(T)
    assert not one.newer(T)
    assert not active_older(one, T)
    sockets.listen(Instances(Path()).fresh_name(T))
    one.read_directory()
    one.check(T)
    assert one.newer(T)


def test_later_instances_sort_later() -> None:
    """By the time since boot, whatever is done to the clock; and no two are the same."""
    ids = [new_instance() for _ in range(1000)]
    assert sorted(ids) == ids
    assert len(set(ids)) == len(ids)
    assert {len(one) for one in ids} == {20}


def test_names_are_fresh_and_short() -> None:
    """The kubelet's directory leaves 75 bytes; no name ever comes again."""
    instances = Instances(Path("/var/lib/kubelet/device-plugins"))
    names = [instances.fresh_name("example.com/" + "x" * 63) for _ in range(1000)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 75
    assert instances.fresh_name(T).split("-")[1] != instances.fresh_name(U).split("-")[1]


def test_a_path_that_is_too_long_is_told() -> None:
    """A socket's path is bounded by the kernel."""
    assert path_length_problem(Path("/var/lib/kubelet/device-plugins")) is None
    problem = path_length_problem(Path("/" + "x" * 60))
    assert problem is not None
    assert "of 107" in problem


def test_who_is_older_and_who_newer(sockets: Sockets) -> None:
    """For each resource on its own; the own sockets do not count."""
    first, second, third = three()
    for one, resource in ((first, T), (second, T), (third, T), (third, U)):
        sockets.listen(one.fresh_name(resource))
    assert second.alone
    assert changed(second) == (True, 0)
    assert not second.alone
    assert second.newer(T)
    assert second.newer(U)
    assert len(second.older(T)) == 1
    assert second.older(U) == frozenset()
    assert changed(second) == (False, 0), "nothing has changed since"
    third.check_all()
    assert not third.newer(T)
    assert len(third.older(T)) == 2


def test_one_that_has_gone_is_noticed(sockets: Sockets) -> None:
    """Unlinked or refusing, it lives no more."""
    older, newer, newest = three()
    names = [newer.fresh_name(T), newest.fresh_name(T)]
    for name in names:
        sockets.listen(name)
    assert changed(older) == (True, 0)
    Path(names[0]).unlink()
    assert changed(older) == (True, 0)
    assert older.newer(T), "one of two is left"
    sockets.die(names[1])
    assert changed(older) == (True, 0)
    assert not older.newer(T)
    assert older.alone


def test_who_cannot_be_asked_has_not_gone(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no descriptor left for a look, an older one must not take the newer for dead."""
    older, newer = Instances(Path()), Instances(Path())
    sockets.listen(newer.fresh_name(T))
    older.check_all()
    assert older.newer(T)
    with monkeypatch.context() as without:
        without.setattr("devhost.kubelet.instances.connect_error", lambda _: errno.EMFILE)
        assert older.check_all() == (set(), 0)
        assert older.newer(T)
    with monkeypatch.context() as without:
        without.setattr("os.listdir", none_left)
        assert older.check_all() == (set(), 0)
        assert older.newer(T)
        with pytest.raises(OSError, match="Too many"):  # or its CDI spec would be removed
            older.serves(resource_hash(T))
    sockets.listen(newer.fresh_name(U))
    assert older.check_all() == ({resource_hash(U)}, 0)


def test_dead_sockets_are_unlinked_at_the_second_refusal(sockets: Sockets) -> None:
    """A socket appears a moment before it listens, so that one refusal says nothing."""
    own, other, third = three()
    dead, late = other.fresh_name(T), third.fresh_name(T)
    sockets.dead(dead)
    sockets.bind(late)
    assert changed(own) == (False, 0)
    assert own.has_refused
    assert Path(dead).exists()
    sockets.open[late].listen()
    assert changed(own) == (True, 1)
    assert not Path(dead).exists()
    assert Path(late).exists()
    assert own.newer(T)
    assert not own.has_refused


def test_each_dead_socket_is_looked_at_twice_by_itself(sockets: Sockets) -> None:
    """One that dies while another is removed is neither forgotten nor removed too soon."""
    own, other, third = three()
    sockets.dead(other.fresh_name(T))
    own.check_all()
    late = third.fresh_name(T)
    sockets.dead(late)
    assert changed(own) == (False, 1)
    assert Path(late).exists()
    assert own.has_refused
    assert changed(own) == (False, 1)
    assert not Path(late).exists()
    assert not own.has_refused


def test_a_socket_that_cannot_be_unlinked_does_not_keep_us_busy(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubt makes the looks quick; it must end."""
    own, other, _ = three()
    sockets.dead(other.fresh_name(T))

    def refusing(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refusing)
    own.check_all()
    assert changed(own) == (False, 0)
    assert not own.has_refused


def test_what_is_not_ours_is_left_alone(sockets: Sockets) -> None:
    """Other programs' dead sockets, the kubelet's, and names that only resemble ours."""
    own, other, _ = three()
    name = other.fresh_name(T)
    foreign = [
        *("kubelet.sock", "nvidia-gpu.sock", "devhost-.sock", "devhost-mine.sock"),
        *(f"{name}.sock", f"x{name}", name.replace("devhost", "devhosts"), name.upper()),
    ]
    for one in foreign:
        sockets.dead(one)
    sockets.dead(own.fresh_name(T))
    before = set(Path().iterdir())
    for _ in range(3):
        assert changed(own) == (False, 0)
    assert set(Path().iterdir()) == before


def test_an_instance_with_one_living_socket_lives(sockets: Sockets) -> None:
    """Its other sockets may be about to listen or about to be unlinked: hands off."""
    own, other, _ = three()
    sockets.listen(other.fresh_name(T))
    refusing = other.fresh_name(U)
    sockets.dead(refusing)
    for _ in range(3):
        own.check_all()
    assert Path(refusing).exists()
    assert own.newer(U)


def test_a_full_backlog_is_alive(sockets: Sockets) -> None:
    """A process that hangs does not accept; its sockets are not dead for that."""
    own, other, _ = three()
    name = other.fresh_name(T)
    sockets.listen(name, backlog=0)
    with contextlib.ExitStack() as stack:
        full = False
        while not full:
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            full = client.connect_ex(name) != 0
        assert connect_error(Path(name)) == 0
        for _ in range(3):
            own.check_all()
        assert own.newer(T)
        assert Path(name).exists()


def test_looking_leaks_no_descriptors(sockets: Sockets) -> None:
    """Neither at living nor at dead nor at absent sockets."""
    own, other, third = three()
    sockets.listen(other.fresh_name(T))
    sockets.dead(third.fresh_name(T))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        own.check_all()
        active_older(own, T)
        connect_error(Path("absent.sock"))
        connect_error(Path("x" * 200))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_directory_that_is_not_there_is_empty(sockets: Sockets) -> None:
    """It may come back; nothing is raised."""
    instances = Instances(Path("absent"))
    assert changed(instances) == (False, 0)
    assert not active_older(instances, T)


def test_an_older_one_says_that_it_is_quiet(sockets: Sockets) -> None:
    """A newer one sees it immediately, and for its resource alone."""
    older, own, newer = three()
    names = {T: older.fresh_name(T), U: older.fresh_name(U)}
    for name in names.values():
        sockets.listen(name)
    sockets.listen(newer.fresh_name(T))
    assert active_older(own, T)
    assert own.newer(T), "it has looked"
    assert len(own.older(T)) == 1
    mark_standby(Path(names[T]))
    assert Path(names[T]).stat().st_mode & stat.S_ISVTX
    assert stat.S_ISSOCK(Path(names[T]).stat().st_mode)
    assert active_older(own, T) == set()
    assert active_older(own, U) == {names[U]}
    assert connect_error(Path(names[T])) == 0


def test_a_dead_older_one_does_not_speak(sockets: Sockets) -> None:
    """Nobody waits for it."""
    older, own, _ = three()
    sockets.dead(older.fresh_name(T))
    assert not active_older(own, T)
    assert own.older(T) == frozenset()
