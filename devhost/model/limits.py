"""Limits of what configurations, directories and clients use; enforced where comments say."""

from typing import Final

# ── what directories may bring ──

# What 30,000 devices with long names take (some 190 MiB, measured) fits into the chart's memory
# limit of 256 MiB beside the process itself (60 MiB).

# Read of one root (devhost.hostfs.files.Tally), also of what is not offered. It fails beyond.
ENTRIES_MAX: Final = 15_000
# Read of all roots together. However many that is, each root may have a few.
ENTRIES_TOTAL_MAX: Final = 30_000
ENTRIES_FEW: Final = 100
# An entry counts as one more for each so many bytes that its path takes in memory.
ENTRY_BYTES: Final = 1024
# Skipped candidates that are shown for a resource (devhost.devices.scan); others are counted.
SKIPPED_MAX: Final = 100

# inotify's limit is one for all processes of a user, so kubelet's and containerd's too: from 8,192
# on machines with little memory.

# Directories that are watched for a subscriber (devhost.watch.watcher); others are polled.
WATCHES_MAX: Final = 1000
# Of the whole process; however many that is, each subscriber may have a few.
WATCHES_TOTAL_MAX: Final = 4000
WATCHES_FEW: Final = 8

# ── what they may have devhost do ──

# Lists on one ListAndWatch stream (devhost.backends.deviceplugin.device_list), after a burst: for
# each, kubelet writes its checkpoint to the node's disk. The last state is always sent.
LISTS_BURST: Final = 10
LISTS_PER_S: Final = 1.0

# ── requests of clients ──

# Options of gRPC for each socket (devhost/backends/sockets.py).

# The largest request. GetPreferredAllocation carries every free ID, and a list has at most 4 MiB.
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
# Connections (15 KiB each), calls of a connection (further ones wait), and when an idle connection
# is closed. Kubelet has one, with one stream and the calls of up to 110 pods.
CONNECTIONS_MAX: Final = 32
CONNECTION_CALLS_MAX: Final = 256
IDLE_CONNECTION_S: Final = 30.0

# A value of a device's attribute (resource.k8s.io/v1): backends/dra/pool.py leaves out longer ones.
ATTRIBUTE_BYTES_MAX: Final = 64
# Of a device, beside its resource, ID, NUMA node and the two of PCI: 32 in all.
ATTRIBUTES_MAX: Final = 27

# ── the size of a configuration, and of what is found ──

# In config/loader.py. With 10 devices each they take 210 MiB, and 40 KiB of the node's status,
# which etcd limits to 1.5 MiB.
RESOURCES_MAX: Final = 1000
# A file of the state directory (devhost/custody/state_dir.py): the records of 20,000 IDs fit in. A
# larger one is damaged, and moved aside.
STATE_BYTES_MAX: Final = 16 * 1024 * 1024
# The record of a claim, in JSON (devhost/backends/dra/prepared_claims.py).
CLAIM_BYTES_MAX: Final = 64 * 1024
# A CDI spec of others, those in a directory, and the devices of one (devhost/sources/cdi_specs.py).
CDI_FILE_MAX: Final = 1024 * 1024
CDI_FILES_MAX: Final = 100
CDI_DEVICES_MAX: Final = 500
# Device IDs that are offered, of all resources together: 1.5 KiB each. What a file declares is
# checked in config/checks/source_checks.py; what is found, in devices/resolve.py.
DEVICE_IDS_MAX: Final = 20_000
# Entries of a resource's `allocate` (devhost/config/checks/resource_checks.py): a scan puts all of
# them together for each new device.
ALLOCATE_ENTRIES_MAX: Final = 200
# Those of them whose names or container paths are made from the device: a scan notes each.
ALLOCATE_NAMES_MAX: Final = 16
# Characters of an answer to Allocate (devhost/allocation/compiled.py): kubelet refuses more.
ANSWER_MAX: Final = 4 * 1024 * 1024
# A CDI spec, and all specs of a node (devhost/allocation/cdi.py); devices beyond are unhealthy.
CDI_SPEC_MAX: Final = 4 * 1024 * 1024
CDI_SPECS_MAX: Final = 16 * 1024 * 1024
# An archive of `devhost capture`, unpacked (devhost/drafts/capture.py).
ARCHIVE_MAX: Final = 128 * 1024 * 1024
