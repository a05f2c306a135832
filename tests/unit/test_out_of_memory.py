"""A process that cannot hand over a result ends: it would wait for it forever."""

import asyncio
import sys
import textwrap
from asyncio.subprocess import DEVNULL, PIPE

import pytest

PROGRAM = """
import asyncio, functools, sys
from devhost import threads
from devhost.host.process import until_signal

def fail(*_, **__):
    raise MemoryError

async def main():
    await threads.in_thread("first", int)
    loop = asyncio.get_running_loop()
    {failing}
    await {work}
    print("went on")

asyncio.run(until_signal(main()))
"""


async def status(failing: str, work: str) -> tuple[int, str, str]:
    program = PROGRAM.format(failing=textwrap.indent(failing, "    ").strip(), work=work)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.parametrize("run", ["in_thread", "in_own_thread"])
@pytest.mark.parametrize(
    "failing",
    [
        "functools.partial = fail",
        "loop.call_soon_threadsafe = fail",
        "threads._hand_over = fail",
        "loop.call_soon = lambda *_, **__: fail()",
    ],
)
async def test_a_result_that_cannot_be_handed_over(failing: str, run: str) -> None:
    code, output, errors = await status(failing, f"threads.{run}('second', int)")
    assert (code, output) == (1, ""), errors
    assert "cannot go on: out of memory" in errors


async def test_a_job_that_cannot_be_begun() -> None:
    failing = "threads._SHORT._jobs = type('Jobs', (), {'put': fail})"
    code, _, errors = await status(failing, "threads.in_thread('second', int)")
    assert (code, "Traceback" in errors) == (1, False)


async def test_a_callback_that_fails() -> None:
    """What it was to begin does not begin."""
    code, output, errors = await status("loop.call_later(0, fail)", "asyncio.Event().wait()")
    assert (code, output, "Traceback" in errors) == (1, "", False)


async def test_a_job_itself_may_fail() -> None:
    """Who waits for it gets the error."""
    failing = "result = asyncio.gather(threads.in_thread('second', fail), return_exceptions=True)"
    code, output, _ = await status(failing, "result")
    assert (code, output) == (0, "went on\n")
