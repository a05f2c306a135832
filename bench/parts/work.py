"""What a subject does while it runs: file events, bursts, and what kubelet asks."""

from bench.figures import Record, difference
from bench.options import Options
from bench.scene import full_name
from bench.stage import Stage

_TARGETS = 20  # resources that events are spread over
_CALLERS = 16


def events(stage: Stage, record: Record, options: Options) -> None:
    scene = stage.scene
    targets = [
        {"resource": full_name(name), "path": str(scene.device(name, "event"))}
        for name in scene.shape.spread(_TARGETS)
    ]
    counters, cpu_ms = stage.counters(), stage.process.cpu_ms()
    result = stage.do(
        "events",
        targets=targets,
        kind=scene.kind,
        count=options.events,
        pause_ms=options.pause_ms,
    )
    changes = 2 * options.events
    cpu_ms = stage.process.cpu_ms() - cpu_ms
    record.add_latency("device comes", result["add"])
    record.add_latency("device goes", result["remove"])
    record.add("one change: CPU", cpu_ms / changes, "ms")
    messages = difference(stage.counters(), counters)["messages"]
    record.add("one change: messages", messages / changes, "")


def burst(stage: Stage, record: Record, options: Options) -> None:
    scene = stage.scene
    paths = [scene.device(scene.changed, f"burst{turn:05}") for turn in range(options.burst)]
    cpu_ms = stage.process.cpu_ms()
    result = stage.do(
        "burst",
        resource=full_name(scene.changed),
        paths=[str(path) for path in paths],
        kind=scene.kind,
        settle_ms=options.settle_ms,
    )
    record.add(f"burst of {options.burst}: after the last", result["us"] / 1000, "ms")
    record.add(f"burst of {options.burst}: writing took", result["write_us"] / 1000, "ms")
    record.add(f"burst of {options.burst}: messages", result["messages"], "")
    record.add(f"burst of {options.burst}, and back: CPU", stage.process.cpu_ms() - cpu_ms, "ms")


def allocate(stage: Stage, record: Record, options: Options) -> None:
    _calls(stage, record, options, "allocate", "Allocate")


def preferred(stage: Stage, record: Record, options: Options) -> None:
    _calls(stage, record, options, "preferred", "GetPreferredAllocation")


def _calls(stage: Stage, record: Record, options: Options, command: str, name: str) -> None:
    resource = full_name(stage.scene.changed)
    size = min(2, stage.scene.shape.devices)
    cpu_ms = stage.process.cpu_ms()
    alone = stage.do(command, resource=resource, count=options.calls, callers=1, size=size)
    cpu_ms = stage.process.cpu_ms() - cpu_ms
    record.add_latency(name, alone["us"])
    record.add(f"{name}: CPU", cpu_ms / options.calls, "ms")
    count, cpu_ms = options.calls * 4, stage.process.cpu_ms()
    many = stage.do(command, resource=resource, count=count, callers=_CALLERS, size=size)
    cpu_ms = stage.process.cpu_ms() - cpu_ms
    record.add_latency(f"{name}, {_CALLERS} callers", many["us"])
    record.add(f"{name}, {_CALLERS} callers: CPU", cpu_ms / count, "ms")
    record.add(f"{name}, {_CALLERS} callers: calls", count / (many["total_us"] / 1e6), "/s")
