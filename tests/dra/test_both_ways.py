"""Pods that ask for one resource by its name and by a claim of their own."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from devhost.api.dra.v1 import dra_pb2 as pb
from devhost.api.dra.v1 import dra_pb2_grpc as pb_grpc
from devhost.backends.dra.api_client import ApiClient
from devhost.backends.sockets import open_channel
from tests.dra.world import World, eventually, failing
from tests.support.dra_kubelet import CLAIMS

X: Final = "example.com/x"
CONFIG: Final = f"""
version: v1
resources:
  - name: {X}
    backend: dra
    sources: [dev: "null|zero"]
    id: "${{name}}"
    allocate: {{devices: [{{hostPath: "${{path}}", containerPath: "/dev/x${{index}}"}}]}}
"""
APART: Final = CONFIG.replace("x${index}", "${name}")
VARIABLE: Final = APART.replace("allocate: {", 'allocate: {env: {NAMES: "${name}"}, ')
MOUNT: Final = APART.replace(
    "allocate: {", 'allocate: {mounts: [{hostPath: "/dev/${name}", containerPath: /x}], '
)
SHARED: Final = CONFIG.replace("null|zero", "null") + "    replicas: 2\n"


def claim(world: World, uid: str, device: str, *pods: str, extended: bool = False) -> str:
    name = world.claim(uid, X, device, extended=extended)
    content = world.api.objects[f"{CLAIMS}/{name}"]
    content["status"]["reservedFor"] = [{"resource": "pods", "uid": pod} for pod in pods]
    return name


async def prepare(world: World, **names: str) -> Mapping[str, str]:
    """Prepare claims in one call, and return their errors by UID."""
    claims = [pb.Claim(namespace="default", name=name, uid=uid) for uid, name in names.items()]
    async with open_channel(world.kubelet.info.endpoint) as channel:
        request = pb.NodePrepareResourcesRequest(claims=claims)
        answer = await pb_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=45)
    return {uid: result.error for uid, result in answer.claims.items()}


@pytest.mark.parametrize(
    ("config", "clash"), [(CONFIG, "/dev/x0"), (VARIABLE, "NAMES"), (MOUNT, "/x")]
)
async def test_pod_that_would_lose_a_device_is_refused(
    world: World, config: str, clash: str
) -> None:
    async with world.serve(config, X):
        names = {
            "by-name": claim(world, "by-name", "null", "pod", extended=True),
            "own": claim(world, "own", "zero", "pod"),
        }
        for _ in range(2):
            errors = await prepare(world, **names)
            assert errors["own"] == ""
            assert errors["by-name"] == (
                f"{X}: claim default/{names['own']} of the same pod brings {clash}, too: "
                "ask for all by claims, or for all by resource name"
            )
    world.api.fault = failing(503, "away")
    async with world.serve(config):
        assert await prepare(world, **names) == errors
        await world.kubelet.unprepare(names["own"], "own")
        assert await prepare(world, **{"by-name": names["by-name"]}) == {"by-name": ""}


async def test_a_claim_that_another_pod_has_already_is_seen(world: World) -> None:
    async with world.serve(CONFIG, X):
        named = claim(world, "own", "zero", "former", "pod")
        assert await prepare(world, own=named) == {"own": ""}
        rival = claim(world, "other", "null", "other-pod", extended=True)
        assert await prepare(world, other=rival) == {"other": ""}
        assert not await world.kubelet.unprepare(rival, "other")
        mixed = claim(world, "both", "null", "pod", extended=True)
        assert "of the same pod brings /dev/x0, too" in (await prepare(world, both=mixed))["both"]


async def test_later_claim_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(api: ApiClient, verb: str, path: str, *body: Any, **query: Any) -> Any:
        if path.endswith(f"/{named}"):
            await eventually(lambda: [r["state"] for r in world.records()] == ["completed"])
        return await send(api, verb, path, *body, **query)

    send = ApiClient.call
    async with world.serve(CONFIG, X):
        named = claim(world, "own", "zero", "pod")
        by_name = claim(world, "by-name", "null", "pod", extended=True)
        monkeypatch.setattr(ApiClient, "call", call)
        errors = await prepare(world, **{"by-name": by_name, "own": named})
        assert not errors["own"]
        assert errors["by-name"]


@pytest.mark.parametrize(("config", "extended"), [(APART, True), (SHARED, True), (CONFIG, False)])
async def test_pod_that_loses_nothing(world: World, config: str, extended: bool) -> None:
    """Only the pod says which container uses which claim: of claims alone none is refused."""
    async with world.serve(config, X):
        first, second = world.published()
        names = {
            "first": claim(world, "first", first, "pod", extended=extended),
            "own": claim(world, "own", second, "pod"),
        }
        assert await prepare(world, **names) == {"first": "", "own": ""}


async def test_pods_by_name_alone_have_no_claim_read_but_their_own(world: World) -> None:
    def note(_verb: str, path: str) -> None:
        if path.startswith(CLAIMS):
            paths.append(path)

    paths: list[str] = []
    async with world.serve(CONFIG, X):
        world.api.fault = note
        for uid, device in (("a", "null"), ("b", "zero")):
            name = claim(world, uid, device, f"pod-{uid}", extended=True)
            assert await prepare(world, **{uid: name}) == {uid: ""}
    assert len(paths) == 2
