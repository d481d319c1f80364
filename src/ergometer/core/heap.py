"""The C library's heap. Of itself it gives large freed blocks back to the system, and takes them anew, page by page, in
every step; whether it does so with the others depends on how they happen to lie."""

import ctypes
import platform

_NEVER_TRIM = (-1, -1)  # M_TRIM_THRESHOLD of mallopt(3)
_NEVER_MAP = (-4, 0)  # M_MMAP_MAX


def is_glibc() -> bool:
    """Whether what is here can be done."""
    return platform.libc_ver()[0] == "glibc"


def keep_freed_memory() -> None:
    """From now on, for the next allocations."""
    for setting in (_NEVER_TRIM, _NEVER_MAP):
        ctypes.CDLL(None).mallopt(*setting)


def return_freed_memory() -> None:
    """Once, whatever is free now."""
    ctypes.CDLL(None).malloc_trim(0)
