"""``devhost schema``."""

import click

from devhost.cli.output import print_json


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of configuration files, for editors and other tools."""
    from devhost.loading.schema import json_schema

    print_json(json_schema())
