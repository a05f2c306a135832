"""A kubelet, with plugins of the tests' own."""

from collections.abc import AsyncIterator

import pytest

from tests.support.hosting import Kubelet
from tests.support.scripted_plugin import Node, a_node


@pytest.fixture
async def node(kubelet: Kubelet) -> AsyncIterator[Node]:
    """One of each kubelet: what is asserted holds for all."""
    async with a_node(kubelet) as node:
        yield node
