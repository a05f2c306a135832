"""How the programs of the cluster are configured."""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.e2e.images import BUSYBOX
from tests.e2e.init import NODE_IP

NODE: Final = "node-1"
ETCD: Final = "http://127.0.0.1:2379"
CONTAINERD: Final = "/run/containerd/containerd.sock"

KUBELET: Final = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
    "resolvConf": "",
    "clusterDNS": ["10.96.0.10"],
    "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    # How soon an edited ConfigMap is in its pods, and devices in the node's status.
    "syncFrequency": "2s",
    "nodeStatusUpdateFrequency": "1s",
    "maxPods": 200,
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "50Mi"},  # not the disk: it is not ours to judge
}

CONTAINERD_TOML: Final = f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{BUSYBOX}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  # Root in a virtual machine or a container may not lower it, and runc fails if it is to.
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/run/cni"
"""

CNI: Final = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni-addresses",
                "ranges": [[{"subnet": "10.88.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


def write(directory: Path, root: Path) -> None:
    """Write the files that the programs read.

    Args:
        directory: Where they are in the namespaces.
        root: Where the caller sees the root of these.
    """
    here = root / directory.relative_to("/")
    token = secrets.token_hex(16)
    (here / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "e2e",
                "cluster": {
                    "server": "https://127.0.0.1:6443",
                    # Of the certificate that the API server makes for itself.
                    "tls-server-name": "kubernetes",
                    "certificate-authority": f"{directory}/pki/apiserver.crt",
                },
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "admin"}}],
        "current-context": "e2e",
    }
    (here / "kubeconfig").write_text(json.dumps(kubeconfig))
    (here / "kubelet.yaml").write_text(json.dumps(KUBELET | {"cgroupRoot": f"/{directory.name}"}))
    (here / "containerd.toml").write_text(CONTAINERD_TOML)
    cni = root / "run" / "cni"
    cni.mkdir()
    (cni / "10-bridge.conflist").write_text(json.dumps(CNI))


def commands(directory: Path) -> Mapping[str, list[str]]:
    """Return the command of each program, in the order of their start."""
    pki, kubeconfig = f"{directory}/pki", f"--kubeconfig={directory}/kubeconfig"
    alone = ("--leader-elect=false", "--bind-address=127.0.0.1", kubeconfig)
    return {
        "containerd": ["containerd", f"--config={directory}/containerd.toml"],
        "etcd": [
            "etcd",
            f"--data-dir={directory}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ],
        "kube-apiserver": [
            "kube-apiserver",
            f"--etcd-servers={ETCD}",
            f"--advertise-address={NODE_IP}",
            f"--cert-dir={pki}",
            f"--token-auth-file={directory}/tokens.csv",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={pki}/apiserver.key",
            f"--service-account-key-file={pki}/apiserver.key",
            "--kubelet-preferred-address-types=InternalIP",
        ],
        "kube-controller-manager": [
            "kube-controller-manager",
            *alone,
            f"--service-account-private-key-file={pki}/apiserver.key",
            f"--root-ca-file={pki}/apiserver.crt",
        ],
        "kube-scheduler": ["kube-scheduler", *alone],
        "kubelet": [
            "kubelet",
            f"--config={directory}/kubelet.yaml",
            kubeconfig,
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_IP}",
            "--v=2",
        ],
    }
