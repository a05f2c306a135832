"""Ports of a virtual switch: known by code, and nothing to see of them on the node.

Try it on a laptop, where it serves a stand-in kubelet:    python vpcport.py --try
Serve the kubelet of this node, as `devhost run` would:    python vpcport.py
"""

import devhost

PORTS = 4  # of this node; a real plugin would ask the network's controller


def get_ports() -> list[str]:
    """Return the IDs of the ports that are there now."""
    return [f"port-{number}" for number in range(PORTS)]


if __name__ == "__main__":
    devhost.serve("netease/vpcport", get_ports, allocate={"env": {"VPC_PORTS": "${id}"}})
