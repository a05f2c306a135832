"""What a check finds: how bad, where, what, and whether to point at the key."""

from devhost.errors import Severity
from devhost.loading.yamltree import Path

# The last: point at the key rather than the value.
Finding = tuple[Severity, Path, str, bool]
