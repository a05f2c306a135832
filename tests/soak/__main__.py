"""A long storm of everything on the real process: ``python -m tests.soak --seconds 3600``.

It ends with status 1 when the kubelet once has anything else than what is declared and
present, when devhost or the kubelet dies, when devhost logs a traceback, and when it
holds more and more.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from devhost.standin.kubelet import SimulatedKubelet
from tests.soak.storm import Soak
from tests.support.daemon import Figures
from tests.support.hosting import Kubelet
from tests.support.realkubelet import RealKubelet, real_kubelets

# What may be more at the end than at the first rest of a process.
SPARE = {"descriptors": 16, "threads": 16, "watches": 16}
SPARE_RSS = 48 * 1024 * 1024


def main() -> int:
    """Run for so long as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rest-every", type=float, default=45, help="seconds of storm")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--stand-in", action="store_true", help="not a real kubelet")
    parser.add_argument("--alone", action="store_true", help="no second instance comes")
    parser.add_argument("--leave-after", type=float, help="of devhost; 10 seconds if not given")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="dh"))
    plugins = directory / "plugins"
    plugins.mkdir()
    kubelet = SimulatedKubelet(plugins) if arguments.stand_in else kubelet_in(plugins)
    version = (
        ".".join(map(str, kubelet.version)) if isinstance(kubelet, RealKubelet) else "stand-in"
    )
    say(f"seed {arguments.seed}, kubelet {version}, {directory}")
    try:
        return asyncio.run(soak(arguments, directory, kubelet))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def kubelet_in(plugins: Path) -> Kubelet:
    """Return the newest real kubelet that there is, or the stand-in."""
    binaries = list(real_kubelets().values())
    return RealKubelet(binaries[-1], plugins) if binaries else SimulatedKubelet(plugins)


async def soak(arguments: argparse.Namespace, directory: Path, kubelet: Kubelet) -> int:
    """Storm and rest until the time is over; return the exit status."""
    clock = asyncio.get_running_loop().time
    run = Soak(directory, kubelet, random.Random(arguments.seed), arguments.leave_after)
    began = clock()
    try:
        await run.begin()
        while (passed := clock() - began) < arguments.seconds:
            seconds = min(arguments.rest_every, arguments.seconds - passed)
            # Killed only in the first third, so that one process then lives for long.
            deadly = passed < arguments.seconds / 3 and bool(run.checks % 2)
            figures = await run.round(seconds, deadly=deadly, alone=arguments.alone)
            say(f"{clock() - began:6.0f} s  {line(run, figures)}")
        await run.end()
        failures = grown(run) + run.mistakes
    except* Exception as errors:  # noqa: BLE001 (whatever it is, it is a failure)
        for error in flat(errors):
            say(f"{clock() - began:6.0f} s  FAILED: {type(error).__name__}: {error}")
        failures = ["see above", *run.mistakes]
    finally:
        await run.close()
    summary(run)
    for failure in failures:
        say(f"FAILED: {failure}")
    return 1 if failures else 0


def flat(error: BaseException) -> list[BaseException]:
    """Return the errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return [each for one in error.exceptions for each in flat(one)]
    return [error]


def line(run: Soak, figures: Figures) -> str:
    events, faults = sum(run.events.values()), sum(run.faults.values())
    rest = f"{run.checks} rests, the last after {run.took:.1f} s"
    return f"{events} events, {faults} faults, {rest}; {shown(figures)}"


def shown(figures: Figures) -> str:
    return (
        f"{figures.rss / 1024 / 1024:.1f} MiB, {figures.threads} threads,"
        f" {figures.descriptors} descriptors, {figures.watches} watches"
    )


def summary(run: Soak) -> None:
    """Print what has happened, and the drift of the process that lived longest."""
    say(f"events: {dict(run.events.most_common())}")
    say(f"faults: {dict(run.faults.most_common())}")
    say(f"rests at which all agreed: {run.checks}; processes: {len(run.lives)}")
    if run.lives:
        life = longest(run)
        (first_at, first), (last_at, last) = life[0], life[-1]
        say(f"the longest life, {last_at - first_at:.0f} s between its first and last rest:")
        say(f"  first: {shown(first)}")
        say(f"  last:  {shown(last)}")


def longest(run: Soak) -> list[tuple[float, Figures]]:
    return max(run.lives.values(), key=lambda life: life[-1][0] - life[0][0])


def grown(run: Soak) -> list[str]:
    """Say of what the process that lived longest holds more and more."""
    (_, first), (_, last) = longest(run)[0], longest(run)[-1]
    found = [
        f"{name} grew from {getattr(first, name)} to {getattr(last, name)}"
        for name, spare in SPARE.items()
        if getattr(last, name) > getattr(first, name) + spare
    ]
    if last.rss > first.rss + SPARE_RSS:
        found.append(f"memory grew: {shown(first)}; {shown(last)}")
    return found


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 (the command's output)


if __name__ == "__main__":
    sys.exit(main())
