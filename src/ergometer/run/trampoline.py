"""Becomes the measured command once its surroundings are set and the parent says go.

    python -I -S trampoline.py SETTINGS COMMAND...

It waits on a pipe while the sampler gets ready, so that nothing of the command goes unobserved. Standard
library alone; not imported by anything.
"""

import errno
import json
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings["die_with_parent"]:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != settings["parent"]:
            os._exit(1)
    if settings["cores"]:
        os.sched_setaffinity(0, settings["cores"])
    if settings["cgroup"]:
        with open(settings["cgroup"] + "/cgroup.procs", "w") as file:
            file.write("0")
    if settings["first_to_kill"]:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    if not os.read(settings["go"], 1):
        os._exit(1)  # the parent gave up before it began
    os.close(settings["go"])
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        hint = " (does it begin with #! and its interpreter?)" if error.errno == errno.ENOEXEC else ""
        sys.stderr.write(f"ergo: {sys.argv[2]} cannot be run: {os.strerror(error.errno or 0).lower()}{hint}\n")
        os._exit(126)


if __name__ == "__main__":
    main()
