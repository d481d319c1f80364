"""Where Ergometer keeps what it has measured, and how a run directory is written."""

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from ergometer.core.errors import StoreError

PROGRESS = "progress.json"  # in the directory of a run that goes on
_NEEDED_BYTES = 32 << 20


def home() -> Path:
    """ERGO_HOME, or ergometer under the user's data directory."""
    if os.environ.get("ERGO_HOME"):
        return Path(os.environ["ERGO_HOME"]).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(data) / "ergometer"


def cannot_write(path: Path, error: OSError) -> StoreError:
    remedy = "free some space there, or " if error.errno == errno.ENOSPC else ""
    why = (error.strerror or str(error)).lower()
    return StoreError(f"cannot write to {path} ({why}): {remedy}set ERGO_HOME to a directory that can be written.")


def make_run_directory(base: Path, run_id: str) -> Path:
    """An empty directory for one run, after a check that the disk has room for its samples."""
    directory = base / "runs" / run_id
    try:
        directory.mkdir(parents=True)
        place = os.statvfs(directory)
        free = place.f_bavail * place.f_frsize
    except OSError as error:
        raise cannot_write(base, error) from error
    if free < _NEEDED_BYTES:
        directory.rmdir()
        raise StoreError(
            f"{base} has {free >> 20} MiB free and a run needs {_NEEDED_BYTES >> 20} MiB: free some space, or set "
            "ERGO_HOME to another disk."
        )
    return directory


def write_json(path: Path, value: Any, *, lasting: bool = True) -> None:
    """Replace the file in one step: a reader or a crash never sees half of it. lasting: it survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


class Lock:
    """An exclusive lock that the kernel releases when its holder dies, however it dies."""

    def __init__(self, path: Path):
        self.path = path
        self._file: IO[str] | None = None

    def acquire(self, *, wait: bool) -> bool:
        try:
            file = open(self.path, "a+")
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock at path."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
