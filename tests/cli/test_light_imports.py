"""The commands do without what they do not use, and nothing that comes later misses it."""

import subprocess
import sys
import textwrap

import pytest


def outcome(program: str) -> str:
    """Run a program in a Python of its own; return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("command", ["run", "validate", "status"])
def test_nothing_of_openssl_is_loaded(command: str) -> None:
    shown = outcome(f"""
        import sys
        from devhost.cli import _Lazy
        _Lazy().get_command(None, "{command}")
        import devhost.model.config
        print([one for one in ("ssl", "_ssl", "_hashlib", "zipfile", "bz2") if one in sys.modules])
    """)
    assert shown == "[]"


def test_what_comes_later_finds_all_that_was_left_out() -> None:
    shown = outcome("""
        import hashlib
        from devhost.light_imports import light_imports
        with light_imports():
            import asyncio
        import bz2, ssl, _hashlib
        from importlib.metadata import entry_points
        import importlib.metadata as read
        assert ssl.create_default_context() and bz2.compress(b"a")
        assert [one.name for one in entry_points(group="console_scripts") if one.name == "devhost"]
        assert read.version("click") and read.PackageNotFoundError
        import importlib.metadata
        assert importlib.metadata.__file__
        print(hashlib.sha256(b"a").hexdigest()[:8])
    """)
    assert shown == "ca978112"


def test_what_is_there_already_stays() -> None:
    shown = outcome("""
        import ssl, importlib.metadata
        from devhost.light_imports import light_imports
        with light_imports():
            import ssl as again
            from importlib.metadata import version
        assert again is ssl
        print(version("click") != "")
    """)
    assert shown == "True"
