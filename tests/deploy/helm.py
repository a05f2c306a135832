"""Renders the chart."""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tools.helm import CHART, run

NAMESPACE = "devhost-system"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The documents that a chart makes of values.

    Attributes:
        documents: All that it makes, hooks too.
        texts: The text of each document, by kind and name.
    """

    documents: tuple[Document, ...]
    texts: Mapping[tuple[str, str], str]

    def of(self, kind: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Document:
        (document,) = [doc for doc in self.of(kind) if name in (None, doc["metadata"]["name"])]
        return document


class Helm:
    def __init__(self, major: int) -> None:
        self.major = major

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run a command on the chart.

        Raises:
            RefusedError: With what it says on stderr.
        """
        return run(self.major, *arguments, values=values)

    def render(self, values: Mapping[str, Any], kubernetes: str = "1.37") -> Rendered:
        """Render as `helm install` would, on a version of Kubernetes; each only once."""
        return _render(self.major, json.dumps(values), kubernetes)

    def notes(self, values: Mapping[str, Any], namespace: str = NAMESPACE) -> str:
        """Return what an installation says; only Helm 4 does so without a cluster."""
        output = self.run(
            *("install", "test", str(CHART), "--dry-run=client", f"--namespace={namespace}"),
            values=values,
        )
        return output.partition("\nNOTES:\n")[2]


@functools.cache
def _render(major: int, values: str, kubernetes: str) -> Rendered:
    output = Helm(major).run(
        *("template", "test", str(CHART)),
        *(f"--namespace={NAMESPACE}", f"--kube-version={kubernetes}.0"),
        values=json.loads(values),
    )
    documents, texts = [], {}
    for text in re.split(r"^---$", output, flags=re.MULTILINE):
        if document := yaml.safe_load(text):
            documents.append(document)
            texts[document["kind"], document["metadata"]["name"]] = text
    assert len(texts) == len(documents), "two of a kind have one name"
    return Rendered(tuple(documents), texts)
