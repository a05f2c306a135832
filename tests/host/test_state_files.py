"""Files that are replaced whole, also where two instances write them at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from devhost.host.config.last_good import LastGood
from devhost.host.state_files import locked, write_atomically


def test_two_instances_keep_the_same_at_the_same_time(tmp_path: Path) -> None:
    """Neither takes the other's unfinished file away."""
    together = Barrier(2)

    def keep(number: int) -> None:
        together.wait()
        LastGood(tmp_path).write(f"version: {number}".encode())

    with ThreadPoolExecutor(2) as instances:
        for number in range(50):
            for work in [instances.submit(keep, number) for _ in range(2)]:
                work.result()
    assert [path.name for path in tmp_path.iterdir()] == ["last-good.yaml"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Nobody writes it any more; and nothing else is."""
    (tmp_path / ".c.yaml.left").touch()
    (tmp_path / ".other").touch()
    with locked(tmp_path):
        write_atomically(tmp_path / "c.yaml", b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", ".other"}
