"""Files up to the limit of size that once took minutes or gigabytes, or might: all are judged."""

from collections.abc import Callable
from typing import Final

import pytest

from devhost.config.loader import PROBLEMS_MAX, loads
from devhost.config.yaml_errors import SIZE_MAX, TreeError
from devhost.drafts import draft
from devhost.drafts.conversion import Conversion
from devhost.hostfs.files import HostFiles
from tests.model.judge import judge
from tests.model.running import bounded

pytestmark = pytest.mark.slow

# Of CPU time; what hangs takes far longer, the slowest machine far less.
HANG_S: Final = 100.0
ROOM: Final = SIZE_MAX - 1000

HEAD: Final = "version: v1\nresources:\n  - name: example.com/a\n"
KVM: Final = HEAD + "    sources: [dev: kvm]\n"

CONFIGMAP: Final = "apiVersion: v1\nkind: ConfigMap\ndata:\n"


def source(text: str) -> str:
    return f"{HEAD}    sources:\n      - {text}\n"


def allocate(text: str) -> str:
    return f"{KVM}    allocate: {{{text}}}\n"


def many(form: str, count: int, between: str = ",") -> str:
    return between.join(form.format(number) for number in range(count))


CASES: Final[dict[str, Callable[[], str]]] = {
    # the text
    "one line": lambda: "a" * ROOM,
    "depth": lambda: "[" * ROOM,
    "values": lambda: "x-a: [" + "a," * (ROOM // 2) + "]",
    "an alias": lambda: "a: *" + "a" * ROOM,
    # numbers
    "a sexagesimal fraction": lambda: "a: 1" + ":59" * (ROOM // 3) + ".5",
    "a duration": lambda: KVM + "    removeMissingAfter: " + "9" * ROOM + "h",
    # aliases
    "an alias of a long text": lambda: (
        "x-a: &a " + "x" * 500_000 + "\n" + allocate("env: {" + many("A{}: *a", 40_000) + "}")
    ),
    "merges of a large mapping": lambda: (
        "x-a: &a {" + many("k{}: b", 25_000) + "}\nx-b: {<<: [" + "*a," * 150_000 + "]}"
    ),
    # problems
    "duplicate keys": lambda: "a: 1\n" * 40_000,
    "nulls, and resources": lambda: (
        allocate("annotations: {" + many("a{}: ", 30_000) + "}") + "  - x\n" * 40_000
    ),
    "unknown variables": lambda: allocate("env: {A: '" + many("${{a{}}}", 80_000, "") + "'}"),
    "warnings": lambda: allocate("devices: [" + many("/d{}", 25_000) + "]"),
    "resources": lambda: (
        "version: v1\nresources:\n" + many("- {{name: a.b/c{}, sources: [dev: sda]}}\n", 7_000, "")
    ),
    # files that contain configurations
    "ConfigMaps": lambda: "{apiVersion: v1, kind: ConfigMap, data: {a: 'version: v1'}}\n---\n" * 15_000,
    "aliases of aliases in a ConfigMap": lambda: CONFIGMAP + many(
        "  k{}: |\n    version: v1\n    x-a: &a [" + "x," * 300 + "]\n    x-b: [" + "*a," * 300 + "]\n",
        90, "",
    ),
    # hints
    "brackets after a mistake": lambda: (
        'a: {"x" y ' + "[" * (ROOM // 2 - 10) + "]" * (ROOM // 2 - 10)
    ),
    "braces of a template": lambda: allocate("env: {A: '" + "{" * ROOM + "'}"),
    "braces of a path": lambda: source(
        "directory: '/" + "x" * (ROOM // 2) + "{" + "," * (ROOM // 2 - 200) + "}'"
    ),
    # templates and patterns
    "variables": lambda: allocate("env: {A: '" + "${id}" * (ROOM // 5) + "'}"),
    "a pattern's repetitions": lambda: source("dev: " + "(x{1000})" * (ROOM // 9)),
    "a glob": lambda: KVM + "    nodeNames: '" + "[" * ROOM + "'",
    "long patterns": lambda: (
        HEAD + "    sources: [" + many("dev: '" + "\\pL" * 330 + "{}'", 900) + "]"
    ),
}  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_a_file_of_a_mebibyte_is_judged_in_bounded_time(case: str) -> None:
    """The file is loaded or refused, with problems that can be read."""
    text = CASES[case]()
    assert len(text.encode()) <= SIZE_MAX
    with bounded(HANG_S):
        loaded = loads(text)
    assert len(loaded.problems) <= 2 * (PROBLEMS_MAX + 1)
    judge(loaded, text, used=False)


SETTINGS: Final = {
    "aliases": "a: &a [x,x]\n" + many("b{}: &a [*a,*a,*a,*a]\n", 20, ""),
    "itself": "a: &a [*a, *a]",
    "texts": "a: |\n" + "".join("  " * n + "groups: |\n" for n in range(1, 60)),
    "devices": "- {name: a, groups: []}\n" * 20_000,
    "same": "devices:\n" + "- {name: a, groups: [{paths: [{path: /dev/a*}]}]}\n" * 15_000,
    "groups": many(
        "- name: a{0}\n  groups:\n" + many("  - paths:\n    - path: /dev/{{0}}/{}\n", 49, ""),
        150,
        "",
    ),
    "plugins": many("- image: generic-device-plugin\n  labels: [name: a{}]\n", 3_000, "")
    + many("- name: a{0}\n  groups:\n  - paths:\n    - path: /dev/a{0}*\n", 200, ""),
    "volumes": "items:\n" + many("- name: a\n  hostPath: /dev/a{}\n", 8_000, ""),
}


def test_setting_of_what_cannot_be_read_is_not_carried_over() -> None:
    setting = "- {devicematch: ^%s$, nummaxdevices: 1}\n"
    conversion = Conversion(HostFiles())
    assert conversion.read(setting % ("x" * 300) + setting % "fuse")
    ((lost, fuse),) = (profile.entries for profile in conversion.finish()[0])
    assert "File name too long" in lost.comments[0]
    assert fuse.resource["name"] == "smarter-devices/fuse"


@pytest.mark.parametrize("case", SETTINGS)
def test_huge_settings_of_another_plugin_are_judged_in_bounded_time(case: str) -> None:
    with bounded():
        conversion = Conversion(HostFiles(), "example.com")
        try:
            conversion.read(SETTINGS[case])
            (everywhere,), _ = conversion.finish()
        except (TreeError, ValueError) as error:
            assert isinstance(error, TreeError) or "more than 1000" in str(error)
        else:
            assert loads(draft.render((), everywhere.entries)).config is not None
