"""The fixtures are those of tests/conftest.py."""

from tests.support.hosting import Hosting, Kubelet

__all__ = ["Hosting", "Kubelet"]
