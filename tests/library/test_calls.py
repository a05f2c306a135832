"""Calls of an author's methods: how many may be under way, and how many may hang."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from devhost.library.calls import UNRETURNED_MAX, CallError, Calls


def test_any_number_may_be_under_way() -> None:
    """The kubelet starts the containers of many pods concurrently."""
    calls, count = Calls("example.com/a"), 3 * UNRETURNED_MAX
    together = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        done = [pool.submit(calls.call, "pre_start", together.wait, 60.0) for _ in range(count)]
        assert {one.result() for one in done} == {*range(count)}


def test_no_more_are_made_while_many_are_late() -> None:
    """Each takes a thread; when they have returned it is called again."""
    calls, release = Calls("example.com/a"), threading.Event()
    for _ in range(UNRETURNED_MAX):
        with pytest.raises(CallError, match="did not return within 0 s"):
            calls.call("allocate", release.wait, 0.0)
    with pytest.raises(CallError, match="earlier calls have not returned"):
        calls.call("allocate", release.wait, 60.0)
    assert calls.call("preferred", lambda: 1, 20.0) == 1
    release.set()
    late = True
    while late:
        with contextlib.suppress(CallError):
            late = not calls.call("allocate", release.wait, 60.0)
