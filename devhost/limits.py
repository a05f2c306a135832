"""Bounds that protect the process and the node: what a config, a directory or a client may use.

Each is enforced where its comment says; `devhost status` shows those that are reached.
"""

from typing import Final
