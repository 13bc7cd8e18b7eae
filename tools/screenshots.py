"""Remake the pictures of the docs: a demo run's report, in both schemes.

python tools/screenshots.py RUN
"""

from __future__ import annotations

import sys
from pathlib import Path

import browser

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
VIEWS = (
    ("report-light", "report.html", "light", 1000, 1150),
    ("report-dark", "report.html", "dark", 1000, 1150),
    ("report-phone", "report.html", "light", 400, 900),
    ("report-private", "private/report.html", "light", 1000, 1250),
)


def main() -> None:
    """Photograph the top of each page."""
    run = Path(sys.argv[1])
    with browser.chromium() as driver:
        for name, page, scheme, width, height in VIEWS:
            browser.open_page(driver, run / page, width=width, scheme=scheme, height=height)
            driver.save_screenshot(str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    main()
