"""Calls of an author's methods: any number may be under way."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from devhost.library.methods import UNRETURNED_MAX, CallError, PluginMethods
from tests.library.scripted import Scripted


def test_calls_at_the_same_time_are_all_made() -> None:
    """The kubelet starts the containers of many pods concurrently."""
    plugin, count = Scripted([]), 3 * UNRETURNED_MAX
    together = threading.Barrier(count)
    plugin.then["pre_start"] = lambda _devices: together.wait()
    methods = PluginMethods(plugin)
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(methods.pre_start, (), 60.0) for _ in range(count)]:
            done.result()
    assert not together.broken


def test_calls_that_do_not_return_are_bounded() -> None:
    """Each of them occupies a thread."""
    plugin, over = Scripted([]), threading.Event()
    plugin.then["pre_start"] = lambda _devices: over.wait(60)
    methods = PluginMethods(plugin)
    for _ in range(UNRETURNED_MAX):
        with pytest.raises(CallError, match="did not return within"):
            methods.pre_start((), 0.0)
    with pytest.raises(CallError, match=f"{UNRETURNED_MAX} earlier calls have not returned"):
        methods.pre_start((), 0.0)
    over.set()
