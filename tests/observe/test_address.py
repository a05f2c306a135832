"""The address at which HTTP is served, as it is written."""

import pytest

from devhost.observe.address import Address


@pytest.mark.parametrize(
    ("text", "host", "port", "near"),
    [
        ("127.0.0.1:9110", "127.0.0.1", 9110, "127.0.0.1:9110"),
        (":9110", "", 9110, "127.0.0.1:9110"),
        ("0.0.0.0:1", "0.0.0.0", 1, "127.0.0.1:1"),
        ("[::1]:65535", "::1", 65535, "[::1]:65535"),
        ("[::]:80", "::", 80, "[::1]:80"),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80, "[fe80::1%eth0]:80"),
        ("node-1.example.com:0", "node-1.example.com", 0, "node-1.example.com:0"),
    ],
)
def test_address_is_read_and_written(text: str, host: str, port: int, near: str) -> None:
    address = Address.parse(text)
    assert address == Address(host, port)
    assert str(address) == text
    assert str(address.local) == near


@pytest.mark.parametrize(
    "text",
    ["", "9110", "localhost", "::1:80", "[::1]", "[::1]:", ":65536", ":-1", "a b:1", ":80\n"],
)
def test_address_that_is_invalid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|at most 65535"):
        Address.parse(text)
