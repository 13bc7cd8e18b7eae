"""The pages in a real browser: no request leaves them, no error, no sideways scroll, readable, and axe-core is content.

`make browser` installs Chromium and axe-core and runs this; elsewhere it is skipped.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from packages import ROOT

sys.path.append(str(ROOT / "tools"))
import browser

MUST = os.environ.get("DPSRM_BROWSER") == "1" and shutil.which("apt-get") is not None
pytestmark = pytest.mark.skipif(
    not browser.available() and not MUST, reason="no Chromium or axe-core: make browser installs them where apt-get is"
)
PAGES = ("report", "private", "none", "reproduction")
VIEWS = [(width, scheme) for width in (400, 1280) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a run with everything in it, of one without a guarantee, and of the reproduction."""
    import torch
    from torch import nn

    from dpsrm.gradients import binary_loss
    from dpsrm.report import write_private_report
    from dpsrm.training import Privacy, Settings, Statement, Training, train

    inputs = torch.nn.functional.normalize(torch.randn(2000, 5, generator=torch.Generator().manual_seed(0)))
    data, folder = (inputs, (inputs[:, 0] > 0).long()), tmp_path_factory.mktemp("pages")
    training = Training(batch=100, steps=60, learning_rate=2.0)
    runs = {}
    for name, promise in (("run", Privacy(epsilon=2.0, delta=1e-5)), ("none", None)):
        settings = Settings(privacy=promise, training=training, statement=Statement(purpose="W" * 300))
        runs[name] = train(nn.Linear(5, 1), binary_loss, data, settings, out=folder / name).folder
    test = {"log_loss": 0.5, "auc": 0.8, "error": 0.2}
    widths = dict.fromkeys(test, 0.01)
    figures = {"test": test, "reference": test, "test_half_width": widths, "reference_half_width": widths}
    runs["run"].write_json(runs["run"].private / "metrics.json", figures)
    write_private_report(runs["run"])
    return {
        "report": runs["run"].report,
        "private": runs["run"].private_report,
        "none": runs["none"].report,
        "reproduction": ROOT / "docs" / "report.html",
    }


@pytest.fixture(scope="module")
def driver():
    with browser.chromium() as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_in_a_browser(name, width, scheme, pages, driver):
    browser.requested(driver)
    driver.get_log("browser")
    browser.open_page(driver, pages[name], width=width, scheme=scheme)
    asked = [address for address in browser.requested(driver) if not address.startswith(("data:", "about:"))]
    assert asked == [pages[name].resolve().as_uri()]
    assert driver.get_log("browser") == []
    whole, seen = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert whole <= seen == width
    charts = driver.execute_script(
        "return [...document.querySelectorAll('svg')].filter(s => !s.closest('details')).map(s => {"
        "const box = s.getBoundingClientRect(), text = s.querySelector('text').getBoundingClientRect();"
        "return [box.width, box.height, box.right, text.height]})"
    )
    assert len(charts) == {"report": 3, "private": 4, "none": 0}.get(name, len(charts))
    for across, tall, right, letters in charts:
        assert across > 300
        assert tall > 150
        assert right <= width
        assert letters >= 11, "legible at 400 px"
    assert driver.execute_script("return document.querySelectorAll('main').length") == 1
    assert browser.violations(driver) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_printed(name, pages, driver):
    import base64

    browser.open_page(driver, pages[name], width=1280, scheme="light")
    pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 10_000


def test_an_error_and_a_request_would_be_seen(driver, tmp_path):
    """The test of the tests: a page with an image from elsewhere, a wide box and grey on grey."""
    page = Path(tmp_path / "bad.html")
    page.write_text(
        "<title>x</title><img src='file:///nowhere.png'><p style='width:2000px;color:#999;background:#aaa'>grey</p>"
        "<script>nothing()</script>"
    )
    browser.requested(driver)
    driver.get_log("browser")
    browser.open_page(driver, page, width=400, scheme="light")
    assert "file:///nowhere.png" in browser.requested(driver)
    assert driver.get_log("browser")
    assert driver.execute_script("return document.documentElement.scrollWidth") > 400
    found = " ".join(browser.violations(driver))
    assert "color-contrast" in found
    assert "image-alt" in found
