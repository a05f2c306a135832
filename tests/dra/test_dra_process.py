"""`devhost run` with DRA and without: flags, the memory of a kill, and what is imported."""

import pytest

from tests.dra.test_dra_host import TOKEN, TOKENS
from tests.dra.world import NODE, World, eventually
from tests.support.daemon import Daemon

SHOW_MODULES = """
import atexit, sys
def show():
    wanted = ("httpx2", "devhost.backends.dra", "anyio")
    print('{"msg": "modules %s"}' % [name for name in wanted if name in sys.modules], file=sys.stderr)
atexit.register(show)
"""


@pytest.fixture
def daemon(world: World) -> Daemon:
    daemon = Daemon(world.directory)
    daemon.plugins = world.plugins
    daemon.flags = ["--node-name", NODE, "--cdi-dir", str(world.cdi)]
    return daemon


def with_dra(world: World) -> list[str]:
    return ["--dra", "--api-server", world.api.url, "--kubelet-dir", str(world.directory)]


async def test_without_the_flag_the_file_may_say_dra_for_other_nodes(daemon: Daemon) -> None:
    daemon.code = SHOW_MODULES
    await daemon.start(TOKENS.replace("backend: dra", "backend: {dra: [other-*]}"))
    await daemon.logged("kubelet.sock")
    assert await daemon.stop() == 0
    assert daemon.found("modules []"), "nothing of DRA is imported"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--dra"], "--dra needs --node-name"),
        (["--dra", "--node-name", "n"], "--dra needs --api-server outside of a pod"),
        (
            [
                *("--dra", "--node-name", "n", "--api-server", "http://x"),
                *("--kubelet-dir", f"/{'x' * 90}"),
            ],
            "--kubelet-dir, --dra-driver: a socket's path has",
        ),
    ],
)
async def test_unusable_flags_are_named(daemon: Daemon, flags: list[str], reason: str) -> None:
    daemon.flags = flags
    await daemon.start(TOKENS)
    await daemon.logged(reason)
    assert await daemon.ended() == 1


async def test_a_token_is_sent_by_tls_alone(world: World, daemon: Daemon) -> None:
    token = world.directory / "token"
    token.write_text("secret")
    daemon.flags += [*with_dra(world), "--api-token", str(token)]
    daemon.flags += ["--api-server", world.api.url.replace("http", "HTTP")]
    await daemon.start(TOKENS)
    await world.kubelet.register()
    await eventually(world.published)
    assert await daemon.stop() == 0
    assert not world.api.tokens


async def test_a_kill_loses_nothing(world: World, daemon: Daemon) -> None:
    daemon.flags += with_dra(world)
    daemon.code = SHOW_MODULES
    await daemon.start(TOKENS)
    await world.kubelet.register()
    await daemon.logged("state", resource=TOKEN, state="Registered")
    name = world.claim("u", TOKEN, "0")
    first = await world.kubelet.prepare(name, "u")
    logged = await daemon.logged("claim prepared", uid="u")
    assert (logged["claim"], logged["devices"]) == (f"default/{name}", [f"{TOKEN} 0"])
    await daemon.kill()
    (path,) = world.cdi_files()
    path.unlink()
    await daemon.start()
    await world.kubelet.register()
    assert path.exists()
    assert await world.kubelet.prepare(name, "u") == first
    assert not await world.kubelet.unprepare(name, "u")
    await eventually(lambda: len([*world.kubelet.registry.iterdir()]) == 1)
    assert await daemon.stop() == 0
    assert not [*world.kubelet.registry.iterdir()]
    assert world.published() == ["0", "1", "2"]
    assert not world.records()
