"""``devhost capture``."""

from pathlib import Path

import click

from devhost.cli import options
from devhost.cli import output as printer


@click.command("capture", epilog="Exit status: 0 success, 1 FILE exists, 2 usage error.")
@click.option(
    "-o", "--output", required=True, type=options.FILE, help="Archive to write; '-' is the output."
)
@click.option("--force", is_flag=True, help="Overwrite the file of -o.")
@click.option(
    "--anonymous", is_flag=True, help="Replace serial numbers, addresses and UUIDs by numbers."
)
@options.root_option
def command(output: str, force: bool, anonymous: bool, root: str) -> None:
    """Write what devhost reads of this host into an archive, for --root of other commands.

    It has what /sys and /dev say of devices, what the host uses, and CDI specs; nothing from within
    a device, and no other file of the host.

    Example: `devhost capture -o node.tar`, then elsewhere `devhost init --root node.tar`
    """
    from devhost.drafts.capture import capture, pack
    from devhost.hostfs.files import HostFiles

    try:
        archive = pack(capture(HostFiles(root), anonymous=anonymous))
        if output == "-":
            click.get_binary_stream("stdout").write(archive)
        else:
            with Path(output).open("wb" if force else "xb") as file:
                file.write(archive)
    except FileExistsError:
        printer.fail(f"{output} exists; overwrite it with --force")
    except (OSError, ValueError) as error:
        printer.fail(f"{output}: {error}")
