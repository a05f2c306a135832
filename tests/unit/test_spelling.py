"""What was probably meant by a name that matches nothing."""

import pytest

from devhost.model.spelling import nearest_node

DEV = ("mem", "random", "sda", "ttyS1", "ttyUSB0", "ttyACM0", "urandom", "video0", "nvidia0")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ttyUBS", "/dev/ttyUSB0"),
        ("vidoe0", "/dev/video0"),
        ("video1", "/dev/video0"),
        ("mme", ""),  # mem, a disk or a console would need a flag
        ("sdb", ""),
        ("ttyS0", ""),
        ("ttyAMA0", ""),
        ("snd", ""),
        ("gpiomem", ""),
    ],
)
def test_spelling_nearest_node_needs_no_flag(written: str, meant: str) -> None:
    assert nearest_node(written, [f"/dev/{name}" for name in DEV]) == meant


def test_spelling_outside_of_dev_proposes_nothing() -> None:
    assert nearest_node("id_rs", ["/root/.ssh/id_rsa"]) == ""
