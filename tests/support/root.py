"""Rights of root on this machine: device nodes, mounts, namespaces, limits."""

import os

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
