"""The one clock: CLOCK_MONOTONIC, in nanoseconds, shared by every process of a run."""

import time

now_ns = time.monotonic_ns


def realtime_offset_ns() -> int:
    """What to add to a CLOCK_REALTIME stamp to get a monotonic one, now.

    The pair is read several times and the one with the shortest gap kept, so that a preemption
    between the two reads does not end up in the offset.
    """
    best_gap, best_offset = 1 << 62, 0
    for _ in range(5):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_gap:
            best_gap, best_offset = after - before, (before + after) // 2 - real
    return best_offset
