"""The configuration from values to devhost: through Helm, the ConfigMap and the loader."""

import json
from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.config.loader import load_all, loads
from devhost.model.config import Config
from tests.deploy.helm import Helm
from tests.deploy.values import EXAMPLES, TOKENS, Values, example

# Texts that YAML 1.1 or 1.2 would take for something else if they were not quoted.
HARD = [
    *("=", "<<"),
    *("0403", "046d", "0x1f", "0o17", "1:30", "1_000", "1e3", ".5", "+1", "1.0", "08"),
    *("yes", "off", "n", "Y", "null", "~", "", " ", "true", "2001-01-01", "*a", "&a"),
    *("a: b", "a #b", "- a", "{a}", "[a]", "'", '"', "!x", "%a", "@a", "`a`", "|", ">", "a\\b"),
    *(
        "{{ .Values.x }}",
        "ä€😀",
        "a\tb",
        " a ",
        "x" * 300,
        "a b " * 60,
        "line\nline\n",
        "\n",
        "#",
        "?",
    ),
]


def served(helm: Helm, values: Values, name: str = "test-devhost") -> bytes:
    """Return the contents of the pod's /etc/devhost/config.yaml."""
    data = helm.render(values).one("ConfigMap", name)["data"]
    assert set(data) == {"config.yaml"}
    return str(data["config.yaml"]).encode()


def loaded(raw: bytes) -> Config:
    result = loads(raw, "config.yaml", Policy(("*",), allow_exec=True))
    assert result.config is not None, result.problems
    return result.config


def test_configuration_arrives_as_it_was_given(helm: Helm) -> None:
    env = {f"TEXT_{index}": text.replace("$", "$$") for index, text in enumerate(HARD)}
    devices = [
        {"hostPath": f"/dev/x{number}", "uid": number, "gid": number}
        for number in (0, 1, 100000, 1000000, 4294967294)
    ]
    resource = TOKENS["resources"][0] | {
        "allocate": {"env": env, "devices": devices},
        "inject": "cdi",
    }
    config = TOKENS | {"x-common": {"a": 1}, "resources": [resource]}
    as_json = json.dumps(config, ensure_ascii=False).encode()
    raw = served(helm, {"config": config})
    assert b"x-common:" in raw
    assert loaded(raw) == loaded(as_json)


def test_profile_serves_its_own_configuration(helm: Helm) -> None:
    values: Values = {
        "config": example(EXAMPLES[0])["config"],
        "profiles": [{"name": "one", "nodeSelector": {"a": "b"}, "config": TOKENS}],
    }
    assert loaded(served(helm, values, "test-devhost-one")).resources[0].name == "e.com/t"
    assert loaded(served(helm, values)) == loaded(EXAMPLES[0].read_bytes())


def test_rendered_release_has_each_configuration_once(helm: Helm, tmp_path: Path) -> None:
    """The values that the hook validates are not another."""
    profile = {"name": "one", "nodeSelector": {"a": "b"}, "config": TOKENS}
    rendered = helm.render({"config": TOKENS, "profiles": [profile]})
    file = tmp_path / "rendered.yaml"
    file.write_text("---".join(rendered.texts.values()))
    names = [part.name.removeprefix("config.yaml of ConfigMap ") for part in load_all(str(file))]
    assert names == ["test-devhost", "test-devhost-one"]
