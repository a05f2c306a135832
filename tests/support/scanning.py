"""Reads the host for one resource alone."""

from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection, read_all, roots_of, select
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource


def selected(scanner: Scanner) -> Selection:
    """Return what a resource's sources find now."""
    return scanner.select(read_all(scanner.roots, scanner.files))


def survey(resource: Resource, files: HostFiles) -> Selection:
    """Return the same for a resource that is not compiled."""
    return select(resource, read_all(roots_of(resource), files))
