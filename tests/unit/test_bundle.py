"""Bundles: whole, or refused in one sentence; nothing in them is executed."""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ergometer.core import registry
from ergometer.core.errors import StoreError, UsageError
from ergometer.store import bundle_file
from ergometer.store.bundle import add_graph, begin, manifest_of, model_in, open_graph
from ergometer.store.bundle_file import cached, pack, unpack
from tests.unit.test_graph import graph


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    begin(folder, "mnn", registry.load("models", "lenet"))
    own = add_graph(
        folder, "train", 2, graph(), {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}, {"parameters": 1}
    )
    (own / "net.mnn").write_bytes(b"engine")
    return folder


@pytest.fixture
def packed(directory: Path, tmp_path: Path, home: Path) -> Path:
    path = tmp_path / "net.ergo"
    pack(directory, path)
    return path


def test_a_bundle_comes_out_as_it_went_in(packed: Path) -> None:
    found = unpack(packed)
    lowered = open_graph(found, "train", 2)
    assert lowered.graph == graph()
    np.testing.assert_array_equal(lowered.arrays["w"], np.arange(12).reshape(4, 3))
    assert (lowered.folder / "net.mnn").read_bytes() == b"engine"
    assert model_in(found).fields() == registry.load("models", "lenet").fields()
    assert unpack(packed) == found


def test_equal_arrays_are_kept_once(directory: Path) -> None:
    add_graph(directory, "train", 4, graph(), {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}, {})
    assert len(list((directory / "arrays").iterdir())) == 1


def test_another_batch_size_names_those_that_there_are(packed: Path) -> None:
    found = unpack(packed)
    with pytest.raises(UsageError, match="choose --batch 2"):
        open_graph(found, "train", 16)
    with pytest.raises(UsageError, match="choose --mode train"):
        open_graph(found, "infer", 2)


def rewritten(path: Path, **changes: Any) -> Path:
    """The bundle with other manifest entries or files."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    manifest |= changes.pop("manifest", {})
    for name, content in changes.pop("files", {}).items():
        files[name] = content
        manifest["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
    files |= changes.pop("silently", {})
    files["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"manifest": {"format": 99}}, "bundle format 99"),
        ({"manifest": {"model": None}}, "describes no model"),
        ({"manifest": {"files": None}}, "lists no files"),
        ({"files": {"../../evil": b"x"}}, "evil"),
        ({"files": {"/etc/evil": b"x"}}, "evil"),
        ({"files": {"a/b/c": b"x"}}, "a/b/c"),
        ({"files": {"..": b"x"}}, r"'\.\.'"),
        ({"silently": {"train-2/net.mnn": b"changed"}}, "not what its manifest says"),
        ({"manifest": {"files": {"train-2/net.mnn": [1 << 60, "0"]}}}, "more than the disk has"),
        ({"manifest": {"files": {"train-2/net.mnn": [3, "0"]}}}, "not what its manifest says"),
        ({"manifest": {"files": {"nowhere": [3, "0"]}}}, "is damaged"),
        ({"manifest": {"files": {"train-2/net.mnn": "?"}}}, "is damaged"),
    ],
)
def test_a_foreign_or_hostile_bundle_is_refused(changes: dict[str, Any], words: str, packed: Path, home: Path) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        unpack(rewritten(packed, **changes))
    assert "\n" not in str(caught.value)
    assert not [path for path in (home / "cache").iterdir() if not path.name.startswith(".")]
    assert not list(home.parent.rglob("evil"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half", b"#!/bin/sh\nexit\n"])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path, home: Path) -> None:
    path = tmp_path / "foreign.ergo"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not a bundle"):
        unpack(path)


def test_a_truncated_bundle_is_refused(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(StoreError, match="not a bundle of Ergometer, or is damaged"):
        unpack(packed)


def test_a_missing_file_is_a_wrong_request(tmp_path: Path, home: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        unpack(tmp_path / "absent.ergo")


def test_pickled_arrays_are_never_loaded(packed: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("code of a bundle was executed",))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(packed) as archive:
        (name,) = [entry for entry in archive.namelist() if entry.startswith("arrays/")]
    found = unpack(rewritten(packed, files={name: buffer.getvalue()}))
    with pytest.raises(StoreError, match="is damaged"):
        open_graph(found, "train", 2).arrays["w"]


def test_a_graph_with_an_unknown_operation_is_refused(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        text = archive.read("train-2/graph.json").decode().replace('"linear"', '"system"')
    with pytest.raises(StoreError, match="'system'"):
        open_graph(unpack(rewritten(packed, files={"train-2/graph.json": text.encode()})), "train", 2)


def test_writing_where_it_cannot_leaves_nothing(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        pack(directory, tmp_path / "absent" / "net.ergo")
    assert not list(tmp_path.glob("**/.net.ergo*"))


def test_a_failed_filling_leaves_nothing_in_the_cache(home: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise StoreError("no")

    with pytest.raises(StoreError):
        cached("key", fail)
    assert list((home / "cache").iterdir()) == []


def test_the_cache_forgets_what_was_used_longest_ago(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_file, "_CACHE_BYTES", 250)
    for number in range(4):
        cached(f"k{number}", lambda folder: (folder / "f").write_bytes(b"x" * 100))
        __import__("os").utime(home / "cache" / f"k{number}", (number, number))
    assert sorted(path.name for path in (home / "cache").iterdir()) == ["k2", "k3"]


def test_the_manifest_says_for_which_engine(packed: Path) -> None:
    assert manifest_of(unpack(packed))["engine"] == "mnn"
