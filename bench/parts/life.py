"""Start, what a subject holds, and what it costs at rest; restarts of kubelet, and reloads."""

import statistics
import time
import urllib.request

from bench.figures import Record, difference
from bench.options import Options
from bench.scene import EXTRA, full_name
from bench.stage import Stage

_QUIET_S = 2.0  # after which what a start leaves to do is done
_TIDY_S = 12.0  # so is, once in its life, the tidying up of devhost's memory
_LATE_US = 5_000
_BACK_OFF_MS = 500.0


def start(stage: Stage, record: Record, _: Options) -> None:
    record.add("start wall", stage.started_ms, "ms")
    record.add("start CPU", stage.started_cpu_ms, "ms")


def sizes(stage: Stage, record: Record, _: Options) -> None:
    time.sleep(_QUIET_S)
    found = stage.process.sizes()
    record.add("RSS", found.rss_mib, "MiB")
    record.add("USS", found.uss_mib, "MiB")
    record.add("threads", found.threads, "")
    record.add("descriptors", found.descriptors, "")
    record.add("inotify instances", found.inotify_instances, "")
    if stage.subject.is_devhost:
        with urllib.request.urlopen(f"http://{stage.listening}/metrics") as answer:
            answer.read()
        record.add("RSS after a scrape", stage.process.sizes().rss_mib, "MiB")


def rest(stage: Stage, record: Record, options: Options) -> None:
    time.sleep(_TIDY_S)
    counters, process = stage.counters(), stage.process
    cpu_ms, wake_ups, began = process.cpu_ms(), process.wake_ups(), time.monotonic()
    time.sleep(options.rest_s)
    cpu_ms, wake_ups = process.cpu_ms() - cpu_ms, process.wake_ups() - wake_ups
    took = time.monotonic() - began
    record.add("at rest: CPU a minute", cpu_ms * 60 / took, "ms")
    record.add("at rest: wake-ups a second", wake_ups / took, "")
    messages = difference(stage.counters(), counters)["messages"]
    record.add("at rest: messages", messages, "")


def restart(stage: Stage, record: Record, options: Options) -> None:
    taken, cpu_ms = [], stage.process.cpu_ms()
    for _ in range(options.restarts):
        taken.append(_restart(stage, options.down_ms))
        time.sleep(options.down_ms / 1000)
    record.add("kubelet restart", statistics.median(taken), "ms")
    cpu_ms = stage.process.cpu_ms() - cpu_ms
    record.add("kubelet restart: CPU", cpu_ms / options.restarts, "ms")


def back_off(stage: Stage, record: Record, options: Options) -> None:
    """Restart kubelet so often that a race with its socket is lost, if it can be.

    The socket's file is there before it listens. A gRPC client that is refused then waits for
    a second. Every fifth time that moment is drawn out.
    """
    taken = [
        _restart(stage, options.down_ms, gap_us=_LATE_US if turn % 5 == 0 else 0)
        for turn in range(options.many_restarts)
    ]
    record.add(f"{options.many_restarts} kubelet restarts: slowest", max(taken), "ms")
    slow = sum(one >= _BACK_OFF_MS for one in taken)
    record.add(f"{options.many_restarts} kubelet restarts: backed off", slow, "")


def _restart(stage: Stage, down_ms: int, gap_us: int = 0) -> float:
    shape = stage.scene.shape
    result = stage.do(
        "restart",
        resources=shape.resources,
        devices=shape.devices,
        down_ms=down_ms,
        gap_us=gap_us,
    )
    return float(result["us"]) / 1000


def reload(stage: Stage, record: Record, options: Options) -> None:
    if not stage.subject.is_devhost:
        return  # it has no configuration
    cpu_ms = stage.process.cpu_ms()
    result = _reload(stage, options, changed=True)
    record.add("reload of 1", result["us"] / 1000, "ms")
    record.add("reload of 1: CPU", stage.process.cpu_ms() - cpu_ms, "ms")
    record.add("reload of 1: streams ended", result["ended"], "")
    record.add("reload of 1: messages", result["messages"], "")
    _reload(stage, options, changed=False)


def _reload(stage: Stage, options: Options, *, changed: bool) -> dict[str, float]:
    name = stage.scene.changed
    result: dict[str, float] = stage.do(
        "reload",
        file=str(stage.place.config),
        text=stage.scene.config(changed=changed),
        resource=full_name(name),
        id=f"{name}-{EXTRA}",
        present=changed,
        settle_ms=options.settle_ms,
    )
    return result
