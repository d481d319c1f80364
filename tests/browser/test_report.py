"""The report in a browser: what it shows, that it can be used, and that nothing in it is taken for code."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergometer.core.spec import Spec
from tests.browser.conftest import OpenPage
from tests.conftest import Ergo
from tests.planted import plant

HOSTILE = '<script>document.title="taken"</script><img src=x onerror=alert(1)>"\'&'


def made(ergo: Ergo, tmp_path: Path, *runs: str) -> str:
    path = tmp_path / "report.html"
    done = ergo("report", *runs, "-o", str(path))
    assert done.returncode == 0, done.stderr
    return path.as_uri()


def reads(element: Any, start: str) -> None:
    """Waits until it does."""
    from playwright.sync_api import expect

    expect(element).to_have_text(re.compile("^" + re.escape(start)))


def test_a_run_from_verdict_to_timeline(
    ergo: Ergo, tmp_path: Path, open_page: OpenPage, keep: Callable[[Any, str], None]
) -> None:
    plant(ergo.home)
    page = open_page(made(ergo, tmp_path))
    assert "takes 10 ms" in page.inner_text(".verdict") and "40 % forward" in page.inner_text(".verdict")
    cards = page.inner_text(".cards")
    assert "10 ms" in cards and "~20 mJ" in cards
    assert "published: 14.5 ms (EMDL21: Huawei Mate 30, MNN)" in cards
    headings = page.locator("section > h3").all_inner_texts()
    assert headings[:5] == [
        "Step times",
        "Where a step goes",
        "What memory consists of",
        "Utilisation during the timed steps",
        "Timeline",
    ]
    assert page.locator("canvas").count() >= 5
    keep(page, "report-1280")


def test_how_a_number_was_obtained_is_shown_when_it_is_reached(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    plant(ergo.home)
    page = open_page(made(ergo, tmp_path))
    energy = page.locator(".card", has_text="Energy a step").locator(".number")
    energy.focus()
    shown = energy.evaluate("element => getComputedStyle(element, '::after').content")
    assert "estimated, not measured" in shown and "by a power model" in shown


def test_the_breakdown_is_opened_sorted_and_searched(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    plant(ergo.home)
    page = open_page(made(ergo, tmp_path))
    tree = page.locator(".tree tbody")
    assert "aten::mm" not in tree.inner_text()
    tree.get_by_role("button", name="fc1").click()
    assert "aten::mm" in tree.inner_text()
    page.get_by_role("button", name="phase, layer, operation").click()
    layers = tree.locator(".depth1 td:first-child").all_inner_texts()
    names = [re.sub(r"^[▸▾] ", "", text) for text in layers]
    assert names.index("conv1") < names.index("fc1")
    page.get_by_role("searchbox").fill("convolution")
    assert "fc1" not in tree.inner_text() and "aten::convolution_backward" in tree.inner_text()
    page.get_by_role("searchbox").fill("no such thing")
    assert "nothing is called that" in tree.inner_text()


def test_the_timeline_is_moved_with_keys_buttons_and_the_pointer(
    ergo: Ergo, tmp_path: Path, open_page: OpenPage
) -> None:
    plant(ergo.home)
    page = open_page(made(ergo, tmp_path))
    where = page.locator(".timeline .where")
    reads(where, "0.00 to 10.00 s")
    page.locator(".charts").focus()
    page.keyboard.press("+")
    reads(where, "2.50 to 7.50 s")
    page.keyboard.press("ArrowRight")
    reads(where, "3.75 to 8.75 s")
    page.get_by_role("button", name="the timed steps").click()
    reads(where, "1.00 to 9.00 s")
    box = page.locator(".timeline .u-over").first
    box.scroll_into_view_if_needed()
    area = box.bounding_box()
    page.mouse.move(area["x"] + area["width"] * 0.25, area["y"] + 40)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.5, area["y"] + 50, steps=4)
    page.mouse.up()
    reads(where, "3.0")
    box.dblclick()
    reads(where, "0.00 to 10.00 s")


def test_a_line_shows_what_was_sampled(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    """What is drawn is the mean of what was planted."""
    import numpy as np

    from ergometer.store.samples import Samples

    record = plant(ergo.home)
    page = open_page(made(ergo, tmp_path))
    planted = Samples.load(ergo.home / "runs" / record.id / "samples.npz").timelines[0].values[:, 0]
    page.wait_for_function("document.querySelector('.timeline').timeline?.charts.length > 0")
    drawn = page.evaluate("document.querySelector('.timeline').timeline.charts[0].plot.data[1]")
    values = [value for value in drawn if value is not None]
    assert np.mean(values) == pytest.approx(planted.mean(), rel=0.02)
    lowest = page.evaluate("document.querySelector('.timeline').timeline.charts[0].plot.data[2]")
    assert min(value for value in lowest if value is not None) == pytest.approx(planted.min(), abs=0.01)


def test_several_runs_are_shown_over_what_differs(
    ergo: Ergo, tmp_path: Path, open_page: OpenPage, keep: Callable[[Any, str], None]
) -> None:
    for number, (batch, engine) in enumerate([(1, "torch"), (4, "torch"), (16, "torch"), (1, "mnn"), (4, "mnn")]):
        spec = Spec(model="lenet", batch=batch, engine=engine)
        plant(ergo.home, f"20261101-000000-b{number}00", spec=spec, seconds=2, step_s=0.004 * batch**0.5)
    page = open_page(made(ergo, tmp_path, "model=lenet"))
    assert page.inner_text(".verdict").startswith("5 runs")
    assert page.locator("#sweep canvas").count() == 4
    assert page.locator("#sweep select option").all_inner_texts() == ["batch", "engine"]
    newest = page.locator("#sweep .legend li").all_inner_texts()
    assert newest[:2] == ["torch", "mnn"]
    page.locator("#sweep select").select_option("engine")
    assert page.locator("#sweep .bars li").count() == 4 * 5
    page.locator("tbody a").first.click()
    page.wait_for_selector("details[open] .timeline canvas")
    keep(page, "sweep-1280")


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_and_in_the_dark_nothing_is_cut_off(
    ergo: Ergo, tmp_path: Path, open_page: OpenPage, keep: Callable[[Any, str], None], dark: bool
) -> None:
    plant(ergo.home)
    for width in (390, 1280):
        page = open_page(made(ergo, tmp_path), width=width, dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is not dark
        keep(page, f"report-{width}-{'dark' if dark else 'light'}")


def test_it_prints_with_everything_open(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    plant(ergo.home)
    page = open_page(made(ergo, tmp_path), dark=True)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("[...document.querySelectorAll('details')].every(item => item.open)")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 20_000


def test_a_hostile_name_stays_a_name(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    plant(ergo.home, spec=Spec(model=HOSTILE, batch=2), prefix=HOSTILE)
    page = open_page(made(ergo, tmp_path))
    assert page.title() == "Ergometer"
    assert HOSTILE in page.inner_text("h2") and HOSTILE in page.inner_text(".tree")
    assert page.locator("img").count() == 0 and page.locator("script").count() == 3


def test_what_is_left_of_a_run_is_shown(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    record = plant(ergo.home)
    (ergo.home / "runs" / record.id / "samples.npz").unlink()
    spans = ergo.home / "runs" / record.id / "spans.npz"
    spans.write_bytes(spans.read_bytes()[:200])
    path = tmp_path / "left.html"
    done = ergo("report", "-o", str(path))
    assert done.returncode == 0 and "samples.npz is missing" in done.stderr and "spans.npz is damaged" in done.stderr
    page = open_page(path.as_uri())
    warnings = page.inner_text(".warnings")
    assert "samples.npz is missing" in warnings and "spans.npz is damaged" in warnings
    assert str(ergo.home) not in page.content()
    assert "10 ms" in page.inner_text(".cards") and page.locator("#timeline").count() == 0


def test_ten_minutes_fit_into_six_megabytes(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    plant(ergo.home, seconds=600, channels=24)
    url = made(ergo, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 6e6
    assert open_page(url).locator(".timeline canvas").count() == 3


def test_an_hour_at_100_hz_is_moved_without_a_visible_wait(ergo: Ergo, tmp_path: Path, open_page: OpenPage) -> None:
    plant(ergo.home, seconds=3600, channels=12, step_s=0.2)
    page = open_page(made(ergo, tmp_path))
    page.wait_for_function("document.querySelector('.timeline').timeline?.charts.length > 0")
    took = page.evaluate(
        """() => {
          const timeline = document.querySelector('.timeline').timeline;
          return [[0, 3600], [100, 2000], [500, 520], [0, 1800]].map(([from, to]) => {
            timeline.look(from, to);
            const start = performance.now();
            timeline.draw();
            return performance.now() - start;
          });
        }"""
    )
    assert sorted(took)[len(took) // 2] < 100, took


def test_bad_input_is_one_sentence(ergo: Ergo, tmp_path: Path) -> None:
    target = str(tmp_path / "r.html")
    for arguments, words in (
        (("report", "-o", target), "no run 'last'"),
        (("report", "model=lenet", "-o", target), "no run matches"),
        (("report", "-o", str(tmp_path / "none" / "r.html")), "cannot be written"),
    ):
        done = ergo(*arguments)
        assert done.returncode and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.glob("*.html"))
    plant(ergo.home)
    started = time.monotonic()
    assert ergo("report", "-o", "/dev/full").returncode and time.monotonic() - started < 30
