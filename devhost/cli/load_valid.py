"""Loads configurations for commands that end if one is invalid; `run` must not import it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from devhost.cli import output as printer
from devhost.cli.problems import print_problems

if TYPE_CHECKING:
    from devhost.allocation.policy import Policy
    from devhost.model.config import Config


def load_valid(
    files: Sequence[str], policy: "Policy", profile: str
) -> "tuple[list[Config], Policy]":
    """Load configurations and print all problems; exit with status 1 if one is invalid.

    Returns:
        The configurations, and what the last one may use.
    """
    from devhost.loading.loader import load

    found = [load(file, policy, profile) for file in files]
    printer.print_warnings(found[-1].policy.warnings)
    print_problems([problem for loaded in found for problem in loaded.problems])
    configs = [loaded.config for loaded in found if loaded.config is not None]
    if len(configs) < len(found):
        sys.exit(1)
    return configs, found[-1].policy
