"""What tests of your own plugins and configurations are made of; see ``docs/testing.md``.

The real host runs in the test's process, against a stand-in kubelet on a socket of its own,
below a directory that stands for the host's files. pytest is not needed for that; whoever uses
it finds fixtures in `devhost.testing.fixtures`.
"""

from devhost.standin.kubelet import AdmissionError, Answer
from devhost.standin.kubelet import SimulatedKubelet as StandInKubelet
from devhost.testing.directory import short_directory
from devhost.testing.serving import Served, serving
from devhost.testing.tree import HostTree, NotPermittedError, can_make_nodes

__all__ = [
    "AdmissionError",
    "Answer",
    "HostTree",
    "NotPermittedError",
    "Served",
    "StandInKubelet",
    "can_make_nodes",
    "serving",
    "short_directory",
]
