"""Bundles as files: packed to be carried, unpacked and checked in a cache of bounded size."""

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ergometer.core.errors import StoreError, UsageError
from ergometer.store.bundle import checked, manifest_of
from ergometer.store.home import cannot_write, home, write_json

_CACHE_BYTES = 8 << 30
_NAME = re.compile(r"(?:[\w.-]+/)?[\w.-]+")


def pack(directory: Path, path: Path) -> None:
    """One file of the directory; written beside its place and moved there when it is whole."""
    manifest = manifest_of(directory)
    names = sorted(str(item.relative_to(directory)) for item in directory.rglob("*") if item.is_file())
    names.remove("manifest.json")
    manifest["files"] = {name: [(directory / name).stat().st_size, _digest(directory / name)] for name in names}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("manifest.json", json.dumps(manifest, indent=1))
            for name in names:
                archive.write(directory / name, name)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def unpack(path: Path) -> Path:
    """The directory of a bundle file, checked and laid out in the cache."""
    try:
        with open(path, "rb") as file:
            key = hashlib.file_digest(file, "sha256").hexdigest()[:24]
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({(error.strerror or '').lower()}): check the path.") from error
    return cached(key, lambda directory: _extract(path, directory))


def _extract(path: Path, directory: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = checked(json.loads(archive.read("manifest.json")), path)
            files = manifest.get("files")
            if not isinstance(files, dict):
                raise StoreError(f"{path} is damaged: its manifest lists no files.")
            needed = sum(int(size) for size, _ in files.values())
            if needed > shutil.disk_usage(directory).free:
                raise StoreError(f"{path} needs {needed >> 20} MiB, more than the disk has: set ERGO_HOME to another.")
            for name, (size, digest) in files.items():
                _extract_one(archive, path, directory, name, size, digest)
            write_json(directory / "manifest.json", manifest)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise StoreError(f"{path} is not a bundle of Ergometer, or is damaged: make it again.") from error
    except OSError as error:
        raise cannot_write(directory, error) from error


def _extract_one(archive: zipfile.ZipFile, path: Path, directory: Path, name: str, size: int, digest: str) -> None:
    if not _NAME.fullmatch(name) or ".." in name.split("/"):
        raise StoreError(f"{path} is not a bundle of Ergometer: it holds a file {name!r}.")
    target = directory / name
    target.parent.mkdir(exist_ok=True)
    found, written = hashlib.sha256(), 0
    with archive.open(name) as source, open(target, "wb") as file:
        while chunk := source.read(min(1 << 20, size - written + 1)):
            written += len(chunk)
            if written > size:
                break
            found.update(chunk)
            file.write(chunk)
    if written != size or found.hexdigest() != digest:
        raise StoreError(f"{path} is damaged: {name} is not what its manifest says. Copy or make it again.")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached(key: str, fill: Any) -> Path:
    """The directory of this key in the cache, filled by `fill(directory)` if it is not there."""
    base = home() / "cache"
    directory = base / key
    if directory.is_dir():
        os.utime(directory)
        return directory
    try:
        base.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=base, prefix=".new-"))
    except OSError as error:
        raise cannot_write(base, error) from error
    try:
        fill(temporary)
        temporary.rename(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if not directory.is_dir():  # another process may have been faster
            raise
    _shrink(base, keep=directory)
    return directory


def _shrink(base: Path, keep: Path) -> None:
    """Forget what was used longest ago, until the rest is within the bound."""
    found = sorted((item for item in base.iterdir() if item.is_dir()), key=lambda item: -item.stat().st_mtime)
    total = 0
    for item in found:
        total += sum(file.stat().st_size for file in item.rglob("*") if file.is_file())
        if total > _CACHE_BYTES and item != keep:
            shutil.rmtree(item, ignore_errors=True)
