"""``python -m devhost``, and the script ``devhost``."""

import os
import sys

from devhost.host.process import exit_on_signals

# Otherwise pydantic reads the metadata of every installed package to look for plugins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

if sys.argv[1:2] == ["run"]:  # the other commands keep the default actions
    exit_on_signals()

from devhost.cli import main

if __name__ == "__main__":
    main(prog_name="devhost")
