"""``python -m devhost``, and the script ``devhost``."""

import sys

from devhost import early

if sys.argv[1:2] == ["run"]:  # the other commands end by a signal as programs do
    early.handle_signals()

from devhost.cli import main

if __name__ == "__main__":
    main(prog_name="devhost")
