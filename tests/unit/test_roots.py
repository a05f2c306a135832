"""Directories that report no events."""

import pytest

from devhost.discovery.roots import is_silent


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sys", True),
        ("/sys/class", True),
        ("/proc/self", True),
        ("/sysroot", False),
        ("/system/dev", False),
        ("/processes", False),
        ("/", False),
    ],
)
def test_where_the_kernel_tells_nothing(path: str, expected: bool) -> None:
    assert is_silent(path) is expected
