"""Ports of a virtual switch, which are not visible on the node.

Try it on a laptop, with a stand-in kubelet:     python vpcport.py --try
Serve kubelet on this node, like `devhost run`:  python vpcport.py
"""

import devhost

PORTS = 4  # a real plugin would query the network controller


def get_ports() -> list[str]:
    """Return the IDs of the ports that are there now."""
    return [f"port-{number}" for number in range(PORTS)]


if __name__ == "__main__":
    devhost.serve("netease/vpcport", get_ports, allocate={"env": {"VPC_PORTS": "${id}"}})
