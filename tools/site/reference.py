"""Writes docs/reference: ``python -m tools.site.reference`` (`make generate`).

The keys of a configuration file come from the model and its JSON Schema, with the examples in
examples.yaml beside this file; the commands from what click knows of them; the examples are the
files in config/examples.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from devhost.cli import main as cli
from devhost.config.json_schema import json_schema
from devhost.model import config, sources, values
from devhost.model.template import TEMPLATE_PATTERN
from devhost.model.values import ConfigModel, key_of

DIRECTORY: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
CONFIG_EXAMPLES: Final = DIRECTORY.parents[1] / "config" / "examples"
EXAMPLES: Final = Path(__file__).with_name("examples.yaml")
# The sections of the page, with the place of each mapping in the file.
SECTIONS: Final[dict[type, str]] = {
    config.Config: "The file",
    config.Resource: "resources[]",
    sources.Source: "sources[]",
    sources.Directory: "sources[].directory",
    sources.Glob: "sources[].glob",
    sources.Dev: "sources[].dev",
    sources.Static: "sources[].static",
    sources.Cdi: "sources[].cdi",
    config.Allocate: "allocate",
    config.Text: "allocate.env.NAME, allocate.annotations.KEY",
    config.DeviceNode: "allocate.devices[]",
    config.Mount: "allocate.mounts[]",
    config.HealthChecks: "health",
    config.Probe: "health.checks[]",
    config.FileCheck: "health.checks[].file",
    config.Step: "preStart[]",
    config.DraNodes: "backend",
}
# Mappings that a page for users describes.
_ELSEWHERE: Final = {"Usb": "usb", "Pci": "pci", "Sysfs": "sysfs"}
_HOST_PATH: Final = "^/"
_WORDS: Final = {
    TEMPLATE_PATTERN: "template",
    values._PATH_TEMPLATE: "template",  # noqa: SLF001 (which strings are paths)
    _HOST_PATH: "path",
    values._DURATION_SCHEMA["pattern"]: "duration",  # noqa: SLF001
}
_KEYS: Final = """\
<!-- Written by `make generate`. -->
# Every key

The rules are in [the configuration language](../configuration.md), the keys of `usb`, `pci`,
`sysfs` and `node` in [Hardware](../hardware.md). A *template* is a text with `${…}`, a *duration* a
number with a unit (`ms`, `s`, `m`, `h`). A boolean without a default is `false`."""
_COMMANDS: Final = """\
<!-- Written by `make generate`. -->
# Commands

`devhost COMMAND --help` says more, with an example, and the variable that sets an option. `CONFIG`
defaults to `$DEVHOST_CONFIG`, then to `/etc/devhost/config.yaml`; `-` is standard input. Status 1
is a failure, 2 a usage error.

Completion: `eval "$(_DEVHOST_COMPLETE=bash_source devhost)"` (or `zsh_source`, `fish_source`)."""

_ALLOW: Final = "--allow-"
_USAGE_ERROR: Final = ", 2 usage error"
_PLAIN_STATUS: Final = "Exit status: 0 success, 1 failure."
_FLAGS: Final = "[`--allow-…`](#flags-that-allow-something)"
_ALLOWING: Final = "what each gives away is in the [security model](../security.md#the-editor)."
_EXAMPLES: Final = """\
<!-- Written by `make generate`. -->
# Examples

Files to start from, which tests plan on a host with such devices. The first lines of each say which
[flags](../security.md#the-editor) it needs."""


def keys_page() -> str:
    """Return the page of all keys."""
    schema = json_schema()
    examples = {name: example["keys"] for name, example in load_examples().items()}
    lines = [_KEYS]
    sections: dict[str, str] = {}  # by what is said of a key there
    for model, title in SECTIONS.items():
        node = schema if model is config.Config else schema["$defs"][model.__name__]
        lines += ["", f"## {_heading(model, title)}", ""]
        for key, shown in node["properties"].items():
            default = _default(model, key)
            default = "" if default == "`false`" else default
            default = default if default in ("", "required") else f"default {default}"
            kind = ", ".join(filter(None, (_type(shown), default)))
            example = examples[model.__name__][key]
            shows = f" `{example}`" if re.search(r"[\[{$*]", example) else ""  # more than a value
            meaning = f"({kind}): {shown['description']}"
            if (section := sections.setdefault(f"{key} {meaning}", title)) != title:
                lines.append(f"- `{key}`: as in [`{section}`](#{_anchor(section)})")
            else:
                lines.append(f"- `{key}` {meaning}{shows}")
    return "\n".join(lines) + "\n"


def load_examples() -> Mapping[str, Any]:
    """Return the examples: by model, the `keys` and where they belong."""
    loaded: Mapping[str, Any] = yaml.safe_load(EXAMPLES.read_text(encoding="utf-8"))
    return loaded


def _heading(model: type, title: str) -> str:
    return title if model is config.Config else f"`{title}`"


def _type(node: Mapping[str, Any]) -> str:
    """Return in words what a schema accepts."""
    match node:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            if name in _ELSEWHERE:
                return f"[`{_ELSEWHERE[name]}`](../hardware.md#{_ELSEWHERE[name]})"
            title = _title(name)
            return f"[`{title}`](#{_anchor(title)})"
        case {"anyOf": choices} | {"oneOf": choices}:
            words = list(dict.fromkeys(map(_type, choices)))
            first, *further = words
            if f"list of {first}" in further:  # what may stand alone instead of in a list
                further.remove(f"list of {first}")
                words = [f"{first} or list", *further]
            return " or ".join(words)
        case {"enum": words}:
            return ", ".join(f"`{word}`" for word in words)
        case {"const": word}:
            return f"`{word}`"
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}" if "anyOf" not in items else f"list: {_type(items)}"
        case {"type": "object", "patternProperties": entries}:
            return " or ".join(f"names with {_type(entry)}" for entry in entries.values())
        case {"type": "object", "additionalProperties": entry}:
            return f"names with {_type(entry)}"
        case _:
            return _scalar(node)


def _scalar(node: Mapping[str, Any]) -> str:
    match node:
        case {"type": "integer", "minimum": low, "maximum": high}:
            return f"integer, {low} to {high}"
        case {"pattern": pattern}:
            return _WORDS.get(pattern, "string")
        case _:
            return str(node["type"])


def _title(name: str) -> str:
    return next(title for model, title in SECTIONS.items() if model.__name__ == name)


def _anchor(title: str) -> str:
    """Return what both GitHub and MkDocs make of a heading."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def _default(model: type[ConfigModel], key: str) -> str:
    field = next(field for name, field in model.model_fields.items() if key_of(model, name) == key)
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value in (None, (), {}) or isinstance(value, ConfigModel):
        return ""
    if isinstance(value, tuple):
        value = [getattr(choice, "subsystem", choice) for choice in value]  # of a choice of nodes
    if isinstance(value, float):
        return f"`{value / 60:g}m`" if value >= 60 and value % 60 == 0 else f"`{value:g}s`"
    return f"`{json.dumps(value) if isinstance(value, bool) else _words(value)}`"


def _words(value: object) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)


def commands_page() -> str:
    """Return the page of all commands."""
    context = click.Context(cli, info_name="devhost")
    lines = [_COMMANDS]
    commands = {name: cli.get_command(context, name) for name in cli.commands}
    users: dict[str, list[str]] = {}  # of an option
    for name, command in commands.items():
        for option in _own(command):
            users.setdefault(_help(option), []).append(name)
    for name, command in commands.items():
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        arguments = " ".join(command.collect_usage_pieces(inner)[1:])  # behind [OPTIONS]
        lines += ["", f"## `{f'devhost {name} {arguments}'.strip()}`", ""]
        purpose = (command.help or "").partition("\n\n")[0]
        epilog = (command.epilog or "").replace(_USAGE_ERROR, "").replace(_PLAIN_STATUS, "")
        lines += [*_paragraphs(purpose), *_paragraphs(epilog)]
        options = _own(command)
        if single := [option for option in options if len(users[_help(option)]) == 1]:
            lines += _options(single, inner)
        if shared := [option.opts[0] for option in options if len(users[_help(option)]) > 1]:
            names = ", ".join(f"`{name}`" for name in shared if not name.startswith(_ALLOW))
            allowing = _FLAGS if any(name.startswith(_ALLOW) for name in shared) else ""
            lines += ["", f"Also {' and '.join(filter(None, (names, allowing)))}."]
    by_help = {_help(option): option for command in commands.values() for option in _own(command)}
    common = [option for text, option in by_help.items() if len(users[text]) > 1]
    lines += ["", "## Options of several commands", ""]
    plain = [option for option in common if not option.opts[0].startswith(_ALLOW)]
    lines += _options(plain, context)
    flags = (f"`{option.opts[0]}`" for option in common if option.opts[0].startswith(_ALLOW))
    lines += ["", "## Flags that allow something", "", f"{', '.join(flags)}: {_ALLOWING}"]
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _own(command: click.Command | None) -> list[click.Option]:
    assert command is not None
    return [option for option in command.params if isinstance(option, click.Option)]


def _help(option: click.Option) -> str:
    return f"{option.opts[0]} {option.help}"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.replace("\f", "").replace("\b", "").split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""


def _options(options: list[click.Option], context: click.Context) -> list[str]:
    lines = []
    for option in options:
        names = ", ".join((*option.opts, *option.secondary_opts))
        metavar = "" if option.is_flag else option.make_metavar(context)
        extra = option.get_help_extra(context)
        default = f" Default: `{extra['default']}`." if "default" in extra else ""
        meaning = " ".join((option.help or "").split())
        lines.append(f"- `{names}{' ' if metavar else ''}{metavar}`: {meaning}{default}")
    return lines


def examples_page() -> str:
    """Return the page of all examples: what each is for."""
    lines = [_EXAMPLES]
    for directory, title in (("hardware", "Hardware"), ("", "Other devices")):
        lines += ["", f"## {title}", ""]
        for file in sorted((CONFIG_EXAMPLES / directory).glob("*.yaml")):
            text = re.sub(r"\A# yaml-language-server.*\n#\n", "", file.read_text(encoding="utf-8"))
            head = text[: text.index("version:")]
            comment = " ".join(re.findall(r"^# ?(.*)", head, re.MULTILINE))
            link = f"[{file.stem}](../../{file.relative_to(CONFIG_EXAMPLES.parents[1])})"
            purpose = re.split(r"[.,:;] ", comment)[0].removesuffix(".")
            lines.append(f"- {link}: {purpose}.")
    return "\n".join(lines) + "\n"


PAGES: Final = {"keys.md": keys_page, "commands.md": commands_page, "examples.md": examples_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (DIRECTORY / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name} written\n")


if __name__ == "__main__":
    main()
