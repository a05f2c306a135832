"""What a shell completes: values of arguments and options.

Arguments that are files are no `click.Path`, which accesses the path: a hung filesystem would block
a command. So they need a word to the shell.
"""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Let the shell complete a file name."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def directories(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Let the shell complete the name of a directory."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def resources(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the resource names of the configuration that the command line names."""
    return [name for name in _resources(context) if name.startswith(incomplete)]


def requests(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return a request for one device of each resource."""
    return [f"{name}=1" for name in _resources(context) if name.startswith(incomplete)]


def devices(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of devices as `devhost devices` shows them."""
    from devhost.discovery.machine import Machine
    from devhost.hostfs.files import HostFiles

    try:
        machine = Machine(HostFiles(context.params.get("root") or "/"))
    except OSError:
        return []
    rows = [row.values for row in (*machine.usb_rows(), *machine.pci_rows()) if row.plain]
    nodes = [node for row in rows if row["NODES"] != "-" for node in row["NODES"].split(", ")]
    buses = [row["USB"] for row in rows if "USB" in row]
    return [name for name in dict.fromkeys((*nodes, *buses)) if name.startswith(incomplete)]


def _resources(context: click.Context) -> list[str]:
    import yaml

    from devhost.loading.loader import read

    # Click leaves the arguments unread if the last option lacks its value.
    file = next(iter(context.args), context.params.get("config"))
    if not file or file == "-":
        return []
    try:
        # Not checked: a file that is being written has names as well.
        document = yaml.load(read(file), Loader=yaml.BaseLoader)  # noqa: S506 (makes only strings)
    except (OSError, yaml.YAMLError, RecursionError):
        return []
    entries = document.get("resources") if isinstance(document, dict) else None
    found = [one.get("name") for one in entries or () if isinstance(one, dict)]
    return [name for name in found if isinstance(name, str)]
