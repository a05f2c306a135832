"""The name rules of Kubernetes, the container runtimes and CDI; device IDs and their order; pure.

Every ``*_problem`` function returns ``None`` for a valid value, else what is wrong and what would
be right. Kubelet checks only resource names; other invalid values would be noticed only when a
container does not start.
"""

import functools
import hashlib
import re
from collections.abc import Iterable
from typing import Final

# An extended resource name as a pattern (ECMA and Python alike), for the JSON Schema and
# for `resource_name_problem`: k8s.io/kubernetes v1.37.1 pkg/apis/core/v1/helper/helpers.go.
RESOURCE_NAME_PATTERN: Final = (
    r"^(?!.*kubernetes\.io/)(?!requests\.)(?=[^/]{1,244}/)"
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/(?=[^/]{1,63}$)([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
)
_RESOURCE_NAME: Final = re.compile(RESOURCE_NAME_PATTERN.replace("$", r"\Z"))
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUFFIX: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_PREFIX_MAX: Final = 244  # 253, less the "requests." that quota puts in front
_SUFFIX_MAX: Final = 63


_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANNOTATION_NAME: Final = _SUFFIX
# The last ones are those that `runc features` and `crun features` themselves call unsafe
# (potentiallyUnsafeConfigAnnotations).
_RESERVED_ANNOTATIONS: Final = (
    "cdi.k8s.io/",
    "io.kubernetes.",
    "io.katacontainers.",
    "run.oci.",
    "org.systemd.property.",
    "org.criu.",
    "module.wasm.image/",
)
_RESERVED_ANNOTATION: Final = "bundle"
# tags.cncf.io/container-device-interface v1.0.1, pkg/parser.
_CDI_NAME: Final = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)

# Printable, by their category, and yet not to be seen: Default_Ignorable_Code_Point in Unicode's
# DerivedCoreProperties.txt, and the blank of Braille.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
_UNFIT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

DEVICE_ID_MAX: Final = 63
# A number, or a PCI address, which is hexadecimal.
_NUMBERS: Final = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|[0-9]+)")
_ID_HASH_LENGTH: Final = 10


def resource_name_problem(name: str) -> str | None:
    """Check an extended resource name by kubelet's own rules.

    Source: IsExtendedResourceName, k8s.io/kubernetes v1.37.1
    pkg/apis/core/v1/helper/helpers.go.
    """
    if _RESOURCE_NAME.match(name):
        return None
    prefix, slash, suffix = name.partition("/")
    if not slash or not prefix:
        return f"{name!r} has no domain; write example.com/{suffix or prefix or 'name'}"
    if "/" in suffix:
        return f"{name!r} has more than one '/'; a resource name is domain/name"
    if "kubernetes.io/" in name:
        return f"{name!r} is in the reserved kubernetes.io domain; use a domain of your own"
    if name.startswith("requests."):
        return f"{name!r} begins with 'requests.', which is reserved for quota"
    if len(prefix) > _PREFIX_MAX:
        return f"the domain has {len(prefix)} characters; at most {_PREFIX_MAX} are allowed"
    if not _PREFIX.fullmatch(prefix):
        return (
            f"the domain {prefix!r} must be lower-case letters, digits, '-' and '.', "
            "with a letter or digit at each end of every part"
        )
    if len(suffix) > _SUFFIX_MAX:
        return f"the name after '/' has {len(suffix)} characters; at most {_SUFFIX_MAX} are allowed"
    return (
        f"the name {suffix!r} after '/' must be letters, digits, '-', '_' and '.', "
        "with a letter or digit at each end"
    )


def env_name_problem(name: str) -> str | None:
    """Check the name of an environment variable (the runtime writes ``NAME=value``)."""
    if _ENV_NAME.fullmatch(name):
        return None
    suggestion = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not suggestion or suggestion[0].isdigit():
        suggestion = f"_{suggestion}"
    return (
        f"{name!r} is not a valid name of an environment variable: use letters, digits and '_', "
        f"not beginning with a digit, such as {suggestion!r}"
    )


def annotation_key_problem(key: str) -> str | None:
    """Check an annotation's key, and refuse those that control the runtime."""
    for reserved in _RESERVED_ANNOTATIONS:
        if key.startswith(reserved):
            return f"{key!r}: {reserved!r} annotations control the runtime and are not allowed"
    if key == _RESERVED_ANNOTATION:
        return f"{key!r}: this annotation controls the runtime and is not allowed"
    prefix, slash, name = key.rpartition("/")
    if slash and not _PREFIX.fullmatch(prefix):
        return f"{key!r}: the part before '/' must be a domain in lower case"
    if len(name) > _SUFFIX_MAX or not _ANNOTATION_NAME.fullmatch(name):
        return (
            f"{key!r} is not an annotation key: [domain/]name, with a name of at most 63 characters"
        )
    return None


def cdi_name_problem(name: str) -> str | None:
    """Check a fully qualified CDI device name, ``vendor/class=device``."""
    if _CDI_NAME.fullmatch(name):
        return None
    return f"{name!r} is not a fully qualified CDI name, such as vendor.com/class=device"


def path_problem(path: str) -> str | None:
    """Check a path on the host or in the container: absolute, printable, without ``..``."""
    if not path.startswith("/"):
        return f"{path!r} is not an absolute path (beginning with '/')"
    if ".." in path.split("/"):
        return f"{path!r} contains '..'; write the path without it"
    if "\t" in path or "\n" in path:
        return f"{path!r} contains a control character"
    return text_problem(path)


def is_plain(text: str) -> bool:
    """Whether a string is printable ASCII, as nearly all are; a fast check."""
    return text.isascii() and text.isprintable()


def text_problem(text: str) -> str | None:
    """Check a string for what environment variables, paths and annotations cannot contain."""
    if is_plain(text):
        return None
    found = _UNFIT.search(text)
    if found is None:
        return None
    if found[0] >= "\ud800":
        return f"{text!r} is not UTF-8"
    return f"{text!r} contains the control character {found[0]!r}"


def id_problem(device_id: str) -> str | None:
    """Check a device ID; with a part that cannot be seen, two would look alike."""
    if not device_id:
        return "a device ID must not be empty"
    if "::" in device_id:
        return "a device ID must not contain '::', which is reserved for shares"
    hidden = None if is_plain(device_id) else next(filter(_is_hidden, device_id), None)
    if hidden is not None:
        return f"a device ID must not contain {hidden!a}, which cannot be seen"
    return None


def device_id(name: str) -> str:
    """Return ``name`` as a device ID: itself up to 63 characters, else a prefix and a hash.

    The limit of 63 is from the device plugin API (k8s.io/kubelet v0.37.0
    pkg/apis/deviceplugin/v1beta1/api.proto); kubelet does not enforce it.
    """
    if len(name) <= DEVICE_ID_MAX:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:_ID_HASH_LENGTH]
    return f"{name[: DEVICE_ID_MAX - _ID_HASH_LENGTH - 1]}-{digest}"


_SHARE: Final = "::"


def share_ids(device_id: str, replicas: int) -> tuple[str, ...]:
    """Return the IDs under which a device is advertised: itself, or one for each share."""
    if replicas == 1:
        return (device_id,)
    return tuple(f"{device_id}{_SHARE}{share}" for share in range(replicas))


def without_share(advertised_id: str) -> str:
    """Return the device ID of an advertised one; the suffix is cut from the right."""
    return advertised_id.rpartition(_SHARE)[0] if _SHARE in advertised_id else advertised_id


def distinct(advertised_ids: Iterable[str]) -> set[str]:
    """Return the distinct device IDs behind advertised ones."""
    return {without_share(advertised_id) for advertised_id in advertised_ids}


NaturalKey = tuple[str | tuple[int, str], ...]


@functools.lru_cache(maxsize=512)  # a scan sorts the same few names several times
def natural_key(text: str) -> NaturalKey:
    """Return a sort key by which ``c9`` comes before ``c10``, and ``02:00.0`` before ``1f.3``."""
    parts: list[str | tuple[int, str]] = [*_NUMBERS.split(text)]  # texts and digits in turn
    for place in range(1, len(parts), 2):
        digits = str(parts[place]).lstrip("0")
        parts[place] = len(digits), digits  # as numbers, however long
    return tuple(parts)


def natural(texts: Iterable[str]) -> list[str]:
    """Sort texts in natural order, ties (``a1``, ``a01``) by the text itself."""
    return sorted(texts, key=lambda text: (natural_key(text), text))


def _is_hidden(character: str) -> bool:
    return not character.isprintable() or _BLANK.match(character) is not None


def printable(text: str) -> str:
    """Return a string with everything escaped that a terminal or UTF-8 stream cannot show."""
    if is_plain(text):
        return text
    escaped = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(ascii(one)[1:-1] if _is_hidden(one) else one for one in escaped)
