"""How long a core takes to see what another has written, and back.

The host of a virtual machine moves its cores about. Where they come to lie far apart (other caches, another socket),
steps of several threads take up to twice as long for seconds or minutes, and nothing else in the machine shows it.
"""

import ctypes
import os
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from ergometer.analyze.metrics import have_moved

LIBRARY = Path(__file__).with_name("_handover.so")
_ROUNDS, _BURSTS = 1000, 5
_LASTING_S, _LOOK_S = 3.0, 0.25  # cores that are back within the first have not moved; how often that is looked at
_LIMIT_NS = 20_000_000  # of a burst, which takes less than one unless the cores are busy with something else


def handover_s(cores: Iterable[int]) -> float | str:
    """Seconds for there and back between the first of these cores and the one furthest from it, or why not."""
    first, *others = sorted(cores)
    if not others:
        return "there is one core alone"
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return "it is not compiled: install a C compiler and then Ergometer anew"
    library.handover.restype = ctypes.c_int64
    library.handover.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64)
    found = []
    for other in others:
        bursts = [_burst(library, first, other) for _ in range(_BURSTS)]
        answered = [burst_s for burst_s in bursts if burst_s > 0]
        if not answered:
            return f"core {other} did not answer in time: something else keeps it busy"
        found.append(min(answered))  # something else may have interrupted the others
    return max(found)


def lasting_handover_s(cores: Collection[int], before_s: float | None, end_by: float) -> float | str:
    """The same, but looked at until it is as before or has lasted; a core that is busy looks far away, too."""
    found, until = handover_s(cores), min(end_by, time.monotonic() + _LASTING_S)
    while not isinstance(found, str) and have_moved(before_s, found) and time.monotonic() < until:
        time.sleep(_LOOK_S)
        now = handover_s(cores)
        found = found if isinstance(now, str) else now
    return found


def _burst(library: ctypes.CDLL, *cores: int) -> float:
    """Seconds per round; negative if one did not answer."""
    turn = ctypes.c_int32(0)
    took_ns = [-1, -1]

    def play(mine: int) -> None:
        try:
            os.sched_setaffinity(0, {cores[mine]})  # of this thread
        except OSError:  # the core has been taken away
            return
        took_ns[mine] = library.handover(ctypes.byref(turn), mine, _ROUNDS, _LIMIT_NS)

    players = [threading.Thread(target=play, args=(mine,)) for mine in (0, 1)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    return min(took_ns) * 1e-9 / _ROUNDS
