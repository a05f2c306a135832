"""A place in memory for tests that make hundreds of trees, which on a disk takes most of their time."""

import os
from typing import Final

# None: where other temporary files are.
IN_MEMORY: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
