"""Plants one defect at a time in a copy and runs the tests that should notice: ``make mutants``.

Not part of the tests. A mutant is a line of `MUTANTS`: a file below ``devhost/``, a text that is in
it once, what stands there instead, and the tests that have to fail by it. An argument chooses those
with a word in any of these. A mutant whose text is gone has to follow the code, or goes with it.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_LEFT_OUT: Final = shutil.ignore_patterns(
    *(".git", ".venv", ".tools", "__pycache__", ".*_cache", ".hypothesis", "build", "site")
)
_TIMEOUT_S: Final = 120  # of the tests of one mutant: that they hang counts as noticed
_PASSED, _FAILED = 0, 1  # of pytest


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes:
        file: Below ``devhost/``.
        before: A text that is there once.
        after: The text instead.
        tests: What pytest is given.
    """

    file: str
    before: str
    after: str
    tests: str


MUTANTS: Final = (
    # ── whose a node is ──
    Mutant(
        "discovery/identity.py",
        "and (failed or not _orphan(device))",
        "",
        "tests/model/test_model.py -k former_devices",
    ),
    Mutant(
        "discovery/ownership.py",
        "math.inf) >= member.former",
        "math.inf) > member.former",
        "tests/unit/test_node_ownership.py",
    ),
    Mutant(
        "discovery/ownership.py",
        "member.former = math.inf  # if",
        "pass  # if",
        "tests/unit/test_node_ownership.py",
    ),
    Mutant(
        "host/resource.py",
        "if len(self.known.devices) < len(found.devices) and",
        "if False and",
        "tests/model/test_model.py -k no_seat",
    ),
    # ── what a container receives ──
    Mutant(
        "allocation/declaration.py",
        'in_cdi_spec = self.resource.inject == "cdi"',
        "in_cdi_spec = False",
        "tests/security/test_links.py -k exchanged",
    ),
    Mutant(
        "allocation/declaration.py",
        "if shares > most:",
        "if shares > most + 1:",
        "tests/host/test_preferred.py",
    ),
    Mutant(
        "allocation/declaration.py",
        "if device.reason is not None:",
        "if False:",
        "tests/unit/test_scans.py -k groups",
    ),
    Mutant(
        "allocation/host_paths.py",
        "if problem := names.path_problem(place.realpath):",
        "if problem := None:",
        "tests/security/test_paths.py -k unusable_name",
    ),
    Mutant(
        "allocation/host_paths.py",
        "place.realpath == path or self._stays(path):",
        "place.realpath == path or is_in_dev(path):",
        "tests/security/test_links.py",
    ),
    Mutant(
        "allocation/host_paths.py",
        "self.node_problem(node, same_number=True)",
        "self.node_problem(node, same_number=False)",
        "tests/security/test_steps.py",
    ),
    Mutant(
        "allocation/host_paths.py",
        "state.identity != node.state.identity",
        "state.kind is not node.state.kind",
        "tests/security/test_steps.py",
    ),
    Mutant(
        "allocation/host_paths.py",
        "and not walk.found[name]:",
        "and name:",
        "tests/security/test_nodes.py -k directory",
    ),
    Mutant(
        "allocation/host_paths.py",
        "if state is None and (spec.optional or not self.is_unseen(spec)):",
        "if state is None and not self.is_unseen(spec):",
        "tests/unit/test_scans.py -k mounts",
    ),
    Mutant(
        "allocation/policy.py",
        "named and found != _UNKNOWN",
        "named",
        "tests/security/test_device_classes.py",
    ),
    Mutant(
        "allocation/policy.py",
        "if not is_in_dev(path):",
        'if not path.startswith("/dev/"):',
        "tests/security/test_device_classes.py",
    ),
    Mutant(
        "allocation/policy.py",
        "(path in self.allow_devices and not is_wild(path))",
        "path in self.allow_devices",
        "tests/security/test_device_classes.py",
    ),
    Mutant(
        "allocation/policy.py",
        'case "vfio" | "vfio-dev" if name.startswith("noiommu"):',
        'case "vfio-noiommu":',
        "tests/security/test_device_classes.py",
    ),
    Mutant(
        "allocation/declaration.py",
        "if node.hardware is not None:",
        "if node.hardware is None:",
        "tests/security/test_hardware.py -k serial_number",
    ),
    Mutant(
        "allocation/declaration.py",
        'and bool(named) and "index" not in named',
        "and bool(named)",
        "tests/unit/test_scans.py -k allocate",
    ),
    Mutant(
        "allocation/declaration.py",
        "if not values or (rule.joined and first.joined):",
        "if not values or rule.joined:",
        "tests/unit/test_scans.py -k allocate",
    ),
    Mutant(
        "allocation/preference.py",
        "settled = set(map(without_share, chosen))",
        "settled = set()",
        "tests/unit/test_preference.py",
    ),
    Mutant(
        "allocation/variables.py",
        'word.startswith("-") and text.opening is not None',
        'word.startswith("--") and text.opening is not None',
        "tests/security/test_steps.py -k option",
    ),
    Mutant(
        "allocation/cdi.py",
        "_DEVICE.fullmatch(device_id) and not _LOOKS_MADE.fullmatch(device_id)",
        "_DEVICE.fullmatch(device_id)",
        "tests/unit/test_cdi.py",
    ),
    # ── the host's files ──
    Mutant(
        "hostfs/files.py",
        "if self._is_magic(done):",
        "if False:",
        "tests/security/test_paths.py",
    ),
    Mutant(
        "hostfs/files.py",
        "needed = stat.S_IXOTH if rest or name else stat.S_IROTH | stat.S_IXOTH",
        "needed = stat.S_IXOTH",
        "tests/security/test_private_directories.py tests/unit/test_host_files.py",
    ),
    Mutant(
        "hostfs/mounts.py",
        'others = {posixpath.dirname(place): "its disk"} if is_partition else {}',
        "others = {}",
        "tests/security/test_disks_in_use.py",
    ),
    Mutant(
        "hostfs/sysfs.py",
        "if public and not os.fstat(descriptor).st_mode & stat.S_IROTH:",
        "if False:",
        "tests/security/test_hardware.py",
    ),
    Mutant(
        "hostfs/sysfs.py",
        'return self.text(path) if path.startswith("/sys/") else None',
        "return self.text(path)",
        "tests/security/test_hardware.py -k attribute",
    ),
    # ── the file ──
    Mutant(
        "loading/yamltree.py",
        "if node in self._open:",
        "if False:",
        "tests/unit/test_yamltree.py",
    ),
    Mutant(
        "loading/yamltree.py",
        "self._extent.nodes += values",
        "self._extent.nodes += 1",
        "tests/unit/test_yamltree.py",
    ),
    Mutant(
        "loading/checks.py",
        "if name != own and (_differ(other, rule) or rule.per_device):",
        "if name != own and _differ(other, rule):",
        "tests/unit/test_loading_problems.py",
    ),
    Mutant(
        "loading/template_checks.py",
        "allowed = (some if len(templates) > 1 else known) - _LATER",
        "allowed = some if len(templates) > 1 else known",
        "tests/unit/test_loading_problems.py",
    ),
    # ── from what is found to devices ──
    Mutant(
        "discovery/identity.py",
        "(absent if rank == NEW else 0) >= limit",
        "0 >= limit",
        "tests/unit/test_scan.py",
    ),
    Mutant(
        "discovery/identity.py",
        "if before is None or lost[file] or file not in files_of(before):",
        "if before is None or file not in files_of(before):",
        "tests/unit/test_scans.py",
    ),
    Mutant(
        "discovery/identity.py",
        "if skipped.reason != DANGLING",
        "if True",
        "tests/unit/test_scans.py",
    ),
    Mutant(
        "discovery/scan.py",
        "and kept and not previous.mixed:",
        "and kept:",
        "tests/unit/test_scan.py",
    ),
    Mutant(
        "discovery/scan.py",
        "since = lost_at if other else before.swapped_at",
        "since = now if other else before.swapped_at",
        "tests/unit/test_scans.py",
    ),
    Mutant(
        "discovery/health.py",
        "if not allowed and _PRIVATE.fullmatch(realpath):",
        "if False:",
        "tests/security/test_checks.py",
    ),
    # ── what pods were given, and what is prepared ──
    Mutant(
        "host/owners.py",
        "if now < since or self._elsewhere(owner):",
        "if now < since:",
        "tests/host/test_owners.py",
    ),
    Mutant(
        "host/records.py",
        "        if boot != self.boot:",
        "        if False:",
        "tests/host/test_owners.py",
    ),
    Mutant(
        "host/records.py",
        "return self.names | {self.key} if self._is_file else frozenset([self.key])",
        "return frozenset([self.key])",
        "tests/host/test_owners.py tests/host/test_records.py",
    ),
    Mutant(
        "host/records.py",
        "            return False\n        finally:",
        "            return True\n        finally:",
        "tests/host/test_records.py tests/host/test_once_per_holder.py",
    ),
    Mutant(
        "host/owners.py",
        "waits = not self._may_share(resource, other, overlap=True)",
        "waits = False",
        "tests/host/test_owners.py",
    ),
    Mutant(
        "host/records.py",
        "            self._refused()",
        "            pass",
        "tests/host/test_owners.py",
    ),
    Mutant(
        "host/records.py",
        "refused += [one for one in put if any(map(one.conflicts, learned))]",
        "pass",
        "tests/host/test_records.py",
    ),
    Mutant(
        "host/records.py",
        "others = [one for identity, one in before.items() if identity not in known]",
        "others = []",
        "tests/host/test_records.py tests/host/test_owners.py",
    ),
    Mutant(
        "host/records.py",
        "if done.get(it, self) is not one and one not in refused",
        "if it not in done and one not in refused",
        "tests/host/test_records.py tests/host/test_owners.py",
    ),
    Mutant(
        "host/owners.py",
        "return self._assume_free or identity in self._gone",
        "return self._assume_free",
        "tests/host/test_owners.py",
    ),
    Mutant(
        "host/owners.py",
        'return overlap and resource.overlap == "allow"',
        'return resource.overlap == "allow"',
        "tests/host/test_owners.py",
    ),
    Mutant(
        "host/preparation.py",
        "for one, it in fresh.items() if without_share(one) not in failures}",
        "for one, it in fresh.items()}",
        "tests/host/test_once_per_holder.py",
    ),
    Mutant(
        "host/preparation.py",
        "if self._allocations.get(one) is not it]:",
        "if one not in self._allocations]:",
        "tests/host/test_once_per_holder.py",
    ),
    Mutant(
        "host/preparation.py",
        "if not await self._records.sync(_SYNC_S):",
        "if await self._records.sync(_SYNC_S) is None:",
        "tests/host/test_once_per_holder.py",
    ),
    Mutant(
        "host/records.py",
        "            del self._unsaved[one.identity]",
        "            pass",
        "tests/host/test_records.py",
    ),
    Mutant(
        "host/preparation.py",
        "if again := [one for one, it in done.items() if self._allocations.get(one) is not it]:",
        "if again := []:",
        "tests/host/test_once_per_holder.py",
    ),
    # ── kubelet ──
    Mutant(
        "kubelet/device_list.py",
        "if not known or len(known) < len(times):",
        "if not known:",
        "tests/unit/test_device_list.py",
    ),
    Mutant(
        "kubelet/device_list.py",
        "began > latest for began in self.unanswered",
        "began >= latest - 1 for began in self.unanswered",
        "tests/unit/test_device_list.py",
    ),
    Mutant(
        "kubelet/servicer.py",
        "        with self._unanswered() as deadline:\n            for one",
        "        deadline = 1e9\n        if True:\n            for one",
        "tests/unit/test_servicer.py",
    ),
    Mutant(
        "kubelet/servicer.py",
        "if advertised_id not in self._device_list.entries:",
        "if False:",
        "tests/unit/test_servicer.py",
    ),
    Mutant(
        "kubelet/registration.py",
        "QUICK_STREAM_TIMEOUT_S if self._ends == 1 else",
        "QUICK_STREAM_TIMEOUT_S if self._ends else",
        "tests/unit/test_registration.py",
    ),
    Mutant(
        "kubelet/resource_lock.py",
        "return os.path.samestat(os.fstat(self._descriptor), self._path.stat())",
        "return True",
        "tests/unit/test_resource_lock.py",
    ),
    Mutant(
        "kubelet/directory.py",
        "if self._channel is None or self._channel_of != self.identity():",
        "if self._channel is None:",
        "tests/host/test_scenarios.py tests/host/test_kubelet_socket.py",
    ),
    # ── the node ──
    Mutant(
        "host/holders.py",
        "self.at >= self.since + POLL_S",
        "self.at >= self.since",
        "tests/host/test_holders.py",
    ),
    Mutant(
        "host/holders.py",
        "if one.since == self._lists[-1].since and one.trusted and one.at >= since",
        "if one.trusted and one.at >= since",
        "tests/host/test_holders.py",
    ),
    Mutant(
        "host/holders.py",
        "if lists and (near or not lists[-1].trusted):",
        "if lists:",
        "tests/host/test_holders.py",
    ),
    Mutant(
        "host/config_source.py",
        "            if found == before:\n                break",
        "            break",
        "tests/host/test_config_source.py",
    ),
    Mutant(
        "host/health.py",
        "            watched.next_at = -math.inf\n            self._wake.set()",
        "            pass",
        "tests/host/test_health_monitor.py",
    ),
    Mutant(
        "host/health.py",
        "if self._checks != checks:",
        "if False:",
        "tests/host/test_health_monitor.py",
    ),
    Mutant(
        "kubelet/backend.py",
        "device_list.may_be_known(held)",
        "pass",
        "tests/unit/test_advertising.py",
    ),
    Mutant(
        "kubelet/device_list.py",
        "            del stream.unhealthy_since[recovered]",
        "            pass",
        "tests/unit/test_device_list.py",
    ),
    Mutant(
        "host/preparation.py",
        "if device is None or (device.missing_since is not None and not device.replaced):",
        "if device is None:",
        "tests/host/test_once_per_holder.py tests/host/test_steps.py",
    ),
    Mutant(
        "host/metrics.py",
        "if found.error is not None or any(one.reason.startswith(DEFERRED) for one in found.skipped):",
        "if found.error is not None:",
        "tests/unit/test_changes.py",
    ),
    Mutant(
        "model/changes.py",
        "new.replicas < old.replicas or (old.replicas == 1) != (new.replicas == 1)",
        "new.replicas < old.replicas",
        "tests/unit/test_configuration_changes.py",
    ),
    Mutant(
        "model/changes.py",
        "for names, sign in ((kept, 1), (kept[::-1], -1)):",
        "for names, sign in ((kept, 1),):",
        "tests/unit/test_configuration_changes.py",
    ),
    Mutant(
        "library/methods.py",
        "if len(late) >= UNRETURNED_MAX:",
        "if False:",
        "tests/library/test_calls.py",
    ),
    Mutant(
        "library/methods.py",
        "if len(chosen) != size or len(set(map(repr, chosen))) != size:",
        "if len(chosen) != size:",
        "tests/library/test_calls.py",
    ),
    Mutant(
        "watch/watcher.py",
        "while entry and not self._watch(target, path, entry):",
        "while entry and self._watch(target, path, entry) is None:",
        "tests/unit/test_watch.py",
    ),
    # ── what people look at ──
    Mutant(
        "observe/http.py",
        'return asked in ("localhost", name.lower())',
        "return bool(asked)",
        "tests/observe/test_http.py",
    ),
)


@contextlib.contextmanager
def planted(copy: Path, mutant: Mutant, number: int) -> Iterator[bool]:
    """Plant a defect for a while; say whether its text is there, once."""
    file = copy / "devhost" / mutant.file
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if text.count(mutant.before) != 1:
        yield False
        return
    # A compiled file is known by the second and the size of its source: so the time is another.
    later = time.time() + 2 * number
    try:
        _write(file, text.replace(mutant.before, mutant.after), later + 1)
        yield True
    finally:
        _write(file, text, later + 2)


def _write(file: Path, text: str, at: float) -> None:
    file.write_text(text, encoding="utf-8")
    os.utime(file, (at, at))


def noticed(copy: Path, tests: str) -> str | None:
    """Run tests; return how they noticed a defect, ``None`` if they passed."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", *tests.split()]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_TIMEOUT_S} s"
    if done.returncode == _PASSED:
        return None
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR tests/"))
    ]
    if done.returncode == _FAILED and lines:
        return lines[0].split(" - ")[0]
    sys.exit(f"pytest {tests}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main(words: list[str]) -> int:
    """Try all mutants, or those with these words; return how many were not noticed."""
    chosen = [one for one in MUTANTS if all(word in repr(one) for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Path(directory) / "devhost"
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT, symlinks=True)
        for tests in dict.fromkeys(one.tests for one in chosen):
            if (how := noticed(copy, tests)) is not None:
                sys.exit(f"without any mutant: {how}")
        for number, mutant in enumerate(chosen):
            began = time.monotonic()
            with planted(copy, mutant, number) as there:
                how = noticed(copy, mutant.tests) if there else "GONE"
            missed += how in (None, "GONE")
            seconds = time.monotonic() - began
            where = f"{mutant.file}: {mutant.before.strip().splitlines()[0]}"
            print(f"{how or 'SURVIVED'}  ({where}; {seconds:.0f} s)", flush=True)  # noqa: T201
    print(f"{len(chosen) - missed} of {len(chosen)} mutants noticed")  # noqa: T201
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
