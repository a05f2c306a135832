"""``python -m devhost``, and the script ``devhost``."""

import sys

from devhost.daemon.signals import exit_on_signals

if sys.argv[1:2] == ["run"]:  # the other commands keep the default actions
    exit_on_signals()

from devhost.cli import main

if __name__ == "__main__":
    main(prog_name="devhost")
