"""The layout of the sampler's raw file, shared by the process that writes it and the code that reads it."""

import struct

# Format 1 (2026-11): the first.
FORMAT = 1
TICK = struct.Struct("<qBH")  # monotonic ns, group, number of entries
ENTRY = struct.Struct("<HH")  # source, length of the bytes that follow
LOST = 0xFFFF
