"""The node of this process: devices are published only if its Kubernetes is new enough."""

import re
from typing import Final, NamedTuple

from devhost.backends.dra.api_client import ApiClient, reading_answer
from devhost.errors import DevhostError

_LEAST: Final = (1, 36)  # an older kubelet starts pods without their devices


class KubeNode(NamedTuple):
    """A node: its UID, and why its containers may not get devices, if so."""

    uid: str
    warning: str | None


async def read_node(api: ApiClient, node_name: str) -> KubeNode:
    """Return a node as the API server has it.

    No API server is older than the kubelets of its nodes.

    Raises:
        ApiError: The API server does not answer, or refuses.
        DevhostError: The kubelet is too old for devices to be published.
    """
    node = await api.call("GET", f"/api/v1/nodes/{node_name}")
    with reading_answer():
        info, uid = node["status"]["nodeInfo"], str(node["metadata"]["uid"])
        kubelet, runtime = info["kubeletVersion"], str(info.get("containerRuntimeVersion"))
        match = re.match(r"v?((\d+)\.(\d+)[\w.+-]*)", kubelet)
    if match is not None and (int(match[2]), int(match[3])) < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise DevhostError(f"needs kubelet {least}, this node has {match[1]}")
    is_old = runtime.startswith("containerd://1.")
    warning = f"DRA needs containerd 2, this node has {runtime}" if is_old else None
    return KubeNode(uid, warning)
