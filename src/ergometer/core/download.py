"""Downloads of a data set's files: resumed where they stopped, checked, and moved into place in one step."""

import errno
import fcntl
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ergometer.core.dataset import File
from ergometer.core.errors import StoreError, UnavailableError

_TIMEOUT_S = 30.0
_PAUSES_S = (1.0, 2.0, 4.0)
_CHUNK_BYTES = 1 << 18
_TELL_S = 1.0


class _BrokenError(Exception):
    """The transfer failed in a way that another attempt may mend."""


def fetch(file: File, folder: Path, tell: Callable[[str], None]) -> Path:
    """The file in the folder, downloaded unless it is there already with the right size and checksum.

    A size of 0 or an empty checksum is one that nobody publishes: the first download's checksum then counts for
    all later ones. tell is called with progress, at most once a second.
    """
    path = folder / file.name
    try:
        if _is_right(path, file):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, tell):
            if _is_right(path, file):  # another process has fetched it meanwhile
                return path
            if path.exists():
                tell(f"{path} is not the file that is expected: downloading it again")
            _replace(path, file, tell)
    except OSError as error:
        raise _cannot_write(file, folder, error) from error
    return path


def _replace(path: Path, file: File, tell: Callable[[str], None]) -> None:
    part = path.with_name(f"{path.name}.part")
    _download(file, part, tell)
    expected, got = file.sha256 or _noted(path), _sha256(part)
    if got != (expected or got):
        part.unlink()
        pinned = "" if file.sha256 else f", or delete {_note(path)} if the file is meant to have changed"
        raise StoreError(
            f"{file.name} from {file.address} has the sha256 {got} where {expected} is expected, and is deleted: "
            f"try again{pinned}, or {_by_hand(file)}."
        )
    part.replace(path)
    _write_note(path, got)
    if not file.sha256:
        tell(f"{file.name}: no checksum is published; later downloads must agree with {_note(path).name}")


def _download(file: File, part: Path, tell: Callable[[str], None]) -> None:
    scheme = urlsplit(file.address).scheme
    if scheme not in ("http", "https", "file"):
        raise UnavailableError(f"cannot download {file.address} (neither http, https nor file): {_by_hand(file)}.")
    for pause_s in (*(_PAUSES_S if scheme != "file" else ()), None):
        try:
            _receive(file, part, tell)
            return
        except _BrokenError as error:
            if pause_s is None:
                raise UnavailableError(
                    f"cannot download {file.name} ({error}): check the network and try again, or, to go on offline, "
                    f"{_by_hand(file)}."
                ) from error
            tell(f"{file.name}: {error}; trying again in {pause_s:g} s")
            time.sleep(pause_s)


def _receive(file: File, part: Path, tell: Callable[[str], None]) -> None:
    # Without a checksum, two halves of different versions would not be noticed: such a file is never resumed.
    start = part.stat().st_size if file.sha256 and part.exists() else 0
    if file.size and start >= file.size:
        if start == file.size:
            return
        start = 0
    with _connect(file, part, start) as response:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            start = 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else file.size
        _check_size(file, total or file.size, part)
        _check_room(file, part.parent, total - start)
        tell(f"{file.name}: {'going on' if start else 'downloading'} from {file.address}")
        with open(part, "ab" if start else "wb") as out:
            done = start
            told_s = time.monotonic()
            while chunk := _read(response):
                out.write(chunk)
                done += len(chunk)
                if time.monotonic() - told_s >= _TELL_S:
                    told_s = time.monotonic()
                    tell(f"{file.name}: {_megabytes(done, total)}")
            out.flush()
            os.fsync(out.fileno())
    if done < total:
        raise _BrokenError(f"the connection ended after {_megabytes(done, total)}")
    _check_size(file, done, part)


def _connect(file: File, part: Path, start: int) -> Any:
    headers = {"User-Agent": "ergometer"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(file.address, headers=headers), timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answers {error.code} {error.reason}"
        if error.code == 416:
            part.unlink(missing_ok=True)
        if error.code in (408, 416, 429) or error.code >= 500:
            raise _BrokenError(answer) from error
        raise UnavailableError(f"cannot download {file.name} ({answer}): {_by_hand(file)}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(_why(error)) from error


def _read(response: Any) -> bytes:
    try:
        return bytes(response.read1(_CHUNK_BYTES))
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(_why(error)) from error


def _check_size(file: File, size: int, part: Path) -> None:
    if size != (file.size or size):
        part.unlink(missing_ok=True)
        raise StoreError(
            f"{file.address} has {size} bytes where {file.size} are expected, so it is not the file that was "
            f"published: try again later, or {_by_hand(file)}."
        )


def _check_room(file: File, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"{folder} has {free / 1e6:.0f} MB free and {file.name} needs {needed / 1e6:.0f} MB: free some space, or "
            "set ERGO_HOME to another disk."
        )


def _cannot_write(file: File, folder: Path, error: OSError) -> StoreError:
    why = (error.strerror or str(error)).lower()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space and run again (what has been downloaded is kept), or set ERGO_HOME to another disk"
    else:
        remedy = f"set ERGO_HOME to a directory that can be written, or {_by_hand(file)}"
    return StoreError(f"cannot keep {file.name} in {folder} ({why}): {remedy}.")


def _by_hand(file: File) -> str:
    return f"download {file.address} yourself into a folder as {file.name} and give that folder with --data-dir"


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)


def _megabytes(done: int, total: int) -> str:
    return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"


@contextmanager
def _locked(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Holds the folder's lock, which the kernel releases when its holder dies."""
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"another process is downloading into {folder}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_right(path: Path, file: File) -> bool:
    """Whether the file is there as published; hashed only if no note that is newer says so."""
    if not path.is_file() or path.stat().st_size != (file.size or path.stat().st_size):
        return False
    noted = _noted(path)
    if noted and noted == (file.sha256 or noted) and _note(path).stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return True
    got = _sha256(path)
    if got != (file.sha256 or noted or got):
        return False
    # In a folder that cannot be written the file is hashed again next time, which is all that the note saves.
    with suppress(OSError):
        _write_note(path, got)
    return True


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _noted(path: Path) -> str:
    try:
        return _note(path).read_text().partition(" ")[0].strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def _write_note(path: Path, sha256: str) -> None:
    _note(path).write_text(f"{sha256}  {path.name}\n")  # as sha256sum -c reads it


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
