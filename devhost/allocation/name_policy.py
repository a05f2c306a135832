"""Which names a configuration may use without a flag: of resources, CDI devices, annotations, env.

The names that it may not use are those by which others are found, or which steer something else
than the program that uses the device. A list of such names of variables can never be complete; it
has those that are known to load code, redirect connections, or hand over credentials or devices.
"""

import fnmatch
import functools
from collections.abc import Iterator, Mapping
from typing import Final

from devhost.allocation.policy import Policy
from devhost.allocation.rules import Target
from devhost.model.allocation import Allocation

# Domains, with their sub-domains, whose resources a device plugin of their own usually serves:
# NVIDIA/k8s-device-plugin, ROCm/k8s-device-plugin, Xilinx/FPGA_as_a_Service,
# intel/intel-device-plugins-for-kubernetes and HabanaAI/gaudi-device-plugin, AWS Neuron and EFA,
# GoogleCloudPlatform/container-engine-accelerators, Qualcomm Cloud AI, Huawei's
# ascend-device-plugin, kubevirt/kubevirt (virt-handler), and OpenShift's SR-IOV operator.
# What is below kubernetes.io is never a valid name (`names.resource_name_problem`).
_VENDORS: Final = (
    "nvidia.com",
    "amd.com",
    "xilinx.com",
    "intel.com",
    "habana.ai",
    "aws.amazon.com",
    "amazonaws.com",
    "google.com",
    "qualcomm.com",
    "huawei.com",
    "kubevirt.io",
    "openshift.io",
)

# Domains of annotations that runtimes and their plugins obey (containerd, CRI-O, NRI): who edits
# the configuration also chooses the resource's domain.
_RUNTIMES: Final = ("k8s.io", "kubernetes.io", "crio.io", "cri-o.io", "nri.io")

# By what they steer; whatever the case, as programs read some of them in lower case too.
_STEERING: Final[Mapping[str, tuple[str, ...]]] = {
    # Those that the loader takes from set-user-ID programs: ld.so(8), "Secure-execution mode".
    "the loader and the C library": (
        "LD_*",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
        "GETCONF_DIR",
        "HOSTALIASES",
        "LOCALDOMAIN",
        "LOCPATH",
        "MALLOC_TRACE",
        "NIS_PATH",
        "NLSPATH",
        "RESOLV_HOST_CONF",
        "RES_OPTIONS",
        "TMPDIR",
        "TZDIR",
    ),
    "shells and the search for programs": (
        "PATH",
        "HOME",
        "SHELL",
        "ENV",
        "BASH*",
        "SHELLOPTS",
        "IFS",
        "PS4",
        "PROMPT_COMMAND",
        "ZDOTDIR",
        "EDITOR",
        "PAGER",
        "VISUAL",
        "GIT_*",
        "SSH_*",
    ),
    "an interpreter": (
        "PYTHON*",
        "PERL*",
        "RUBY*",
        "GEM_*",
        "BUNDLE_*",
        "NODE_OPTIONS",
        "NODE_PATH",
        "NODE_EXTRA_CA_CERTS",
        "NODE_TLS_REJECT_UNAUTHORIZED",
        "NPM_CONFIG_*",
        "JAVA_*",
        "_JAVA_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "CLASSPATH",
        "DOTNET_*",
        "CORECLR_*",
        "LUA_*",
        "PHP*",
    ),
    "where connections go, and whom they trust": (
        "*_PROXY",
        "SSL*",
        "OPENSSL_*",
        "*_CA_BUNDLE",
        "*_SERVICE_HOST",
        "*_SERVICE_PORT",
    ),
    "access to Kubernetes, a cloud or a container engine": (
        "KUBE*",
        "AWS_*",
        "AZURE_*",
        "GOOGLE_*",
        "VAULT_*",
        "DOCKER_*",
        "CONTAINERD_*",
    ),
    # As NVIDIA's, AMD's, Habana's and Ascend's container runtimes do.
    "a container runtime, which adds devices": (
        "NVIDIA_*",
        "*_VISIBLE_DEVICES",
        "ASCEND_*",
        "CUDA_INJECTION64_PATH",
    ),
}


def resource_refusal(policy: Policy, name: str) -> str | None:
    """Return why a resource may not have a name, or ``None``."""
    if _allowed(name, policy.allow_resources):
        return None
    if policy.allow_resources:
        return f"not one of the allowed names: it needs --allow-resource '{name}'"
    domain = name.partition("/")[0]
    vendor = next((one for one in _VENDORS if _is_within(domain, one)), None)
    if vendor is None:
        return None
    return (
        f"another device plugin usually serves the resources of {vendor}: "
        f"it needs --allow-resource '{name}'"
    )


@functools.lru_cache(maxsize=4096)  # a scan asks for the same few names for each device
def refusal(policy: Policy, resource: str, target: Target, name: str) -> str | None:
    """Return why a resource may not use a name in ``allocate``, or ``None``.

    Args:
        policy: What is allowed.
        resource: The resource's name.
        target: The list of ``allocate``.
        name: A variable, an annotation's key, or a CDI device; others are not judged here.
    """
    if target == "env":
        return _env_refusal(policy, name)
    if target == "annotations":
        return _annotation_refusal(policy, resource, name)
    if target == "cdi" and not _allowed(name, policy.allow_cdi):
        return f"CDI device {name} needs --allow-cdi '{name}'"
    return None


def refusals(policy: Policy, resource: str, allocation: Allocation) -> Iterator[str]:
    """Yield why parts of an answer may not be given, by their names."""
    used: tuple[tuple[Target, tuple[str, ...]], ...] = (
        ("env", tuple(allocation.envs)),
        ("annotations", tuple(allocation.annotations)),
        ("cdi", allocation.cdi_devices),
    )
    for target, names in used:
        for name in names:
            if reason := refusal(policy, resource, target, name):
                yield reason


def _env_refusal(policy: Policy, name: str) -> str | None:
    if _allowed(name, policy.allow_env):
        return None
    for what, globs in _STEERING.items():
        if _allowed(name.upper(), globs):
            return f"{name} steers {what}: it needs --allow-env '{name}'"
    return None


def _annotation_refusal(policy: Policy, resource: str, key: str) -> str | None:
    if _allowed(key, policy.allow_annotations):
        return None
    domain, own = key.rpartition("/")[0], resource.partition("/")[0]
    if any(_is_within(domain, one) for one in _RUNTIMES):
        return f"annotation {key} may steer the runtime: it needs --allow-annotation '{key}'"
    if domain == own or ("." in own and _is_within(domain, own)):  # but not all of "com"
        return None
    return (
        f"annotation {key} is not in the resource's domain {own}: "
        f"it needs --allow-annotation '{key}'"
    )


def _is_within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")


def _allowed(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)
