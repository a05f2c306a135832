"""Write the software bill of materials of an image: what is installed in it, as CycloneDX.

    python3 sbom.py ROOT

adds it to the files of an image below ROOT, with the interpreter that is one of them. It is made
of what the image itself says (metadata of Python's packages, the distribution's database),
without a network, and is the same each time.
"""

import json
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

PLACE: Final = "usr/share/sbom/devhost.cdx.json"
_NAME: Final = "kube-devhost"

Component = dict[str, Any]


def main() -> None:
    root = Path(sys.argv[1])
    components = sorted(_components(root), key=lambda component: str(component["bom-ref"]))
    (subject,) = (component for component in components if component["name"] == _NAME)
    parts = [component for component in components if component is not subject]
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject | {"type": "application"}},
        "components": parts,
        "dependencies": [
            {"ref": subject["bom-ref"], "dependsOn": [component["bom-ref"] for component in parts]}
        ],
    }
    place = root / PLACE
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(bom, indent=1) + "\n")


def _components(root: Path) -> Iterator[Component]:
    (packages,) = root.glob("opt/*/lib/python3.*/site-packages")
    for package in metadata.distributions(path=[str(packages)]):
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        component = _component(name, package.version, f"pkg:pypi/{name}@{quote(package.version)}")
        if (key := "License-Expression") in package.metadata:
            component["licenses"] = [{"expression": package.metadata[key]}]
        yield component
    # That of the official images belongs to no package of the distribution.
    python = platform.python_version()
    cpe = f"cpe:2.3:a:python:python:{python}:*:*:*:*:*:*:*"
    yield _component("python", python, f"pkg:generic/python@{python}") | {"cpe": cpe}
    system = platform.freedesktop_os_release()
    distro = f"{system['ID']}-{system.get('VERSION_ID', '')}".rstrip("-")
    for stanza in (root / "var/lib/dpkg/status.d").glob("*"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Architecture): (.+)$", stanza.read_text()))
        name, version = fields["Package"], fields["Version"]
        where = f"arch={fields['Architecture']}&distro={distro}"
        purl = f"pkg:deb/{system['ID']}/{quote(name)}@{quote(version, safe='')}?{where}"
        yield _component(name, version, purl)


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main()
