"""Files up to the limit of size that once took minutes or gigabytes, or might: all are judged."""

import time
from collections.abc import Callable
from typing import Final

import pytest

from devhost.loading.loader import PROBLEMS_MAX, loads
from devhost.loading.syntax import SIZE_MAX
from tests.fuzz.judge import judge

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
    "empty lines": lambda: "\n" * ROOM + "a: [",
    "depth": lambda: "[" * ROOM,
    "keys in keys": lambda: "? " * (ROOM // 2),
    "values": lambda: "x-a: [" + "a," * (ROOM // 2) + "]",
    "directives": lambda: many("%TAG !{}! b\n", 60_000, "") + "---\na: 1",
    "escapes": lambda: 'a: "' + "\\x41" * (ROOM // 4) + '"',
    "an anchor": lambda: "a: &" + "a" * ROOM + " b",
    "an alias": lambda: "a: *" + "a" * ROOM,
    "a tag": lambda: "a: !!" + "a" * ROOM + " b",
    # numbers
    "a sexagesimal": lambda: "a: 1" + ":59" * (ROOM // 3),
    "a sexagesimal fraction": lambda: "a: 1" + ":59" * (ROOM // 3) + ".5",
    "a hexadecimal": lambda: KVM + "    replicas: 0x" + "f" * ROOM,
    "a decimal": lambda: KVM + "    topology: " + "9" * ROOM,
    "a duration": lambda: KVM + "    removeMissingAfter: " + "9" * ROOM + "h",
    # aliases
    "an alias of a long text": lambda: (
        "x-a: &a " + "x" * 500_000 + "\n" + allocate("env: {" + many("A{}: *a", 40_000) + "}")
    ),
    "merges of a large mapping": lambda: (
        "x-a: &a {" + many("k{}: b", 25_000) + "}\nx-b: {<<: [" + "*a," * 150_000 + "]}"
    ),
    "merges into a large mapping": lambda: (
        "x-e: &e {}\nx-b: {" + many("k{}: b", 40_000) + ", <<: [" + "*e," * 50_000 + "]}"
    ),
    "merges of a long list": lambda: (
        "x-e: &e {}\nx-a: &a [" + "*e," * 50_000 + "]\nx-b: {" + "<<: *a," * 45_000 + "}"
    ),
    # problems
    "odd keys": lambda: many("{}: a\n", 40_000, ""),
    "duplicate keys": lambda: "a: 1\n" * 40_000,
    "unknown keys": lambda: many("a{}: a\n", 40_000, ""),
    "nulls, and resources": lambda: (
        allocate("annotations: {" + many("a{}: ", 30_000) + "}") + "  - x\n" * 40_000
    ),
    "nulls below a long key": lambda: (
        "? " + "k" * 300_000 + "\n: {" + many("a{}", 40_000) + "}"
    ),
    "unknown variables": lambda: allocate("env: {A: '" + many("${{a{}}}", 80_000, "") + "'}"),
    "hints of many groups": lambda: (
        source("dev: '" + many("(?P<g{}>a)", 90, "") + "'")
        + "    allocate: {mounts: [" + many("'/x${{g_{}}}'", 40_000) + "]}"
    ),
    "warnings": lambda: allocate("devices: [" + many("/d{}", 25_000) + "]"),
    "resources": lambda: (
        "version: v1\nresources:\n" + many("- {{name: a.b/c{}, sources: [dev: sda]}}\n", 7_000, "")
    ),
    # files that contain configurations
    "ConfigMaps": lambda: "{apiVersion: v1, kind: ConfigMap, data: {a: 'version: v1'}}\n---\n" * 15_000,
    "keys of a ConfigMap": lambda: CONFIGMAP + many("  k{}: |\n    version: v1\n", 30_000, ""),
    "aliases in a ConfigMap": lambda: (
        "\n" * 300_000 + CONFIGMAP + "  a: &a 'version: v1'\n" + many("  k{}: *a\n", 40_000, "")
    ),
    "aliases of aliases in a ConfigMap": lambda: CONFIGMAP + many(
        "  k{}: |\n    version: v1\n    x-a: &a [" + "x," * 300 + "]\n    x-b: [" + "*a," * 300 + "]\n",
        90, "",
    ),
    # hints
    "brackets after a mistake": lambda: (
        'a: {"x" y ' + "[" * (ROOM // 2 - 10) + "]" * (ROOM // 2 - 10)
    ),
    "spaces in a template": lambda: "{{" + " " * ROOM,
    "letters before a mistake": lambda: "a: b: " + "é" * (ROOM // 2 - 10),
    "braces of a template": lambda: allocate("env: {A: '" + "{" * ROOM + "'}"),
    "braces of a path": lambda: source(
        "directory: '/" + "x" * (ROOM // 2) + "{" + "," * (ROOM // 2 - 200) + "}'"
    ),
    # templates and patterns
    "dollars": lambda: allocate("env: {A: '" + "$$" * (ROOM // 2) + "'}"),
    "variables": lambda: allocate("env: {A: '" + "${id}" * (ROOM // 5) + "'}"),
    "a pattern": lambda: source("dev: " + "\\pL" * (ROOM // 3)),
    "a pattern's repetitions": lambda: source("dev: " + "(x{1000})" * (ROOM // 9)),
    "large patterns": lambda: (
        HEAD + "    sources: [" + many("dev: '\\pL{{900}}{}'", 40_000) + "]"
    ),
    "a glob": lambda: KVM + "    nodeNames: '" + "[" * ROOM + "'",
    "long patterns": lambda: (
        HEAD + "    sources: [" + many("dev: '" + "\\pL" * 330 + "{}'", 900) + "]"
    ),
}  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_the_worst_is_judged_in_bounded_time(case: str) -> None:
    """A file of up to 1 MiB is loaded or refused, with problems that can be read."""
    text = CASES[case]()
    assert len(text.encode()) <= SIZE_MAX
    start = time.process_time()
    loaded = loads(text)
    assert time.process_time() - start < HANG_S
    assert len(loaded.problems) <= 2 * (PROBLEMS_MAX + 1)
    judge(loaded, text, used=False)
