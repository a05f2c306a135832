"""Helpers for tests of plugins and configurations; see ``docs/testing.md``.

The real host runs in the test process, with a stand-in kubelet and a directory tree in place of
the host's files. `devhost.testing.fixtures` has fixtures for pytest, which is optional.
"""

from devhost.fake_kubelet.kubelet import AdmissionError, Answer
from devhost.fake_kubelet.kubelet import SimulatedKubelet as StandInKubelet
from devhost.testing.serving import Served, serving, short_directory
from devhost.testing.tree import HostTree

__all__ = [
    "AdmissionError",
    "Answer",
    "HostTree",
    "Served",
    "StandInKubelet",
    "serving",
    "short_directory",
]
