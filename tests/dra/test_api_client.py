"""The client of the API server: tokens that change, answers of all kinds, a CA."""

import asyncio
import gzip
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from devhost.backends.dra import api_client
from devhost.backends.dra.api_client import NO_ANSWER, ApiClient, ApiError
from tests.dra.world import NODE_PATH, World, failing
from tests.support.api_server import StandInApiServer


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


async def test_a_token_is_read_for_each_request(world: World, token: Path) -> None:
    client = ApiClient(world.api.url, None, token)
    for text in ("first", "second"):
        token.write_text(f"{text}\n")  # noqa: ASYNC240 (a file of the test)
        assert (await client.call("GET", NODE_PATH))["metadata"]["name"] == "node-1"
        assert world.api.tokens[-1] == f"Bearer {text}"
    token.unlink()  # noqa: ASYNC240
    with pytest.raises(ApiError, match="no token or CA") as caught:
        await client.call("GET", NODE_PATH)
    assert caught.value.status == NO_ANSWER
    await client.close()


@pytest.mark.parametrize("content", [b"", b"\n", b"secret\x01", b"secret\nsecret", b"secr\xe9t"])
async def test_unusable_token_is_not_shown(world: World, token: Path, content: bytes) -> None:
    token.write_bytes(content)  # noqa: ASYNC240 (a file of the test)
    client = ApiClient(world.api.url, None, token)
    with pytest.raises(ApiError, match=f"{token} has no token") as caught:
        await client.call("GET", NODE_PATH)
    assert "secr" not in str(caught.value)
    assert not world.api.tokens


async def test_an_error_has_the_sentence_of_the_api_server(world: World) -> None:
    world.api.fault = failing(403, "because of a policy")
    client = ApiClient(world.api.url)
    with pytest.raises(ApiError) as caught:
        await client.call("GET", NODE_PATH)
    assert str(caught.value) == "API server: 403 because of a policy"
    assert caught.value.status == 403
    with pytest.raises(ApiError, match="because of a policy"):
        async for _ in client.watch("/apis/resource.k8s.io/v1/resourceslices", "1"):
            pass
    await client.close()


@asynccontextmanager
async def answering(
    *parts: bytes, endless: bytes = b"", head: str = "200 OK"
) -> AsyncIterator[ApiClient]:
    """Yield a client of what answers with these bytes, and then with others until it is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            content = chain(parts, repeat(endless) if endless else ())
            for part in content if b"gzip" not in request else ():  # else a real one packs it
                writer.write(part)
                await writer.drain()
        writer.close()

    parts = (f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode(), *parts)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = ApiClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield client
        await client.close()


@pytest.mark.parametrize("head", ["200 OK", "500 Internal Server Error"])
@pytest.mark.parametrize(
    ("content", "endless", "problem"),
    [(b"", b" " * 65536, "more than 16 MiB"), (b"[" * 100_000, b"", r"cannot be read|500 \[\[\[")],
    ids=["without end", "too deep"],
)
async def test_answer_is_refused(head: str, content: bytes, endless: bytes, problem: str) -> None:
    async with answering(content, endless=endless, head=head) as client:
        with pytest.raises(ApiError, match=problem):
            await client.call("GET", NODE_PATH)
        with pytest.raises(ApiError, match=problem):
            async for _ in client.watch("/", "1"):
                pass


async def test_a_watch_is_as_long_as_it_likes() -> None:
    line, count = b'{"a": "%s"}\n' % (b"b" * 100_000), 200
    cut = [(line * count)[at : at + 70_001] for at in range(0, len(line) * count, 70_001)]
    async with answering(*cut) as client:
        events = [event async for event in client.watch("/", "1")]
    assert events == [{"a": "b" * 100_000}] * count


@pytest.mark.parametrize("head", ["200 OK", "500 Internal Server Error"])
async def test_an_answer_that_is_packed_is_not_unpacked(head: str) -> None:
    async with answering(gzip.compress(b"{}"), head=f"{head}\r\nContent-Encoding: gzip") as client:
        with pytest.raises(ApiError, match="an answer in gzip"):
            await client.call("GET", NODE_PATH)


async def test_an_answer_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "_CALL_S", 0.1)
    async with answering(endless=b" ") as client:
        with pytest.raises(ApiError, match="no answer"):
            await client.call("GET", NODE_PATH)


@pytest.mark.parametrize(
    ("delay", "pause"),
    [("7", 7), ("9" * 5000, 30), ("Sat, 28 Nov 2096 11:58:53 GMT", 0), ("-5", 0), ("", 0)],
)
async def test_retry_after_delays_requests(
    monkeypatch: pytest.MonkeyPatch, delay: str, pause: float
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(max(0.0, seconds))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for status in (429, 503):
        async with answering(b"{}", head=f"{status} Busy\r\nRetry-After: {delay}") as client:
            for _ in range(2):
                with pytest.raises(ApiError, match=f"{status}"):
                    await client.call("GET", NODE_PATH)
        assert waited.pop() == pytest.approx(pause, abs=5)
        assert waited.pop() == 0


async def test_nobody_who_answers_is_said_so() -> None:
    client = ApiClient("http://127.0.0.1:1")
    with pytest.raises(ApiError, match="API server: no answer"):
        await client.call("GET", NODE_PATH)


async def test_the_kernel_asks_whether_a_silent_connection_is_there(world: World) -> None:
    """A watch is silent for minutes, also where a firewall has forgotten it."""
    client = ApiClient(world.api.url)
    await client.call("GET", NODE_PATH)
    api = f":{urlsplit(world.api.url).port or 0:04X}"
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]  # noqa: ASYNC240
    # The fields of Documentation/networking/proc_net_tcp.rst; 02 is the timer that keeps it alive.
    (timer,) = [fields[5] for fields in sockets if fields[2].endswith(api) and fields[3] == "01"]
    assert timer.startswith("02:")
    await client.close()


async def test_another_ca_is_taken_up(tmp_path: Path) -> None:
    """An API server is believed by the CA that the file has now, and by no other."""
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(second[0].read_bytes())
    server = StandInApiServer()
    server.objects[NODE_PATH] = {"kind": "Node", "metadata": {"name": "node-1"}}
    async with server.running(tls=first):
        client = ApiClient(server.url, ca)
        with pytest.raises(ApiError, match=r"(?i)certificate"):
            await client.call("GET", NODE_PATH)
        ca.write_bytes(first[0].read_bytes())
        given_up = asyncio.create_task(client.call("GET", NODE_PATH))
        await asyncio.sleep(0)  # it has begun to read the file
        given_up.cancel()
        await asyncio.wait([given_up])
        assert (await client.call("GET", NODE_PATH))["metadata"]["name"] == "node-1"
        await client.close()


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate of this machine, which is its own CA, without key identifiers."""
    crt, key = directory / f"{name}.crt", directory / f"{name}.key"
    settings = directory / "openssl.cnf"
    settings.write_text(
        "[req]\ndistinguished_name=name\nx509_extensions=ext\nprompt=no\n[name]\nCN=api\n"
        "[ext]\nsubjectAltName=IP:127.0.0.1\nbasicConstraints=CA:TRUE\n"
        "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"
    )
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-config", settings, "-keyout", key, "-out", crt),
        ],
        check=True,
        capture_output=True,
    )
    assert ssl.create_default_context(cafile=str(crt))
    return crt, key
