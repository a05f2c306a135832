"""JSON that others may have damaged."""

import json

import pytest

from devhost.host import json_text


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[1,]", b"NaN", b"[-Infinity]", b"1e999", b'"\\ud800"', b"\xff", b'"\xff"',
        b"[" * 33 + b"]" * 33, b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b'"[', b"[}",
    ],
)  # fmt: skip
def test_what_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        json_text.parse(raw)


@pytest.mark.parametrize(
    "value",
    [None, 1.5, "[[", '"\\]', "\U0001f600", {"a": [{}, [], "}"]}, [[[]]] * 50, json.loads("[" * 31 + "]" * 31)],
)  # fmt: skip
def test_what_is_read(value: object) -> None:
    for ascii_only in (True, False):
        assert json_text.parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value
