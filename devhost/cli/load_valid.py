"""Loads configurations for commands that end if one is invalid; `run` must not import it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from devhost.cli import output as printer
from devhost.cli.problems import print_problems

if TYPE_CHECKING:
    from devhost.allocation.policy import Policy
    from devhost.model.config import Config


def load_valid(files: Sequence[str], policy: "Policy") -> "list[Config]":
    """Load configurations and print all problems; exit with status 1 if one is invalid."""
    from devhost.loading.loader import load

    printer.print_warnings(policy.warnings)
    found = [load(file, policy) for file in files]
    print_problems([problem for loaded in found for problem in loaded.problems])
    configs = [loaded.config for loaded in found if loaded.config is not None]
    if len(configs) < len(found):
        sys.exit(1)
    return configs
