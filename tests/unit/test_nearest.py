"""What was probably meant by a name that matches nothing."""

import pytest

from devhost.discovery.nearest import closest

DEV = ("random", "ttyS0", "ttyUSB0", "urandom", "vda", "null")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sda", "vda"),
        ("nul", "null"),
        ("ttyUBS*", "ttyUSB0"),
        ("snd", None),  # two letters in common with 'random'
        ("video0", None),
    ],
)
def test_the_closest_name(written: str, meant: str | None) -> None:
    assert closest(written, DEV) == meant
