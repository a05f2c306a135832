"""What was probably meant by a name that matches nothing."""

import pytest

from devhost.model.spelling import nearest_node

DEV = ("mem", "random", "sda", "ttyS0", "ttyUSB0", "urandom", "video0", "nvidia0")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ttyUBS", "/dev/ttyUSB0"),
        ("vidoe0", "/dev/video0"),
        ("video1", "/dev/video0"),
        ("mme", ""),  # mem, a disk or a console would need a flag
        ("sdb", ""),
        ("ttyS4", ""),
        ("snd", ""),
        ("gpiomem", ""),
    ],
)
def test_a_node_is_proposed_that_is_alike_and_needs_no_flag(written: str, meant: str) -> None:
    assert nearest_node(written, [f"/dev/{name}" for name in DEV]) == meant


def test_nothing_is_proposed_outside_of_dev() -> None:
    assert nearest_node("id_rs", ["/root/.ssh/id_rsa"]) == ""
