"""Downloads against a server on this machine: whole, resumed, damaged, refused, interrupted."""

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from ergometer.core import download
from ergometer.core.dataset import File
from ergometer.core.download import fetch
from ergometer.core.errors import ErgoError, StoreError, UnavailableError

CONTENT = os.urandom(1_500_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves one file; how it misbehaves is set by its attributes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges = True
        self.lengths = True
        self.cuts: list[int] = []  # after so many bytes the connection ends, once each
        self.statuses: list[int] = []  # answered instead, once each
        self.asked: list[str | None] = []  # the Range of each request

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(wanted)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        body = server.content[start:]
        if start:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        else:
            self.send_response(200)
        if server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):  # a client that has gone
            self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(download, "_TIMEOUT_S", 5.0)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(5)


def described(server: Server, sha256: str = SHA256, size: int = len(CONTENT)) -> File:
    return File(name="data.bin", address=server.address, sha256=sha256, size=size)


def refused(kind: type[ErgoError], file: File, folder: Path) -> str:
    """The sentence that fetch fails with."""
    with pytest.raises(kind) as caught:
        fetch(file, folder, print)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".") and "data.bin" in sentence
    return sentence


def test_a_whole_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    told: list[str] = []
    path = fetch(described(server), tmp_path / "new/folder", told.append)
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "data.bin", "data.bin.sha256"]
    assert path.with_name("data.bin.sha256").read_text() == f"{SHA256}  data.bin\n"
    assert any(server.address in line for line in told)
    assert fetch(described(server), path.parent, told.append) == path
    assert len(server.asked) == 1


def test_a_noted_checksum_saves_hashing_until_the_file_changes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(described(server), tmp_path, print)
    with monkeypatch.context() as patch:
        patch.setattr(download, "_sha256", lambda path: pytest.fail("hashed again"))
        fetch(described(server), tmp_path, print)
    later = time.time_ns() + 10**9
    path.write_bytes(bytes(len(CONTENT)))
    os.utime(path, ns=(later, later))
    told: list[str] = []
    fetch(described(server), tmp_path, told.append)
    assert path.read_bytes() == CONTENT and len(server.asked) == 2
    assert any("not the file that is expected" in line for line in told)


def test_a_file_put_there_by_hand_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(CONTENT)
    fetch(described(server), tmp_path, print)
    assert not server.asked and (tmp_path / "data.bin.sha256").exists()


def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [400_000, 300_000]
    told: list[str] = []
    assert fetch(described(server), tmp_path, told.append).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-", "bytes=700000-"]
    assert any("0.4 of 1.5 MB" in line and "trying again" in line for line in told)


def test_a_server_that_ignores_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [400_000]
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-"]


def test_a_part_that_the_server_cannot_resume_is_dropped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    server.statuses = [416]
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-", None]


def test_a_whole_part_needs_no_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT
    assert not server.asked


def test_it_gives_up_after_three_more_attempts_and_keeps_the_part(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000] * 4
    sentence = refused(UnavailableError, described(server), tmp_path)
    assert "0.4 of 1.5 MB" in sentence and "--data-dir" in sentence and server.address in sentence
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:400_000]
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=400000-"


def test_a_wrong_checksum_deletes_the_part(server: Server, tmp_path: Path) -> None:
    sentence = refused(StoreError, described(server, sha256="0" * 64), tmp_path)
    assert SHA256 in sentence and "0" * 64 in sentence and "--data-dir" in sentence
    assert not (tmp_path / "data.bin").exists() and not (tmp_path / "data.bin.part").exists()


def test_a_part_of_another_file_is_found_out(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(bytes(1000))
    refused(StoreError, described(server), tmp_path)
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT


@pytest.mark.parametrize("lengths", [True, False])
def test_another_size_than_stated(server: Server, tmp_path: Path, lengths: bool) -> None:
    server.lengths = lengths
    sentence = refused(StoreError, described(server, size=len(CONTENT) - 1), tmp_path)
    assert str(len(CONTENT)) in sentence
    assert not (tmp_path / "data.bin").exists() and not (tmp_path / "data.bin.part").exists()


def test_without_a_length_the_end_is_the_end(server: Server, tmp_path: Path) -> None:
    server.lengths = False
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT


def test_a_missing_file_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.statuses = [404]
    assert "404" in refused(UnavailableError, described(server), tmp_path)
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT


def test_no_network(tmp_path: Path, server: Server) -> None:
    file = described(server)
    server.shutdown()
    server.server_close()
    sentence = refused(UnavailableError, file, tmp_path)
    assert "Connection refused" in sentence and "offline" in sentence and "--data-dir" in sentence


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.bin.part").symlink_to("/dev/full")
    sentence = refused(StoreError, described(server), tmp_path)
    assert "no space left" in sentence and "ERGO_HOME" in sentence
    (tmp_path / "data.bin.part").unlink()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    assert "1 MB free" in refused(StoreError, described(server), tmp_path)


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "ERGO_HOME" in refused(StoreError, described(server), tmp_path / "file/folder")


def test_an_interrupted_download_goes_on(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_TELL_S", 0.0)

    def stop(line: str) -> None:
        if " MB" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(described(server), tmp_path, stop)
    kept = (tmp_path / "data.bin.part").stat().st_size
    assert 0 < kept < len(CONTENT)
    assert fetch(described(server), tmp_path, print).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={kept}-"


def test_progress_is_told_at_most_once_a_second(server: Server, tmp_path: Path) -> None:
    told: list[str] = []
    began_s = time.monotonic()
    fetch(described(server), tmp_path, told.append)
    assert len([line for line in told if " MB" in line]) <= time.monotonic() - began_s


def test_two_processes_do_not_write_one_part(server: Server, tmp_path: Path) -> None:
    waiting = threading.Event()
    worker = threading.Thread(target=fetch, args=(described(server), tmp_path, lambda line: waiting.set()), daemon=True)
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        worker.start()
        assert waiting.wait(5)
        assert not server.asked
        (tmp_path / "data.bin").write_bytes(CONTENT)  # as the other process would
    worker.join(5)
    assert not worker.is_alive() and not server.asked


def test_without_a_published_checksum_the_first_download_counts(server: Server, tmp_path: Path) -> None:
    told: list[str] = []
    file = described(server, sha256="", size=0)
    server.cuts = [1000]
    path = fetch(file, tmp_path, told.append)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, None]  # never resumed
    assert any("no checksum is published" in line for line in told)
    path.unlink()
    server.content = bytes(1000)
    sentence = refused(StoreError, file, tmp_path)
    assert SHA256 in sentence and "data.bin.sha256" in sentence
    (tmp_path / "data.bin.sha256").unlink()
    assert fetch(file, tmp_path, print).read_bytes() == bytes(1000)


def test_file_addresses(tmp_path: Path) -> None:
    (tmp_path / "source.bin").write_bytes(CONTENT)
    address = (tmp_path / "source.bin").as_uri()
    file = File(name="data.bin", address=address, sha256=SHA256, size=len(CONTENT))
    assert fetch(file, tmp_path / "cache", print).read_bytes() == CONTENT
    (tmp_path / "source.bin").unlink()
    refused(UnavailableError, file, tmp_path / "other")
    refused(UnavailableError, File(name="data.bin", address="ftp://x/y", sha256="", size=0), tmp_path / "other")
