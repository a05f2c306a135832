"""The manifest for those who do without Helm: what the chart renders, less Helm's own labels.

    python -m tools.manifest

writes it.
"""

import re
import textwrap
from typing import Final

import yaml

from tools.helm import CHART, ROOT, run

MANIFEST: Final = ROOT / "deploy" / "kubernetes" / "devhost.yaml"
EXAMPLE: Final = ROOT / "config" / "examples" / "serial.yaml"
VALUES: Final = {
    "image": {"registry": "registry.example.com"},
    "config": yaml.safe_load(EXAMPLE.read_text()),
    "validation": {"enabled": False},
}
HEADER: Final = """\
# devhost without Helm, for Kubernetes 1.31 or newer: set `image`, edit the configuration in the
# ConfigMap, and
#
#     kubectl apply -f devhost.yaml
#
# An edit of the ConfigMap is applied by the running pods within about a minute.
# Made from the chart by `make generate`; what the settings mean is said in its README.md.
---
apiVersion: v1
kind: Namespace
metadata:
  name: devhost
  labels:
    # The pods mount directories of the host.
    pod-security.kubernetes.io/enforce: privileged
"""
_OF_HELM: Final = ("# Source:", "helm.sh/chart:", "app.kubernetes.io/managed-by:")


def manifest() -> str:
    """Return the manifest as the chart is now."""
    rendered = run(
        4,
        *("template", "devhost", str(CHART), "--namespace=devhost", "--kube-version=1.31.0"),
        values=VALUES,
    )
    lines = (line for line in rendered.splitlines() if not line.lstrip().startswith(_OF_HELM))
    # As it was written, with its comments.
    config = textwrap.indent(EXAMPLE.read_text(), " " * 4)
    text = re.sub(r"(?<=  config\.yaml: \|\n)(?:    .*\n)+", lambda _: config, "\n".join(lines))
    return f"{HEADER}{text}\n"


if __name__ == "__main__":
    MANIFEST.parent.mkdir(exist_ok=True)
    MANIFEST.write_text(manifest())
