"""The facts of the project for the release workflow, with Python's own library alone.

python3 -m tools.release check TAG --source URL   is everything ready for this tag?
python3 -m tools.release notes VERSION            print the release's section of CHANGELOG.md
python3 -m tools.release chart OUT --registry R   copy the chart, with the image's registry set
"""

import argparse
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from devhost import __version__

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "devhost"
_REGISTRY: Final = '  registry: ""\n'


class NotReadyError(Exception):
    """The project is not ready for a release; the text says why."""


def version_problems(version: str = __version__) -> Iterator[str]:
    """Yield the files that have another version than the package."""
    chart = (CHART / "Chart.yaml").read_text()
    for file, pattern, text in (
        ("Chart.yaml: version", r"(?m)^version: (.+)$", chart),
        ("Chart.yaml: appVersion", r'(?m)^appVersion: "(.+)"$', chart),
        ("Dockerfile: VERSION", r"(?m)^ARG VERSION=(.+)$", (ROOT / "Dockerfile").read_text()),
    ):
        versions = re.findall(pattern, text)
        if versions != [version]:
            yield f"{file} is {', '.join(versions) or 'missing'}, not {version}"


def source_problems(source: str) -> Iterator[str]:
    """Yield the addresses of package and chart that do not belong to a repository."""
    urls = dict(project()["urls"])
    if urls.pop("source") != source:
        yield f"pyproject.toml: source is not {source}"
    chart = (CHART / "Chart.yaml").read_text()
    charts = re.findall(r"(?m)^(?:home: |icon: |  - )(https://.+)$", chart)
    for url in [*urls.values(), *charts]:
        if not f"{url}/".startswith(f"{source}/"):
            yield f"{url} does not begin with {source}/"


def project() -> Any:
    """Return the table ``project`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def notes(changelog: str, version: str) -> str:
    """Return a version's section of a changelog, without its heading.

    Raises:
        NotReadyError: There is no such section with a date, or it is empty.
    """
    heading = rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    section = re.search(rf"(?ms)^{heading}(.*?)(?=^## |^\[[^]]+\]: |\Z)", changelog)
    if section is None or not (text := section[1].strip()):
        raise NotReadyError(f"CHANGELOG.md has nothing under ## [{version}] - YYYY-MM-DD")
    return text + "\n"


def check(tag: str, source: str) -> None:
    """Check that everything is ready for a tag.

    Raises:
        NotReadyError: It is not.
    """
    problems = [*version_problems(), *source_problems(source)]
    if not re.fullmatch(r"\d+\.\d+\.\d+", __version__):
        problems.append(f"{__version__} is not a version like 1.2.3")
    if tag != f"v{__version__}":
        problems.append(f"the tag is {tag}, the version is {__version__}")
    try:
        notes((ROOT / "CHANGELOG.md").read_text(), __version__)
    except NotReadyError as error:
        problems.append(str(error))
    if problems:
        raise NotReadyError("\n".join(problems))


def copy_chart(out: Path, registry: str) -> None:
    """Copy the chart, with a registry as the default of ``image.registry``."""
    shutil.copytree(CHART, out)
    values = out / "values.yaml"
    before, after = values.read_text().split(_REGISTRY)
    values.write_text(f"{before}  registry: {registry}\n{after}")


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit with status 1 if the project is not ready."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.release")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check")
    checking.add_argument("tag")
    checking.add_argument("--source", required=True, help="the URL of the repository")
    commands.add_parser("notes").add_argument("version")
    copying = commands.add_parser("chart")
    copying.add_argument("out", type=Path)
    copying.add_argument("--registry", required=True)
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "check":
                check(chosen.tag, chosen.source)
            case "notes":
                sys.stdout.write(notes((ROOT / "CHANGELOG.md").read_text(), chosen.version))
            case "chart":
                copy_chart(chosen.out, chosen.registry)
    except NotReadyError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
