"""The files of a data set: the user's own folder, or the cache, filled by a download where needed."""

from collections.abc import Callable
from pathlib import Path

from ergometer.core.dataset import Dataset
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.store.home import home


def folder_of(dataset: Dataset, given: str | None) -> Path | None:
    """Where the files of the data set are, or will be once they are downloaded; None if it reads none."""
    if given is not None:
        return Path(given)
    return home() / "data" / dataset.name if dataset.files else None


def make_ready(dataset: Dataset, given: str | None, tell: Callable[[str], None]) -> None:
    """Download what is missing, before anything is measured."""
    from ergometer.core.download import fetch  # the worker needs only the folder: it must not hold http and ssl

    probe = dataset.probe()
    if not probe.ok:
        raise UnavailableError(f"data set {dataset.name} does not work here, {probe.reason}: {probe.remedy}.")
    if given is not None:
        if not dataset.layout:
            raise UsageError(f"data set {dataset.name} reads no folder: leave out --data-dir.")
        if not Path(given).is_dir():
            raise UsageError(f"--data-dir {given} is not a folder: name one with {dataset.layout}.")
    elif dataset.files:
        for file in dataset.files:
            fetch(file, home() / "data" / dataset.name, tell)
    elif dataset.layout:
        raise UsageError(f"data set {dataset.name} needs --data-dir: a folder with {dataset.layout}.")
