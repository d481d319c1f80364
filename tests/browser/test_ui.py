"""The local page in a browser: filter, open, compare, watch; and who is refused."""

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ergometer.core.spec import Spec
from ergometer.store.database import Store
from tests.browser.conftest import OpenPage
from tests.conftest import Ergo
from tests.planted import plant, record_of

Serve = Callable[[], str]


@pytest.fixture
def serve(ergo: Ergo) -> Iterator[Serve]:
    started: list[subprocess.Popen[str]] = []

    def served() -> str:
        process = ergo.start("ui")
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    yield served
    for process in started:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0 and not said, said


def test_filter_open_and_compare(
    ergo: Ergo, serve: Serve, open_page: OpenPage, keep: Callable[[Any, str], None]
) -> None:
    plant(ergo.home, "20261101-000000-a001", seconds=3)
    plant(ergo.home, "20261101-000000-a002", seconds=3, step_s=0.02)
    plant(ergo.home, "20261101-000000-a003", seconds=3, spec=Spec(model="alexnet", batch=2))
    page = open_page(serve())
    assert page.locator("tbody tr").count() == 3
    page.get_by_role("searchbox").fill("lenet batch=16")
    assert page.locator("tbody tr").count() == 2 and "2 of 3" in page.inner_text("output")
    page.get_by_role("searchbox").fill("")
    page.get_by_label("plot").check()
    lenet = page.locator("#sweep figure", has_text="Step time").locator("li", has_text="lenet")
    page.locator("#sweep select").select_option("model")
    assert "20 ms" in lenet.inner_text(), "of two runs with the same settings, the newer"
    page.get_by_label("plot").uncheck()
    page.get_by_role("searchbox").fill("lenet batch=16")
    keep(page, "ui-list-1280")
    page.locator("tbody tr").nth(1).get_by_role("checkbox").check()
    page.locator("tbody tr").nth(0).get_by_role("checkbox").check()
    page.get_by_role("button", name="compare the two").click()
    page.wait_for_selector(".comparison")
    step = page.locator(".comparison tr", has_text="step_time").inner_text()
    assert "2.000" in step and "slower" in step
    assert "~20 mJ" in page.locator(".comparison tr", has_text="energy_per_step").inner_text()
    keep(page, "ui-compare-1280")
    page.go_back()
    page.wait_for_selector("tbody tr")
    page.locator("tbody a").first.click()
    page.wait_for_selector("article.run .timeline canvas")
    assert "takes 20 ms" in page.inner_text(".verdict")
    with page.expect_download() as saved:
        page.get_by_role("link", name="save the trace for Perfetto").click()
    assert len(json.loads(Path(saved.value.path()).read_text())["traceEvents"]) > 100


def test_what_cannot_be_compared_is_said(ergo: Ergo, serve: Serve, open_page: OpenPage) -> None:
    plant(ergo.home, seconds=2)
    url = serve()
    answer = asked(url, f"/api/compare?{urlsplit(url).query}&a=nothing&b=last")
    assert answer.status == 400 and "no run 'nothing'" in json.loads(answer.body)["error"]


def test_ten_thousand_records_open_and_filter_at_once(
    ergo: Ergo, serve: Serve, open_page: OpenPage, keep: Callable[[Any, str], None]
) -> None:
    with Store(ergo.home) as store:
        store.take(
            [
                record_of(
                    f"20261101-000000-{number:05d}",
                    Spec(model=("lenet", "alexnet")[number % 2], batch=1 + number % 64),
                    0.001 + number * 1e-6,
                )
                for number in range(10_000)
            ]
        )
    started = time.monotonic()
    page = open_page(serve())
    assert "10000 of 10000" in page.inner_text("output") and time.monotonic() - started < 6
    took = page.evaluate(
        """() => {
          const search = document.querySelector('input[type=search]');
          return ['lenet', 'lenet batch=15', 'alexnet', ''].map((words) => {
            search.value = words;
            const start = performance.now();
            search.dispatchEvent(new Event('input'));
            return performance.now() - start;
          });
        }"""
    )
    assert sorted(took)[2] < 150, took
    page.get_by_role("searchbox").fill("lenet batch=15")
    assert "156 of 10000" in page.inner_text("output") or "157 of 10000" in page.inner_text("output")
    page.get_by_label("plot").check()
    page.wait_for_selector(".tools")
    keep(page, "ui-many-1280")


def test_a_running_measurement_is_watched(
    ergo: Ergo, serve: Serve, open_page: OpenPage, keep: Callable[[Any, str], None]
) -> None:
    run = ergo.start("run", "lenet", "--batch", "8", "--threads", "1", "--steps", "4000", "--trace-steps", "0")
    page = open_page(serve())
    page.wait_for_selector("tbody tr:has-text('running')")
    page.locator("tbody a").first.click()
    page.wait_for_selector("text=stage timed")
    page.wait_for_selector("text=samples a second")
    seen = page.inner_text(".verdict")
    page.wait_for_function("text => document.querySelector('.verdict').textContent !== text", arg=seen)
    keep(page, "ui-live-1280")
    steps = [int(re.search(r"step (\d+)", text)[1]) for text in (seen, page.inner_text(".verdict")) if "step " in text]  # type: ignore[index]
    assert steps == sorted(steps)
    page.wait_for_selector(".cards", timeout=90_000)
    assert "A training step" in page.inner_text(".verdict")
    run.communicate(timeout=60)
    assert run.returncode == 0
    assert not list(ergo.home.glob("runs/*/progress.json"))


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


def asked(url: str, path: str, method: str = "GET", **headers: str) -> Answer:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        with connection.getresponse() as answer:
            return Answer(answer.status, answer.read())


def test_without_the_token_or_from_elsewhere_nothing_is_served(ergo: Ergo, serve: Serve) -> None:
    plant(ergo.home, seconds=2)
    url = serve()
    query = urlsplit(url).query
    assert urlsplit(url).hostname == "127.0.0.1"
    assert asked(url, f"/?{query}").status == 200
    assert asked(url, "/").status == 403 and asked(url, "/api/runs?token=guess").status == 403
    assert asked(url, f"/api/runs?{query}", Host="evil.example:80").status == 403
    for method in ("POST", "PUT", "DELETE"):
        assert asked(url, f"/api/runs?{query}", method).status == 501
    for path in ("/../ergometer.db", "/runs/..%2f..%2fetc.html", "/ergometer.db", "/api/runs/..", "/runs/none.html"):
        answer = asked(url, f"{path}?{query}")
        assert answer.status == 400 and b"error" in answer.body
    before = (ergo.home / "ergometer.db").read_bytes()
    assert asked(url, f"/api/runs?{query}").status == 200
    assert (ergo.home / "ergometer.db").read_bytes() == before


def test_a_port_in_use_and_one_that_is_none(ergo: Ergo, serve: Serve) -> None:
    port = str(urlsplit(serve()).port)
    for wrong in (port, "99999"):
        done = ergo("ui", "--port", wrong)
        assert done.returncode == 2 and "--port" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_store_without_runs_says_how_to_begin(serve: Serve, open_page: OpenPage) -> None:
    assert "ergo run lenet" in open_page(serve()).inner_text("#app")


def test_records_of_a_newer_version_are_listed_and_named(ergo: Ergo, serve: Serve, open_page: OpenPage) -> None:
    record = plant(ergo.home, seconds=2)
    with Store(ergo.home) as store:
        newer = json.dumps(record.to_json() | {"format": 99})
        with store._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE runs SET record = ?", (newer,))
    url = serve()
    page = open_page(url)
    assert page.locator("tbody tr").count() == 1
    answer = asked(url, f"/api/runs/{record.id}?{urlsplit(url).query}")
    assert answer.status == 400 and "upgrade ergometer" in json.loads(answer.body)["error"]
