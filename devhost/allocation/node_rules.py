"""What the policy says of device nodes that are there."""

from devhost.allocation.policy import Policy
from devhost.hostfs.block_use import BlockUse
from devhost.hostfs.files import HostFiles
from devhost.hostfs.kernel_facts import KernelFacts, KernelFactsReader
from devhost.hostfs.mounts import Number
from devhost.model.device import FileKind


class NodeRules:
    """Asks the kernel once for each number: a new one for each scan, Allocate, check and step."""

    def __init__(self, files: HostFiles, policy: Policy) -> None:
        self._policy = policy
        self._reader, self._use = KernelFactsReader(files), BlockUse(files)

    def refusal(self, realpath: str, kind: FileKind, number: Number) -> str | None:
        """Return why a device node may not be used, or ``None``. Blocks.

        Args:
            realpath: The host path with ``..`` and links resolved.
            kind: What it is.
            number: Its major and minor.
        """
        block = kind is FileKind.BLOCK
        facts = KernelFacts() if block else self._reader.of(number)
        use = self._use.of(number) if block else None
        return self._policy.refusal(realpath, kind, number, mount=False, facts=facts, use=use)
