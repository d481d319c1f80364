"""The folder and files of a data set, and what is said when they are not as they should be."""

from importlib.util import find_spec
from pathlib import Path

from ergometer.core.dataset import Request
from ergometer.core.errors import StoreError, UnavailableError, UsageError
from ergometer.core.probe import Probe

_MODULES = {"pillow": "PIL", "ale-py": "ale_py"}


def probe_packages(extra: str, *packages: str) -> Probe:
    """Whether the packages of an extra are installed."""
    missing = [package for package in packages if find_spec(_MODULES.get(package, package)) is None]
    if not missing:
        return Probe(True, "built in")
    verb = "is" if len(missing) == 1 else "are"
    return Probe(False, f"{' and '.join(missing)} {verb} not installed", f"pip install 'ergometer[{extra}]'")


def need_packages(extra: str, *packages: str) -> None:
    found = probe_packages(extra, *packages)
    if not found.ok:
        raise UnavailableError(f"{found.reason}: {found.remedy}")


def need_folder(name: str, request: Request, layout: str) -> Path:
    """The folder of the request; an ErgoError if there is none."""
    if request.folder is None:
        raise UsageError(f"{name} needs a folder: give one with --data-dir that holds {layout}.")
    if not request.folder.is_dir():
        raise UsageError(f"{request.folder} is not a folder: give one with --data-dir that holds {layout}.")
    return request.folder


def need_file(folder: Path, *names: str) -> Path:
    """The first of the names that the folder has; StoreError if it has none of them."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise StoreError(
        f"{folder} has no {' or '.join(names)}: put it there, or leave out --data-dir and it is downloaded."
    )


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, its line ends as they are."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise damaged(path, "is not UTF-8 text") from error
    except OSError as error:
        raise cannot_read(path, error) from error


def damaged(path: Path, what: str) -> StoreError:
    """The error for a file whose content is wrong; what: the rest of a sentence that begins with its path."""
    return StoreError(f"{path} {what}: replace it, or delete it and run without --data-dir to download it again.")


def cannot_read(path: Path, error: OSError) -> StoreError:
    why = (error.strerror or str(error)).lower()
    return StoreError(f"cannot read {path} ({why}): make it readable, or give another folder with --data-dir.")
