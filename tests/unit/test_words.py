"""What people write at first, after other programs and from memory: one error, with what to write."""

import pytest

from devhost.allocation.policy import Policy
from devhost.loading.loader import load_bytes, loads

HEAD = "version: v1\nresources:\n  - name: example.com/a\n"
KVM = HEAD + "    sources: [dev: kvm]\n"
GENERIC = "this is the format of generic-device-plugin, not of devhost; 'devhost convert FILE'"
SMARTER = "this is the format of smarter-device-manager, not of devhost; 'devhost convert FILE'"


def source(text: str) -> str:
    return f"{HEAD}    sources:\n      - {text}\n"


def option(text: str) -> str:
    return f"{KVM}    {text}\n"


def allocate(text: str) -> str:
    return f"{KVM}    allocate:\n      {text}\n"


def found(text: str) -> list[str]:
    return [f"{one.line}:{one.column} {one.message}" for one in loads(text).problems]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # 2, 3, 5, 19, 20, 36: sources
        (source("path: /dev/ttyUSB*"), "5:9 unknown key 'path'; write the path itself: - /dev/ttyUSB*"),
        (source("{type: directory, path: /x}"), "5:10 unknown key 'type'; known keys: directory, glob, dev, static, usb, pci, sysfs, as, optional"),
        (source("count: 4"), "5:9 unknown key 'count'; it belongs below 'static'"),
        (source("directory /etc/colas"), "5:9 'directory /etc/colas' is not a source; missing ':' after 'directory'"),
        (source("/dev/a:/dev/a"), "5:9 looks like docker's HOST:CONTAINER:MODE; write /dev/a"),
        (source("/dev/$DEVICE"), "5:9 variables are not expanded in sources; write the name on the host"),
        (source("pci: {vendor: 10de}"), "5:15 unknown key 'vendor'; write device: \"10de:*\""),
        (source("pci: {vendor: 10de, device: '10de:1eb8'}"), "5:15 unknown key 'vendor'; write device: \"10de:*\""),
        (source("pci: {vendor: nvidia}"), "5:15 unknown key 'vendor'; write device: \"nvidia:*\""),
        (source("usb: {vendor: 0403, product: 6001}"), "5:15 unknown key 'vendor'; write device: \"0403:6001\""),
        (HEAD + "    sources: /dev/ttyUSB*\n", "4:14 should be a list, not a string; write [/dev/ttyUSB*]"),
        (HEAD + "    sources: -/dev/kvm\n", "4:14 should be a list, not '-/dev/kvm'; begin each item with '- '"),
        (HEAD + "    path: /dev/kvm\n", "4:5 unknown key 'path'; did you mean 'sources'?"),
        (HEAD + "    groups: [{paths: [{path: /dev/kvm}]}]\n", "4:5 unknown key 'groups'; did you mean 'sources'?"),
        ("version: v1\nresources:\n  example.com/a:\n    sources: []\n", "3:3 should be a list, not a mapping; begin each item with '- '"),
        # whole files of others
        ("domain: a.b\ndevices:\n  - name: a\n    groups: []\n", f"1:1 {GENERIC} translates it"),
        ("devices:\n  - |\n    name: a\n    groups: []\n", f"1:1 {GENERIC} translates it"),
        ('{"name": "a", "groups": []}', f"1:1 {GENERIC} translates it"),
        ("- devicematch: ^snd$\n  nummaxdevices: 20\n", f"1:1 {SMARTER} translates it"),
        ("sharing:\n  timeSlicing: {}\n", "1:1 this is the format of NVIDIA's device plugin, not of devhost: begin with 'version: v1' and 'resources:'"),
        ("- name: a.b/c\n  sources: []\n", "1:1 a list of resources: write it below 'resources:', after 'version: v1'"),
        ("name: a.b/c\nsources: []\n", "1:1 a resource: write it as an item of 'resources:', after 'version: v1'"),
        ("my:\n  version: v1\n  resources: []\n", "1:1 the configuration is below 'my'; begin with 'version: v1' and 'resources:'"),
        ("apiVersion: v1\nkind: Config\nresources: []\n", "1:1 begin with 'version: v1' and 'resources:', not with apiVersion and kind"),
        ("apiVersion: v1\nkind: Pod\n", "2:7 a Kubernetes manifest (Pod), not a configuration: that begins with 'version: v1' and 'resources:', or is in a ConfigMap"),
        ("apiVersion: v1\nresources: []\n", "1:1 unknown key 'apiVersion'; did you mean 'version'?"),
        ("services: {}\n", "1:1 this is the format of docker compose, not of devhost: begin with 'version: v1' and 'resources:'"),
        ("shared-dev-num: 3\n", "1:1 not a configuration; needs 'version: v1' and 'resources:'"),
        ("config:\n  resource: []\n", "2:3 unknown key 'resource'; did you mean 'resources'?"),
        ("other:\n  config: {source: x}\n", "1:1 not a configuration; needs 'version: v1' and 'resources:'"),
        ("config: {existingConfigMap: x, other: 1}\n", "1:1 not a configuration; needs 'version: v1' and 'resources:'"),
        ("null\n", "1:1 the file is empty; needs 'version: v1' and 'resources:'"),
        # 9, 10, 11, 12, 18, 24: templates, devices and mounts
        (allocate("devices: [{path: /dev/kvm}]"), "6:18 unknown key 'path'; did you mean 'hostPath'?"),
        (allocate("devices: [{hostPath: /dev/kvm, readOnly: true}]"), "6:38 unknown key 'readOnly'; did you mean 'permissions'?"),
        (allocate("devices: [{hostPath: /dev/kvm, permissions: ro}]"), "6:51 'ro' should be one or more of the letters r (read), w (write), m (mknod); write r"),
        (allocate("env: {A: '{{ .ID }}'}"), "6:16 {{ .ID }} is not replaced; write a variable, such as ${name}"),
        (allocate("env: A=b"), "6:12 should be a mapping, not 'A=b'; write key: value"),
        (allocate("env:\n      A: b"), "6:7 has no value; set one or remove the key"),
        (allocate("env: {A: {valueFrom: {}}}"), "6:17 unknown key 'valueFrom'; did you mean 'value'?"),
        (allocate("env: {A: '${control.path}'}"), "6:16 unknown variable ${control.path}: not every device has a node named 'control' by `as`; write ${path}"),
        (option("id: 5"), "5:9 should be a list, not '5'"),
        # 16, 17, 21, 22, 23, 35: options
        (option("preStart: [{mode: rw}]"), "5:23 should be three or four octal digits, such as \"0660\", not 'rw'"),
        (option("preStart: mkfs -q"), "5:15 should be a list, not 'mkfs -q'"),
        (option("preStart: [mkfs -q]"), "5:16 should be a mapping, not 'mkfs -q'; write key: value"),
        (option("health: {exec: test -e /x}"), "5:20 should be a list, not a string; write [test, -e, /x]"),
        (option("health: {readable: true}"), "5:14 unknown key 'readable'; known keys: checks, interval, timeout, failures, recoveries"),
        (option("health: {checks: readable, interval: 5}"), "5:42 should be a duration with a unit (ms, s, m or h), such as 5s, not '5'"),
        (option("health: {checks: readable, failures: 0}"), "5:42 should be at least 1, not 0"),
        (option("removeMissingAfter: 1d"), "5:25 should be never, or a duration with a unit (ms, s, m or h), such as 24h, not '1d'"),
        (option("removeMissingAfter: 5 minutes"), "5:25 should be never, or a duration with a unit (ms, s, m or h), such as 5m, not '5 minutes'"),
        (option("replicas: 0"), "5:15 should be at least 1, not 0"),
        (option("nodeSelector: {a: b}"), "5:5 unknown key 'nodeSelector'; did you mean 'nodeNames'?"),
        (option("replicas: 2\n    Replicas: 3"), "6:5 unknown key 'Replicas'; known keys: name, sources, id, group, allocate, inject, maxDevices, minDevices, overlap, replicas, maxPerContainer, prefer, topology, removeMissingAfter, health, preStart, nodeNames"),
        (option("limit: 5"), "5:5 unknown key 'limit'; did you mean 'maxDevices'?"),
        ("version: v1\nresources:\n  - resourceName: a.b/c\n    sources: [dev: kvm]\n", "3:5 unknown key 'resourceName'; did you mean 'name'?"),
        # 13, 14 and other mistakes in YAML
        (HEAD.replace("name: ", "name:\u00a0") + "    sources: []\n", "3:10 \\xa0 (U+00A0) looks like a quote, dash, colon or space, but is none"),
        (KVM.replace("name: ", "name: \u200b"), "3:11 \\u200b (U+200B) looks like a quote, dash, colon or space, but is none"),
        (HEAD.replace("- name", "\u2014 name") + "    sources: []\n", "3:3 \u2014 (U+2014) looks like a quote, dash, colon or space, but is none"),
        (KVM.replace("name: example.com/a", "name: \u201cexample.com/a\u201d"), "3:11 \u201c (U+201C) looks like a quote, dash, colon or space, but is none"),
        (KVM.replace("name: ", "name\uff1a "), "3:9 \uff1a (U+FF1A) looks like a quote, dash, colon or space, but is none"),
        (HEAD + "    sources: [static: 1\n    replicas: 2\n", "4:14 this '[' is not closed"),
        (HEAD + "    sources: [dev: kvm}\n", "4:14 this '[' is not closed"),
        (allocate("env: {A: '${id}' B: c}"), "6:24 missing ',' before this"),
        (KVM + "    # \u201cquoted\u201d\n    id 5\n    replicas: 2\n", "6:5 missing ':' after a key"),
        ('{\n  "version": "v1"\n  "resources": []\n}', "3:3 missing ',' before this"),
        ('{\n  // a\n  "version": "v1"\n}', "3:12 missing ',' before this"),
        (KVM.replace("- name", "-name"), "3:3 missing space after '-'"),
        (HEAD + "    sources:\n      -\t/dev/kvm\n", "5:8 indented with a tab; use spaces"),
        (HEAD + '    sources: ["/dev/\\USB"]\n', "4:21 invalid escape; write '\\\\' for a backslash, or use single quotes"),
        (HEAD + "    sources: '[/a]'\n", "4:14 should be a list, not '[/a]'"),
        (HEAD + "    sources: [dev: [a, b]]\n", "4:20 should be a string, not a list"),
        (HEAD + "    sources: ['dev: kvm']\n", "4:15 'dev: kvm' is not a source; remove the quotes"),
        (HEAD + "    sources: ['/dev/{{ a }}']\n", "4:15 variables are not expanded in sources; write the name on the host"),
        (HEAD + "    sources: [/dev/snd/]\n", "4:15 ends with '/'; write /dev/snd/* for what is in a directory"),
        ("version: v1\nresources:\n  - name = example.com/a\n", "3:5 should be a mapping, not 'name = example.com/a'; write key: value"),
        ("config: |\n  version: v1\n  resources: []\n", "1:1 the configuration is the text of 'config'; it is a file of its own"),
        (option("id: !!python/object:a.b c"), "5:9 unsupported tag '!!python/object:a.b'; quote a string that begins with '!'"),
        (HEAD + "    sources: [directory:/a]\n", "4:15 'directory:/a' is not a source; missing space after 'directory:'"),
        (HEAD + "    sources: |\n      /a\n      /b\n", "4:14 should be a list, not a string; write [/a, /b]"),
        (allocate("env:\n        A:b"), "7:9 should be a mapping, not 'A:b'; write key: value"),
        (option("health: {checks: [{file: /x}]}"), "5:30 should be a mapping, not '/x'; write key: value"),
        (HEAD + "    sources: - /dev/kvm\n", "4:14 invalid YAML: block sequence entries are not allowed in this context; begin a list on a line of its own, or write it in [ ]"),
        (f"```yaml\n{KVM}```\n", "1:1 not part of the file; remove it"),
        (f"{KVM}<<<<<<< HEAD\n", "5:1 an unresolved merge conflict"),
        (f"{HEAD}{{{{- if .Values.x }}}}\n    sources: []\n{{{{- end }}}}\n", "4:1 a template, not YAML; render it first, such as by 'helm template'"),
    ],
)  # fmt: skip
def test_one_error_says_what_to_write(text: str, says: str) -> None:
    first, *others = found(text)
    assert first == says
    assert not [one for one in others if "unknown key" not in one]


def test_each_source_of_a_group_needs_the_variables_of_its_key() -> None:
    text = (
        f"{HEAD}    sources: [{{dev: 'card(?P<card>.)', as: a}}, {{dev: '(?P<c>.)', as: b}}]\n"
        "    group: card${card}\n"
    )
    assert found(text) == ["5:12 sources[1] has no ${card}; a group needs it of each source"]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (option("preStart: [{run: [mkfs -q, /dev/x]}]"), "5:23"),
        (option("health: {exec: [mkfs -q]}"), "5:21"),
    ],
)
def test_a_program_with_its_arguments_in_one_string(text: str, at: str) -> None:
    (problem,) = loads(text, policy=Policy(allow_exec=True)).problems
    assert f"{problem.line}:{problem.column}" == at
    assert problem.message == ("no program is called 'mkfs -q'; there is no shell: write mkfs, -q")


def test_a_resource_of_other_words() -> None:
    """Each word has its own hint, and nothing is said to be missing."""
    assert found("version: v1\nresources:\n  - resource: a.b/c\n    path: /dev/kvm\n") == [
        "3:5 unknown key 'resource'; did you mean 'name'?",
        "4:5 unknown key 'path'; did you mean 'sources'?",
    ]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("version: v1".encode("utf-16"), "UTF-16, not UTF-8; save it as UTF-8"),
        ("version: v1".encode("utf-16-be"), "UTF-16, not UTF-8; save it as UTF-8"),
        (b"\x1f\x8b\x08\x00", "compressed (gzip), not YAML"),
    ],
)
def test_what_is_not_text(raw: bytes, says: str) -> None:
    assert [one.message for one in load_bytes(raw, "f").problems] == [says]


def test_what_a_shell_would_take() -> None:
    text = option("health: {exec: [ls, a, '|', b]}")
    (problem,) = loads(text, policy=Policy(allow_exec=True)).problems
    assert (problem.line, problem.column) == (5, 28)
    assert problem.message == "'|' is an argument: there is no shell"
