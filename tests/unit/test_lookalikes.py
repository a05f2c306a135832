"""Texts in the language of another tool are errors that say what to write."""

import pytest

from devhost.loading.loader import loads

HEAD = "version: v1\nresources:\n  - name: example.com/a\n"
NO_REGEX = "a glob, not a regular expression"
NO_BRACES = "braces are not expanded; list each path instead"
NO_VARIABLES = "variables are not expanded in sources; write the name on the host"
DOCKER = "looks like docker's HOST:CONTAINER:MODE; write "
DEVICE = "{hostPath: …, containerPath: …, permissions: …}"
MOUNT = "{hostPath: …, containerPath: …, readOnly: …}"


def problems(text: str) -> list[str]:
    return [str(one) for one in loads(text, "f.yaml").problems if one.severity == "error"]


def source(text: str) -> str:
    return f"{HEAD}    sources:\n      - {text}\n"


@pytest.mark.parametrize(
    ("glob", "says"),
    [
        ("/dev/ttyUSB[0-9]+", f"{NO_REGEX}; for one, write dev: ttyUSB[0-9]+"),
        ("/dev/ttyUSB.*", f"{NO_REGEX}; for one, write dev: ttyUSB.*"),
        (r"/dev/ttyUSB\d+", rf"{NO_REGEX}; for one, write dev: ttyUSB\d+"),
        ("/dev/tty[A-Z]{3}0", f"{NO_REGEX}; for one, write dev: tty[A-Z]{{3}}0"),
        ("/dev/(ttyUSB|ttyACM).*", f"{NO_REGEX}; for one, write dev: (ttyUSB|ttyACM).*"),
        ("^ttyUSB*", NO_REGEX),
        ("/dev/ttyUSB*|x", NO_REGEX),
        ("/dev/ttyUSB*$", NO_REGEX),
        ("/etc/lic-.*", NO_REGEX),
        ("/dev/tty{USB,ACM}*", NO_BRACES),
        ("/dev/tty{USB,ACM}[0-9,]", NO_BRACES),
        ("/dev/video{0..3}", NO_BRACES),
        ("/dev/{a,b}/{c,d}", NO_BRACES),
        ("/dev/tty[", "unclosed '['; write '[[]' for the character itself"),
        ("/dev/tty[!]", "unclosed '['; write '[[]' for the character itself"),
        ("/dev/tty[^0]", "a glob negates a set with '!'; write [!0]"),
        ("/dev/${nodeName}*", NO_VARIABLES),
    ],
)
def test_what_is_no_glob(glob: str, says: str) -> None:
    """Also in `exclude`."""
    if glob.startswith("/"):
        assert problems(source(f"glob: '{glob}'")) == [
            f"f.yaml:5:15: error: resources[0].sources[0].glob: {says}"
        ]
    assert problems(source(f"glob: {{paths: /a, exclude: ['{glob}']}}")) == [
        f"f.yaml:5:37: error: resources[0].sources[0].glob.exclude[0]: {says}"
    ]


def test_node_names_are_globs_too() -> None:
    text = f"{HEAD}    sources: [static: 1]\n    nodeNames: 'gpu-[0-9]+'\n"
    assert problems(text) == [f"f.yaml:5:16: error: resources[0].nodeNames: {NO_REGEX}"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("running|idle", "'|' matches only itself"),
        ("^up$", "'^' matches only itself"),
        (".*ok.*", "'.*' matches only itself"),
        ("[0-9]+ C", "'+' matches only itself"),
        (r"\d\d", r"'\d' matches only itself"),
        ("(a|b)c", "'(a|' matches only itself"),
        ("1.5 V (nominal) a | b +", None),
        ("*ok*", None),
    ],
)
def test_a_regular_expression_for_a_content_is_a_warning(text: str, says: str | None) -> None:
    check = f"{{path: /x, matches: '{text}'}}"
    found = loads(f"{HEAD}    sources: [static: 1]\n    health: [file: {check}]\n", "f.yaml")
    place = "f.yaml:5:40: warning: resources[0].health[0].file.matches: "
    assert [*map(str, found.problems)] == ([f"{place}{NO_REGEX}: {says}"] if says else [])


@pytest.mark.parametrize(
    "glob",
    [
        "/dev/serial/by-id/*",
        "/dev/ttyUSB[0-9]*",
        "/dev/tty[!0-9]",
        "/dev/sd[a-z]",
        "/dev/sd?",
        "/dev/disk/by-id/nvme-eui.*",
        "/dev/disk/by-id/lvm-pv-uuid+*",
        r"/dev/disk/by-label/My\x20Disk*",
        "/dev/v4l/by-path/pci-0000:00:14.*-index0",
        "/etc/*.*",
        "/etc/lic.*",
        "/etc/.*",
        "/mnt/Program Files (x86)/*",
        "/srv/c++/*",
        "/srv/a[+]",
        "/srv/[{]a,b}",
        "/srv/{a}",
        "/srv/[[]a]",
        "/srv/[]]",
        "/srv/[!]]",
    ],
)
def test_what_is_a_glob(glob: str) -> None:
    assert problems(source(f"glob: '{glob}'")) == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/etc/lic*", "a directory cannot be a glob; write the source as /etc/lic*/*"),
        ("/etc/lic[ab]/", "a directory cannot be a glob; write the source as /etc/lic[ab]/*"),
        ("/etc/${nodeName}", NO_VARIABLES),
        ("/etc/{a,b}", NO_BRACES),
    ],
)
def test_what_is_no_directory(path: str, says: str) -> None:
    assert problems(source(f"directory: '{path}'")) == [
        f"f.yaml:5:20: error: resources[0].sources[0].directory: {says}"
    ]
    assert problems(source(f"directory: {{path: '{path}'}}")) == [
        f"f.yaml:5:27: error: resources[0].sources[0].directory.path: {says}"
    ]


def test_a_pattern_has_no_variables() -> None:
    """To RE2 a '$' in the middle is the end of the name, which it never is."""
    assert problems(source("dev: tty${minor}")) == [
        f"f.yaml:5:14: error: resources[0].sources[0].dev: {NO_VARIABLES}"
    ]


@pytest.mark.parametrize(
    ("section", "entry", "says"),
    [
        ("devices", "/dev/kvm:/dev/kvm:rw", DEVICE),
        ("devices", "/dev/kvm:/dev/x", DEVICE),
        ("devices", "/dev/kvm:r", DEVICE),
        ("devices", "${path}:/dev/x${index}", DEVICE),
        ("mounts", "/srv:/data:ro", MOUNT),
        ("mounts", "/srv:/data:rw,z", MOUNT),
        ("mounts", "/srv:/data", MOUNT),
    ],
)
def test_dockers_form_of_devices_and_mounts(section: str, entry: str, says: str) -> None:
    text = f"{source('dev: kvm')}    allocate:\n      {section}:\n"
    path = f"resources[0].allocate.{section}[0]"
    assert problems(f"{text}        - '{entry}'\n") == [
        f"f.yaml:8:11: error: {path}: {DOCKER}{says}"
    ]
    assert problems(f"{text}        - hostPath: '{entry}'\n") == [
        f"f.yaml:8:21: error: {path}.hostPath: {DOCKER}{says}"
    ]


@pytest.mark.parametrize(
    "path", ["/dev/dri/by-path/pci-0000:03:00.0-render", "/sys/bus/pci/0000:${name}", "/dev/a:b"]
)
def test_a_path_with_colons_is_not_dockers_form(path: str) -> None:
    text = f"{source('dev: kvm')}    allocate:\n      devices: ['{path}']\n"
    assert problems(text) == []
