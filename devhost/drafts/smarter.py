"""A setting of smarter-device-manager as resources.

Its rules, from its sources: a pattern is searched for in the paths below /dev. Each path that has
it is a resource of its own, with the path in its name, and "_" for "/"; so many pods may have it.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from devhost.drafts import dev_names
from devhost.drafts.draft import replicas
from devhost.hostfs.files import HostFiles
from devhost.hostfs.walk import Walk
from devhost.model import pattern
from devhost.model.names import natural
from devhost.sources.base import NOT_DEVICES

DOMAIN: Final = "smarter-devices"
# A name, and the subsystem that has such devices.
_WITHOUT_NODE: Final = {"hci0": "bluetooth", "eth0": "net", "wlan0": "net", "hwmon0": "hwmon"}
_LITERAL: Final = re.compile(r"\^((?:[A-Za-z0-9/_:-]|\\.)+)\$")


class _Setting(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    devicematch: str = Field(max_length=pattern.LENGTH_MAX)
    nummaxdevices: int = Field(ge=1)


def convert_setting(data: Mapping[str, Any], domain: str, files: HostFiles) -> list[dict[str, Any]]:
    """Return a resource for each path of a setting, or raise `ValueError`. Blocks.

    The paths of a pattern that is not a single path are those of this host.
    """
    setting = _Setting.model_validate(data)
    matching = functools.partial(pattern.matches_part, setting.devicematch)
    if (literal := _LITERAL.fullmatch(setting.devicematch)) is not None:
        paths = [re.sub(r"\\(.)", r"\1", literal[1])]
    else:
        present = natural(Walk(files, "/dev", leave_out=NOT_DEVICES).matches)
        paths = [path for path in present if matching(path)]
    absent = next((name for name in _WITHOUT_NODE if matching(name)), None)
    if absent is not None and (literal is not None or not paths):
        raise ValueError(
            f"{absent} never has a node below /dev: write "
            f"`sysfs: {{subsystem: {_WITHOUT_NODE[absent]}, node: none}}`"
        )
    if not paths:
        raise ValueError(
            "nothing below /dev of this host matches: run convert on the node, or write one "
            "resource for all of them, with `dev`"
        )
    resources = []
    for path in paths:
        source = dev_names.path_source(f"/dev/{path}", files)
        allocate = {} if isinstance(source, str) else {"allocate": {"devices": ["${path}"]}}
        resource = {"name": f"{domain}/{path.replace('/', '_')}", "sources": [source], **allocate}
        resources.append({**resource, **replicas(setting.nummaxdevices)})
    return resources
