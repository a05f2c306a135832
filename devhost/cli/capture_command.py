"""``devhost capture``."""

from typing import BinaryIO

import click

from devhost.cli import options
from devhost.cli import output as printer


@click.command("capture", epilog="Exit status: 0 success, 1 failure, 2 usage error.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.File("wb", lazy=True),
    help="Archive to write; '-' is standard output.",
)
@click.option("--anonymous", is_flag=True, help="Replace serial numbers, addresses and UUIDs.")
@options.root_option
def command(output: BinaryIO, anonymous: bool, root: str) -> None:
    """Write what devhost reads of this host into an archive, for --root of other commands.

    It has what /sys and /dev say of devices, which the host uses, and CDI specs; nothing from
    within a device.

    Example: `devhost capture -o node.tar`
    """
    from devhost.drafts.capture import capture, pack
    from devhost.hostfs.files import HostFiles

    try:
        archive = pack(capture(HostFiles(root), anonymous=anonymous))
        output.write(archive)  # opens it
    except (OSError, ValueError) as error:
        printer.fail(str(error))
