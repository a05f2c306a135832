"""The values that the tests render the chart with."""

from collections.abc import Mapping
from typing import Any

import yaml

from tools.helm import ROOT

Values = dict[str, Any]

EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))

TOKENS: Values = {"version": "v1", "resources": [{"name": "e.com/t", "sources": [{"static": 2}]}]}

# Everything that can be switched on, and each value set to something.
EVERYTHING: Values = {
    "config": {
        "version": "v1",
        "x-common": {"separator": ";"},
        "resources": [
            {"name": "example.com/cola", "sources": [{"directory": "/etc/colas"}]},
            {
                "name": "example.com/disk",
                "sources": [{"glob": {"paths": ["/dev/disk/by-id/*"], "types": "block"}}],
                "preStart": [{"run": ["mkfs.ext4", "${path}"]}],
                "inject": "cdi",
                "allocate": {"mounts": ["/opt/tools"]},
            },
        ],
    },
    "hostPaths": ["/etc/colas/", "/opt/../opt/tools", "/c//d/."],
    "stateDir": "/data/devhost",
    "allow": {
        "paths": ["/dev/disk/*", "/opt/tools"],
        "devices": ["hidraw", "/dev/tpm*"],
        "resources": ["example.com/gpu"],
        "cdi": ["vendor.com/class=*"],
        "annotations": ["example.com/*"],
        "exec": True,
    },
    "deviceAccess": {"privileged": True, "writable": True},
    "podResources": {"enabled": True},
    "cdi": {"enabled": True, "dir": "/etc/cdi"},
    "kubelet": {"rootDir": "/data/kubelet"},
    "log": {"level": "debug", "format": "text"},
    "image": {
        "registry": "images.example.com:5000/",
        "repository": "tools/devhost",
        "tag": "9.9.9",
        "digest": f"sha256:{'0' * 64}",
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "pull"}],
    "fullnameOverride": "a-full-name-that-is-too-long-for-the-label-of-a-profile",
    "serviceAccount": {"name": "own", "annotations": {"a": "b"}},
    "podAnnotations": {"kubectl.kubernetes.io/default-container": "y"},
    "podLabels": {
        "b": "2",
        "app.kubernetes.io/name": "mine",
        "app.kubernetes.io/component": "mine",
    },
    "podSecurityContext": {"fsGroup": 0},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "Exists"}]}]
            }
        }
    },
    "updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    "probes": {
        "startup": {"initialDelaySeconds": 0},
        "liveness": {"terminationGracePeriodSeconds": 5},
        "readiness": {"successThreshold": 2},
    },
    "extraArgs": ["--log-level=error"],
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "tmp", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    "http": {"port": 9999, "statusPort": 9998},
    "metrics": {
        "devices": True,
        "podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "alertLabels": {"team": "nodes"},
        },
        "dashboard": {"enabled": True, "annotations": {"folder": "nodes"}},
    },
    "networkPolicy": {"from": [{"namespaceSelector": {}}]},
    "tests": {"strict": True},
    "profiles": [
        {
            "name": "twenty-characters-xx",
            "nodeSelector": {"board": "true", "site": "x"},
            "hostRoot": {"enabled": True},
            "deviceAccess": {"privileged": False},
            "securityContext": {"capabilities": {"add": ["SYS_NICE"]}},
            "allow": {"exec": False},
            "resources": {"limits": {"cpu": 1}},
            "probes": {"startup": None, "liveness": {"failureThreshold": None}},
            "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
            "tolerations": [],
            "config": TOKENS,
        },
        {
            "name": "two",
            "nodeSelector": {"kubernetes.io/os": None, "site": "y"},
            "securityContext": {"seLinuxOptions": {"level": "s0"}},
            "resources": {"limits": None},
            "podLabels": {"b": None},
            "config": TOKENS,
        },
    ],
}


def example(path: Any) -> Values:
    """An example of the configuration as values."""
    return {"config": yaml.safe_load(path.read_text())}


# Another's ConfigMap and service account, nothing that can be left out, and null for what is removed.
HARDENED: Values = {
    "config": {"existingConfigMap": "theirs"},
    "image": {"repository": "localhost/devhost", "pullPolicy": "Never"},
    "serviceAccount": {"create": False},
    "podResources": {"enabled": False, "assumeFree": True},
    "hostRoot": {"enabled": True},
    "hostPaths": ["/srv"],
    "allow": {"paths": ["/dev/*"], "devices": None},
    "securityContext": {"seLinuxOptions": None},
    "affinity": {"podAffinity": {"replaced": "by the profile's"}},
    "priorityClassName": "a\nhostNetwork: true",
    "podLabels": {"a": None},
    "nodeSelector": {"a": None},
    "probes": {"startup": None, "liveness": {"initialDelaySeconds": None}},
    "networkPolicy": {"enabled": False},
    "command": ["python3", "/plugins/vpcport.py"],
    "args": [],
    "tests": None,
    "profiles": [
        {
            "name": "a",
            "nodeSelector": {"a": "b"},
            "deviceAccess": {"privileged": True},
            "securityContext": {"seLinuxOptions": {"type": None}},
            "podResources": {"assumeFree": False},
            "affinity": {"nodeAffinity": {"own": True}},
            "config": TOKENS,
        }
    ],
}
SETS: Mapping[str, Values] = {"defaults": {}, "everything": EVERYTHING, "hardened": HARDENED}
