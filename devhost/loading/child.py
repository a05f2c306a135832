"""Loads a configuration in a process of its own, and hands over what comes of it, as plain values.

A running host starts it for each content of the file (`devhost.host.config.loading`). What the
load needs, and what a file that is a bomb can make it take, ends with it.
"""

import contextlib
import fcntl
import hashlib
import os
import pickle
import resource
import sys
import traceback
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from devhost.allocation.policy import Policy
from devhost.errors import Problem
from devhost.immutable import immutable
from devhost.model.config import Resource

T = TypeVar("T")

MEMORY_MAX: Final = 192 << 20  # of address space; the largest valid files take 140 MiB
CPU_S: Final = 30  # the largest valid files take 4 s, on a busy machine
OUT_OF_MEMORY: Final = 3  # exit statuses
FAILED: Final = 4
UNABLE: Final = 5  # whatever the content


@immutable
class LoadRequest:
    """What to load.

    Attributes:
        raw: The content of the file.
        file: Its name.
        policy: What it may use.
        known: Digests of the resources that need not be handed over.
        refused: The key and the reason, by resource, why it is refused although it is valid.
    """

    raw: bytes
    file: str
    policy: Policy
    known: frozenset[bytes] = frozenset()
    refused: Mapping[str, tuple[str, str]] | None = None


@immutable
class LoadAnswer:
    """What came of it.

    Attributes:
        problems: Of the file.
        digests: Of each resource; ``None`` if the file is invalid.
        fresh: The resources that are not known, by their digest.
    """

    problems: tuple[Problem, ...]
    digests: tuple[bytes, ...] | None
    fresh: Mapping[bytes, Resource]


def answer(request: LoadRequest) -> LoadAnswer:
    """Load a content."""
    from devhost.loading.loader import load_bytes, refuse  # noqa: PLC0415 (see `main`)

    loaded = load_bytes(request.raw, request.file, request.policy)
    if request.refused:
        loaded = refuse(loaded, request.raw, request.file, request.refused)
    if loaded.config is None:
        return LoadAnswer(loaded.problems, None, {})
    digests = tuple(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        for text in loaded.texts
    )
    sharing = _Sharing()
    fresh = {
        digest: sharing.shared(one)
        for digest, one in zip(digests, loaded.config.resources, strict=True)
        if digest not in request.known
    }
    return LoadAnswer(loaded.problems, digests, fresh)


class _Sharing:
    """Has equal values be one value: most resources of a file have much in common."""

    def __init__(self) -> None:
        self._known: dict[object, Any] = {}

    def shared(self, value: T) -> T:
        """Return the one value that is equal to this one and of the same type."""
        key: object
        one: Any = value
        match one:
            case tuple():
                one = tuple(map(self.shared, one))
                key = (tuple, *map(id, one))
            case dict():
                one = {self.shared(name): self.shared(inner) for name, inner in one.items()}
                key = (dict, *((id(name), id(inner)) for name, inner in one.items()))
            case _ if is_dataclass(one):
                parts = []
                for field in fields(one):
                    part = self.shared(getattr(one, field.name))
                    object.__setattr__(one, field.name, part)
                    parts.append(id(part))
                key = (type(one), *parts)
            case _:
                key = (type(one), one)
        found: T = self._known.setdefault(key, one)
        return found


def main() -> None:
    """LoadAnswer the one request on standard input; end when the process that asks ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed
    _limit()
    try:
        # Takes most of the time of a small file; the request comes meanwhile.
        from devhost.loading import loader  # noqa: F401, PLC0415

        request = _request()
        _hand_over(output, pickle.dumps(answer(request), pickle.HIGHEST_PROTOCOL), 0)
    except EOFError:
        os._exit(0)  # there is nothing to load
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except (OSError, ImportError) as error:  # a load opens nothing but modules
        _hand_over(output, str(error).encode(errors="replace"), UNABLE)
    except Exception:  # noqa: BLE001 (the host logs it)
        _hand_over(output, traceback.format_exc().encode(errors="replace"), FAILED)


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_MAX),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, hard))
    with contextlib.suppress(OSError):  # if the kernel has to end a process, then this one
        Path("/proc/self/oom_score_adj").write_text("1000")


def _request() -> LoadRequest:
    """Read the request; from then on, the end of the other process ends this one."""
    request: LoadRequest = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the host)
    # The kernel sends SIGIO, which ends a process, when the pipe has no writer any more.
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)
    return request


def _hand_over(output: BinaryIO, raw: bytes, status: int) -> None:
    output.write(raw)
    output.flush()
    os._exit(status)  # without freeing each value
