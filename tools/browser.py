"""Chromium without a window: open a page at a width, in a colour scheme; what it asked for; a photograph of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
AXE = Path(__file__).resolve().parents[1] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


def available() -> bool:
    """Whether tools/browser.sh has done its work."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver")) and AXE.exists()


@contextmanager
def chromium() -> Iterator[Any]:
    """A driver that keeps its console and network logs."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or "chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver: Any, path: Path, *, width: int, scheme: str, height: int = 900) -> None:
    """Load a file; `scheme` is light or dark."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(path.resolve().as_uri())


def requested(driver: Any) -> list[str]:
    """Every address that was asked for since the last call."""
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def violations(driver: Any) -> list[str]:
    """What axe-core calls serious or critical: rule and place."""
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = driver.execute_async_script("const done = arguments[0]; axe.run().then(done);")
    bad = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    return [f"{each['id']}: {node['html'][:120]} {node['failureSummary']}" for each in bad for node in each["nodes"]]
