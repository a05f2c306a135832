"""A GPU of NVIDIA's driver, by what `devhost init` writes for it: containers compute on it.

They have this machine's programs. Its devices are below DEVHOST_TEST_GPU_ROOT, if that is set.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from devhost.cli import main
from devhost.fake_kubelet.state import AdmissionError, Answer
from devhost.hostfs.files import HostFiles
from devhost.library.plugin import TRUSTED
from tests.deploy import debian, machine
from tests.dra.conftest import world as world  # noqa: PLC0414 (a fixture)
from tests.dra.world import World
from tests.support import cdiverify
from tests.support.hosting import Hosting
from tests.support.realkubelet import REAL_KUBELETS, RealKubelet

ROOT: Final = Path(os.environ.get("DEVHOST_TEST_GPU_ROOT", "/"))
GPU: Final = "example.com/nvidia"
BYTES: Final = 1 << 20
# It fills memory of a GPU, and reads it back.
PROGRAM: Final = f"""
import ctypes
cuda, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t({BYTES})
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
read = ctypes.create_string_buffer({BYTES})
for name, *arguments in (
    ("cuInit", 0),
    ("cuCtxCreate_v2", ctypes.byref(context), 0, 0),
    ("cuMemAlloc_v2", ctypes.byref(memory), size),
    ("cuMemsetD8_v2", memory, ctypes.c_ubyte(7), size),
    ("cuMemcpyDtoH_v2", read, memory, size),
):
    if status := getattr(cuda, name)(*arguments):
        raise SystemExit(f"{{name}}: {{status}}")
print(sum(read.raw))
"""
COMPUTED: Final = f"{7 * BYTES}\n"

pytestmark = [
    pytest.mark.skipif(
        not (ROOT / "dev/nvidia0").exists() or os.geteuid() != 0,
        reason="it needs /dev/nvidia0, of a GPU with NVIDIA's driver, and root",
    ),
    pytest.mark.program("cdiverify"),
]


def config(**keys: Any) -> dict[str, Any]:
    """Return a configuration with the resource that `init` writes for the GPU, and more keys."""
    config = yaml.safe_load(CliRunner().invoke(main, ["init", "--yes", f"--root={ROOT}"]).stdout)
    (gpu,) = (resource for resource in config["resources"] if resource["name"] == GPU)
    return {**config, "resources": [gpu | keys]}


def oci(answer: Answer) -> dict[str, Any]:
    """Return what a container runtime makes of kubelet's answer."""
    nodes, rules = list[dict[str, Any]](), list[dict[str, Any]]()
    for device in answer["devices"]:
        number = Path(f"{ROOT}{device['hostPath']}").stat().st_rdev
        node = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
        nodes.append({**node, "path": device["containerPath"]})
        rules.append({**node, "allow": True, "access": "rw"})
    env = [f"{name}={value}" for name, value in answer["envs"].items()]
    mounts = [bind(mount["hostPath"], mount["containerPath"]) for mount in answer["mounts"]]
    linux = {"devices": nodes, "resources": {"devices": rules}}
    return {"process": {"env": env}, "mounts": mounts, "linux": linux}


def bind(source: str, path: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "destination": path, "options": ["rbind", "ro"]}


def compute(directory: Path, parts: dict[str, Any]) -> str:
    """Run a container with these parts of an OCI spec; return what the program in it printed."""
    runc = debian.with_tools(debian.tools({"runc": "runc"}, machine.CACHE), "runc")
    bundle = directory / f"devhost-gpu-{len([*directory.iterdir()])}"
    (bundle / "rootfs").mkdir(parents=True)
    subprocess.run([*runc, "spec", f"--bundle={bundle}"], check=True)
    spec = json.loads((bundle / "config.json").read_text())
    args = [str(Path(sys.executable).resolve()), "-c", PROGRAM]
    spec["process"] |= {"args": args, "terminal": False, "env": parts["process"]["env"]}
    spec["mounts"] = [m for m in spec["mounts"] if m["type"] not in ("cgroup", "mqueue")]
    # What Python needs, without the driver's libraries.
    paths = [*map(Path, (sys.base_prefix, "/bin", "/lib", "/lib64", "/nix", "/opt"))]
    paths += [*Path("/usr").iterdir(), *Path("/usr/local").iterdir()]
    hidden = ("usr", "local", "nvidia")
    paths = [path for path in paths if path.exists() and path.name not in hidden]
    spec["mounts"] += [bind(f"{path}", f"{path}") for path in paths]
    spec["mounts"] += [mount | {"source": f"{ROOT}{mount['source']}"} for mount in parts["mounts"]]
    spec["linux"]["devices"] = parts["linux"]["devices"]
    spec["linux"]["resources"]["devices"] += parts["linux"]["resources"]["devices"]
    (bundle / "config.json").write_text(json.dumps(spec))
    argv = [*runc, f"--root={bundle}/runc", "run", f"--bundle={bundle}", bundle.name]
    return subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)
@pytest.mark.parametrize("replicas", [1, 4])
async def test_containers_compute_by_the_device_plugin(
    started: RealKubelet, hosting: Hosting, tmp_path: Path, replicas: int
) -> None:
    hosting.start(json.dumps(config(replicas=replicas)), root=ROOT, policy=TRUSTED)
    count = replicas * len([*(ROOT / "dev").glob("nvidia[0-9]*")])
    await started.wait(GPU, count, count)
    for number in range(count):
        parts = oci((await started.admit(f"pod-{number}", {"app": {GPU: 1}}))["app"])
        assert compute(tmp_path, parts) == COMPUTED
    with pytest.raises(AdmissionError):
        await started.admit("one-too-many", {"app": {GPU: 1}})
    parts["linux"] = {"devices": [], "resources": {"devices": []}}
    assert not compute(tmp_path, parts), "without the nodes there is no GPU"


async def test_a_container_computes_by_a_claim(world: World, tmp_path: Path) -> None:
    world.files, world.policy = HostFiles(str(ROOT)), replace(TRUSTED, dra=True)
    async with world.serve(json.dumps(config(backend="dra")), GPU):
        name = world.claim("u", GPU, world.published()[0])
        answer = await world.kubelet.prepare(name, "u")
        names = [name for device in answer.devices for name in device.cdi_device_ids]
        parts = cdiverify.inject(world.cdi, names)["oci"]
        assert compute(tmp_path, parts) == COMPUTED
