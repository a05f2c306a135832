"""The versions of Kubernetes on this node, which devices may not be published for if too old."""

import re
from typing import Any, Final

from devhost.backends.dra.api_client import ApiClient, reading_answer
from devhost.errors import DevhostError

_LEAST: Final = (1, 36)  # an older kubelet starts pods without their devices


class OldVersionError(DevhostError):
    """A program of Kubernetes is too old to publish devices."""


class NodeVersions:
    """Reads the versions of the programs of a node.

    Attributes:
        warning: Why containers may not get devices though they are published.
    """

    def __init__(self, api: ApiClient, node_name: str) -> None:
        self._api, self._node_name = api, node_name
        self.warning: str | None = None

    async def read_node(self) -> str:
        """Return the UID of the node; raise `OldVersionError` or `ApiError`."""
        node = await self._api.call("GET", f"/api/v1/nodes/{self._node_name}")
        server = await self._api.call("GET", "/version")
        with reading_answer():
            info, uid = node["status"]["nodeInfo"], str(node["metadata"]["uid"])
            kubelet, runtime = info["kubeletVersion"], str(info.get("containerRuntimeVersion"))
            _require("kubelet", "this node", kubelet)
            _require("Kubernetes", "the API server", server["gitVersion"])
        is_old = runtime.startswith("containerd://1.")
        self.warning = f"DRA needs containerd 2, this node has {runtime}" if is_old else None
        return uid


def _require(program: str, place: str, version: Any) -> None:
    """Raise `OldVersionError` if a version is known and too old."""
    match = re.match(r"v?(\d+)\.(\d+)[\w.+-]*", str(version))
    if match is not None and (int(match[1]), int(match[2])) < _LEAST:
        shown = match[0].removeprefix("v")
        raise OldVersionError(f"needs {program} {_LEAST[0]}.{_LEAST[1]}, {place} has {shown}")
