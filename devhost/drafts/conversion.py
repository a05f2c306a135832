"""Settings of other plugins, and what pods have by path, as a configuration."""

import re
from collections.abc import Iterator
from typing import Any, Final

from devhost.drafts import generic_plugin, path_users, smarter, udev_rules
from devhost.drafts.draft import (
    DOMAIN,
    DraftEntry,
    NodeEntries,
    lost_entry,
    unused_name,
    with_rights,
)
from devhost.drafts.manifests import (
    BEFORE_0_2,
    Labels,
    Manifest,
    PluginContext,
    read_manifests,
    walk_mappings,
)
from devhost.hostfs.files import HostFiles
from devhost.model import limits

_UNSURE: Final = (
    f"Nothing says in which domain: {BEFORE_0_2} is the plugin's default before 0.2.0, and "
    "devic.es since. The `limits` of the pods have it; give another one by --domain."
)
_PROFILES: Final = (
    "A DaemonSet is for some nodes: with --values, its devices are a profile of these."
)
_EXAMPLE: Final = f"{DOMAIN} stands for a domain of yours: --domain sets it."


class Conversion:
    """Collects what files of others have, and writes it as resources.

    They are in a domain, or in that of their plugin. ``by_node``, the devices of a DaemonSet with
    a `nodeSelector` are a profile.
    """

    def __init__(
        self, files: HostFiles, domain: str | None = None, *, by_node: bool = False
    ) -> None:
        self._files, self._domain, self._by_node = files, domain, by_node
        self._manifests = list[Manifest]()
        self._uses = list[path_users.PathUse | DraftEntry]()

    def read(self, text: str) -> bool:
        """Add what a text has, and return whether it has anything; or raise `TreeError`."""
        manifests, count = read_manifests(text), len(self._uses)
        self._manifests += manifests
        has_plugin = any(manifest.is_of_plugin for manifest in manifests)
        for manifest in manifests:
            if not manifest.is_of_plugin:
                self._uses += [
                    use
                    for use in path_users.find_uses(manifest)
                    # Beside a plugin are also privileged pods of the cluster.
                    if not has_plugin or isinstance(use, path_users.PathUse)
                ]
                self._uses += udev_rules.find_entries(manifest, self._domain or DOMAIN)
        return has_plugin or len(self._uses) > count

    def _settings(self) -> Iterator[tuple[dict[str, Any], set[str], PluginContext]]:
        """Yield each device with the domains that it may have, and where its pods are.

        That is by the plugin around it, in the same manifest, in one that names its ConfigMap, or
        by all plugins.
        """
        all_plugins, by_name = list[PluginContext](), dict[str, list[PluginContext]]()
        for manifest in self._manifests:
            all_plugins += manifest.plugins
            mappings = walk_mappings(manifest.tree) if manifest.plugins else ()
            for name in {str(mapping.get("name")) for _, mapping in mappings}:
                by_name.setdefault(name, []).extend(manifest.plugins)
        for manifest in self._manifests:
            for device, context in manifest.settings:
                plugins = manifest.plugins or by_name.get(context.name) or all_plugins
                of_plugins = {plugin.domain for plugin in plugins} - {""}
                domains = {context.domain} if context.domain else of_plugins
                is_sure = not context.labels and len({plugin.labels for plugin in plugins}) == 1
                yield device, domains, plugins[0] if is_sure else context

    def finish(self) -> tuple[list[NodeEntries], list[str]]:
        """Return entries for all nodes, and those of profiles, with what to know of them. Blocks.

        What cannot be a resource is a comment. Raises `ValueError` for more devices than a file may
        have resources.
        """
        count = sum(len(manifest.settings) for manifest in self._manifests) + len(self._uses)
        if count > limits.RESOURCES_MAX:
            raise ValueError(f"{count} devices, more than {limits.RESOURCES_MAX}")
        profiles, notes = dict[Labels, NodeEntries]({(): NodeEntries("", {})}), dict[str, None]()
        names = set[str]()
        for device, domains, context in self._settings():
            labels = context.labels if self._by_node else ()
            if labels not in profiles:
                name = re.sub("[^a-z0-9]+", "-", context.name.lower())[:16].strip("-") or "nodes"
                profiles[labels] = NodeEntries(unused_name(name, names), dict(labels))
            if context.labels and not labels:
                notes[_PROFILES] = None
            if not (self._domain or domains or "devicematch" in device):
                notes[_UNSURE] = None
            for entry in self._convert_device(device, domains):
                profiles[labels].add(entry)
        if self._uses and self._domain is None:
            notes[_EXAMPLE] = None
        for entry in path_users.build_entries(self._uses, self._domain or DOMAIN, self._files):
            profiles[()].add(entry)
        for profile in profiles.values():
            profile.entries = with_rights(profile.entries, self._files)
        return [*profiles.values()], [*notes]

    def _convert_device(self, device: dict[str, Any], domains: set[str]) -> Iterator[DraftEntry]:
        """Yield the resources of a device of a plugin, and what cannot be carried over."""
        is_smarter = "devicematch" in device
        domain = self._domain or (
            smarter.DOMAIN if is_smarter else min(domains, default=BEFORE_0_2)
        )
        name = f"{domain}/{device.get('devicematch') or device.get('name')}"
        problem = device.get("unreadable")
        if self._domain is None and len(domains) > 1 and not is_smarter:
            problem = f"in {' or '.join(sorted(domains))}: give its domain by --domain"
        try:
            if problem:
                yield lost_entry(name, problem)
            elif is_smarter:
                yield from map(DraftEntry, smarter.convert_setting(device, domain, self._files))
            else:
                yield from generic_plugin.convert_device(name, device, self._files)
        except (OSError, ValueError) as error:
            yield lost_entry(name, error)
