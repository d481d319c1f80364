"""Compiles what cannot be written in Python where there is a C compiler; without one it is done otherwise, or not."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (Path("src/ergometer/sensors/beat.c"), Path("src/ergometer/run/_handover.c"))


class CompileSources(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        for source in SOURCES:
            library = source.with_suffix(".so")
            made = root / source.with_suffix(f".{os.getpid()}")
            try:
                subprocess.run([*compiler, "-O2", "-shared", "-fPIC", root / source, "-o", made], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"ergometer: {source.name} is not compiled ({error})", file=sys.stderr)
                continue
            made.replace(root / library)  # a process that runs keeps the old one
            build_data["artifacts"].append(str(library))
        if not build_data["artifacts"]:
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
