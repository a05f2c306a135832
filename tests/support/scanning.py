"""Reads the host for one resource alone."""

from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection, compiled, read_all, select
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource


def selected(scanner: Scanner) -> Selection:
    """Return what a resource's sources find now."""
    return scanner.select(read_all(scanner.roots, scanner.files))


def survey(resource: Resource, files: HostFiles) -> Selection:
    """Return the same for a resource that is not compiled."""
    selectors = compiled(resource)
    readings = read_all((root for one in selectors for root in one.roots), files)
    return select(selectors, readings, grouped=resource.group is not None)
