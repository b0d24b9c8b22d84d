"""Take screenshots of reports for the documentation (requires Chromium and the extra "test").

    python docs/pictures.py                           # report-*.png, for docs/start
    python docs/pictures.py mine/report.html NAME     # NAME-*.png, of the report of another comparison

The first command uses the committed report of MiniLM on EWT5, so that everybody gets the same pictures.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent
REPORT = DOCS.parent / "results/ewt5-minilm/report.html"
COLOURS = 128
"""Number of colours of a picture, which is enough for text and charts and makes files a third as large."""


def parts(page: Page) -> dict[str, bytes]:
    """Take a PNG of the first screen and of each section of the report, by name."""
    screenshots = {"first-screen": page.screenshot()}
    for name in ("scores", "claims", "why", "runs", "caveats"):
        if not page.locator(f"#{name}").count():
            continue
        page.evaluate("name => document.getElementById(name).scrollIntoView()", name)
        page.wait_for_timeout(1000)
        screenshots[name] = page.screenshot()
    return screenshots


def main(report: str = str(REPORT), prefix: str = "report") -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(Path(report).resolve().as_uri())
        page.wait_for_timeout(2000)
        for name, png in parts(page).items():
            path = DOCS / "pictures" / f"{prefix}-{name}.png"
            path.parent.mkdir(exist_ok=True)
            Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
