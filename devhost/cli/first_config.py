"""The configuration that a process starts with."""

import logging
import sys
from typing import TYPE_CHECKING, Final

from devhost.model.config import Config

if TYPE_CHECKING:
    from devhost.host.config.source import ConfigSource

_LOG: Final = logging.getLogger(__name__)


def first_config(source: "ConfigSource | None", *, log: bool) -> Config:
    """Return the configuration to start with: the file, or the last good copy if it is invalid.

    Exits with status 1 if there is none.

    Args:
        source: The file; without one there are no resources.
        log: Whether to log its problems, rather than print them.
    """
    if source is None:
        return Config(version="v1", resources=())
    loaded, copy = source.first()
    problems = loaded.problems + (copy.problems if copy else ())
    if log:
        from devhost.host.config.source import log_problems

        log_problems(problems)
    else:
        from devhost.cli.problems import print_problems

        print_problems(problems)
    used = loaded.config or (copy.config if copy else None)
    if used is None:
        sys.exit(1)
    if loaded.config is None:
        fields = {"file": source.file, "used": source.status.file}
        what = "unreadable" if source.status.unreadable else "invalid"
        _LOG.error(
            "%s configuration, starting with the last good one", what, extra={"fields": fields}
        )
    return used
