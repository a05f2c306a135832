"""``python -m devhost``."""

from devhost.cli import main

main(prog_name="devhost")
