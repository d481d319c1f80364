"""Compiles the sampler's inner loop where there is a C compiler; without one the sampler does it in Python."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/ergometer/sensors/beat.c")
LIBRARY = SOURCE.with_suffix(".so")


class CompileBeat(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        made = root / LIBRARY.with_suffix(f".{os.getpid()}")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        try:
            subprocess.run([*compiler, "-O2", "-shared", "-fPIC", root / SOURCE, "-o", made], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"ergometer: the sampler is not compiled ({error}); it will cost more time", file=sys.stderr)
            return
        made.replace(root / LIBRARY)  # a sampler that runs keeps the old one
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(str(LIBRARY))
