"""What operations and tensors are called in MNN's file."""

UPDATE = "update::"
BACKWARD = "grad::"  # MNN's own prefix
# MNN lets others read what an operation wrote in place only if what it overwrites is named like this.
_SHARED = "_BN_RunningMean_Weight"


def stored(name: str) -> str:
    return name + _SHARED
