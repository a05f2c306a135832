"""The name rules of Kubernetes, the container runtimes and CDI; device IDs and their order.

Every ``*_problem`` function returns ``None`` for a valid value, else what is wrong and what would
be right. Kubelet checks only resource names.
"""

import functools
import hashlib
import re
from collections.abc import Iterable
from typing import Final

_PREFIX: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_SUFFIX: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_PREFIX_MAX: Final = 244  # 253, less the "requests." that quota puts in front
_SUFFIX_MAX: Final = 63
# An extended resource name (k8s.io/kubernetes v1.37.1 pkg/apis/core/v1/helper/helpers.go).
RESOURCE_NAME_PATTERN: Final = f"^{_PREFIX}/{_SUFFIX}$"
UNFIT_NAME_PATTERN: Final = (
    rf"kubernetes\.io/|^requests\.|^[^/]{{{_PREFIX_MAX + 1}}}|/[^/]{{{_SUFFIX_MAX + 1}}}"
)
_RESOURCE_NAME: Final = re.compile(RESOURCE_NAME_PATTERN.replace("$", r"\Z"))
_UNFIT_NAME: Final = re.compile(UNFIT_NAME_PATTERN)
_DRIVER_NAME: Final = re.compile(_PREFIX)
_DRIVER_NAME_MAX: Final = 63  # k8s.io/api/resource/v1/types.go
_ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")  # of the same file
_OWN_ATTRIBUTES: Final = ("resource", "id")  # which each device has
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The last ones are those that `runc features` and `crun features` call unsafe.
_RESERVED_ANNOTATIONS: Final = (
    "cdi.k8s.io/",
    "io.kubernetes.",
    "io.katacontainers.",
    "run.oci.",
    "org.systemd.property.",
    "org.criu.",
    "module.wasm.image/",
)
CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")  # of specs, in containerd and CRI-O
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

DEVICE_ID_MAX: Final = 63  # of the device plugin API (v1beta1/api.proto); kubelet does not check it
# A number, or a PCI address, which is hexadecimal.
_NUMBERS: Final = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|[0-9]+)")
_ID_HASH_LENGTH: Final = 10
_CACHED_LENGTH_MAX: Final = 128  # a tenant's names stay in the cache: 4 bytes a character, twice


def resource_name_problem(name: str) -> str | None:
    """Check an extended resource name by kubelet's own rules."""
    if _RESOURCE_NAME.match(name) and not _UNFIT_NAME.search(name):
        return None
    prefix, slash, _ = name.partition("/")
    if not slash or not prefix:
        return f"{name!r} has no domain; write {_likely_name(name)}"
    if "kubernetes.io/" in name or name.startswith("requests."):
        return f"{name!r} is in a domain that is reserved; use one of your own"
    return (
        f"{name!r} should be domain/name, such as {_likely_name(name)}: a domain of at most "
        f"{_PREFIX_MAX} lower-case letters, digits, '-' and '.', and a name of at most "
        f"{_SUFFIX_MAX} letters, digits, '-', '_' and '.'; each part begins and ends with a letter "
        "or digit"
    )


def _likely_name(text: str) -> str:
    """Return the resource name that a text is likely to stand for."""
    domain, _, name = re.sub("^([^:/]+):", r"\1/", text).rpartition("/")
    domain = re.sub("[^a-z0-9.]+", "-", domain.lower()).strip(".-") or "example.com"
    likely = f"{domain}/{re.sub('[^A-Za-z0-9._]+', '-', name).strip('._-')}"
    fits = _RESOURCE_NAME.match(likely) and not _UNFIT_NAME.search(likely)
    return likely if fits else "example.com/name"


def env_name_problem(name: str) -> str | None:
    """Check the name of an environment variable (the runtime writes ``NAME=value``)."""
    if _ENV_NAME.fullmatch(name):
        return None
    return (
        f"{name!r} is not a valid name of an environment variable: use letters, digits and '_', "
        "not beginning with a digit"
    )


def annotation_key_problem(key: str) -> str | None:
    """Check an annotation's key, and refuse those that control the runtime."""
    if key.startswith(_RESERVED_ANNOTATIONS) or key == "bundle":
        return f"{key!r}: such annotations control the runtime and are not allowed"
    if re.fullmatch(f"({_PREFIX}/)?{_SUFFIX}", key) and len(key.rpartition("/")[2]) <= _SUFFIX_MAX:
        return None
    return (
        f"{key!r} is not an annotation key: [domain/]name, with a domain in lower case and a name "
        f"of at most {_SUFFIX_MAX} characters"
    )


def cdi_name_problem(name: str) -> str | None:
    """Check a fully qualified CDI device name, ``vendor/class=device``."""
    if _CDI_NAME.fullmatch(name):
        return None
    return f"{name!r} is not a fully qualified CDI name, such as vendor.com/class=device"


def cdi_kind_problem(kind: str) -> str | None:
    """Check the vendor and class of CDI devices of others, ``vendor/class``."""
    if kind.startswith("devhost."):
        return f"{kind} is of devhost's own specs, whose devices are resources already"
    if cdi_name_problem(f"{kind}=x") is None:
        return None
    return f"{kind!r} is not the kind of CDI devices, such as vendor.com/class"


def path_problem(path: str) -> str | None:
    """Check a path on the host or in the container: absolute, printable, without ``..``."""
    if not path.startswith("/"):
        return f"{path!r} is not an absolute path (beginning with '/')"
    if ".." in path.split("/"):
        return f"{path!r} contains '..'; write the path without it"
    if "\t" in path or "\n" in path:
        return f"{path!r} contains a control character"
    return text_problem(path)


def text_problem(text: str) -> str | None:
    """Check a string for what environment variables, paths and annotations cannot contain."""
    if unfit := _UNFIT.search(text):
        return f"{text!r} contains {unfit[0]!r}, a control character or no UTF-8"
    return None


def driver_name_problem(name: str) -> str | None:
    """Check the name of a driver of Dynamic Resource Allocation."""
    if len(name) <= _DRIVER_NAME_MAX and _DRIVER_NAME.fullmatch(name):
        return None
    return f"{name!r} is not a DNS subdomain of at most {_DRIVER_NAME_MAX} characters"


def attribute_name(variable: str) -> str | None:
    """Return the name by which DRA publishes a variable, ``usbSerial``; ``None`` if it cannot."""
    name = re.sub(r"\W+(\w)", lambda match: match[1].upper(), variable)
    return name if _ATTRIBUTE_NAME.fullmatch(name) and name not in _OWN_ATTRIBUTES else None


def id_problem(device_id: str) -> str | None:
    """Check a device ID; with a part that cannot be seen, two would look alike."""
    if not device_id:
        return "a device ID must not be empty"
    if "::" in device_id:
        return "a device ID must not contain '::', which is reserved for shares"
    if printable(device_id) != device_id:
        hidden = next(filter(_is_hidden, device_id))
        return f"a device ID must not contain {hidden!a}, which cannot be seen"
    return None


def device_id(name: str) -> str:
    """Return ``name`` as a device ID: itself up to 63 characters, else a prefix and a hash."""
    if len(name) <= DEVICE_ID_MAX:
        return name
    kept = DEVICE_ID_MAX - _ID_HASH_LENGTH - 1
    return f"{name[:kept]}-{text_hash(name, _ID_HASH_LENGTH)}"


def text_hash(text: str, length: int) -> str:
    """Return so many hexadecimal digits of the hash of a text, which name files and objects."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def natural_key(text: str) -> str:
    """Return a sort key by which ``c9`` comes before ``c10``, and ``02:00.0`` before ``1f.3``.

    Ties (``a1``, ``a01``) are sorted by the text itself. A string: tuples take seven times as long.
    """
    return _cached_key(text) if len(text) <= _CACHED_LENGTH_MAX else _key(text)


def _key(text: str) -> str:
    parts = _NUMBERS.split(text)  # texts and digits in turn
    for place in range(1, len(parts), 2):
        digits = parts[place].lstrip("0")
        parts[place] = f"{len(digits):04}{digits}"
    return "\0".join((*parts, "", text))


# Each scan sorts the same names several times.
_cached_key: Final = functools.lru_cache(maxsize=16_384)(_key)


def natural(texts: Iterable[str]) -> list[str]:
    """Sort texts in natural order."""
    return sorted(texts, key=natural_key)


def _is_hidden(character: str) -> bool:
    return not character.isprintable() or _BLANK.match(character) is not None


def printable(text: str) -> str:
    """Return a string with everything escaped that a terminal or UTF-8 stream cannot show."""
    if text.isascii() and text.isprintable():  # as nearly all are
        return text
    escaped = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(ascii(char)[1:-1] if _is_hidden(char) else char for char in escaped)
