"""Run `devhost` with other times and limits: `launch.py CONSTANTS CODE ARGUMENT...`.

Of the constants, a JSON object, each is the path of a number in devhost, such as
`host.reconciler.RESCAN_S`. The code, which may be empty, runs after that and before devhost does.
"""

import importlib
import json
import runpy
import sys


def set_constants(constants: dict[str, float]) -> None:
    """Set numbers in modules of devhost; `AttributeError` for a name that is not there."""
    for path, value in constants.items():
        module_name, _, name = f"devhost.{path}".rpartition(".")
        module = importlib.import_module(module_name)
        if type(getattr(module, name)) not in (int, float):
            raise TypeError(f"{path} is no number")
        setattr(module, name, value)


if __name__ == "__main__":
    _, constants, code, *arguments = sys.argv
    sys.path[0] = ""  # as `python -m` has it, not the directory of this file
    set_constants(json.loads(constants))
    exec(code, {})
    sys.argv = ["devhost", *arguments]
    runpy.run_module("devhost", run_name="__main__", alter_sys=True)
