"""Pictures of reports for pages of the documentation (needs Chromium and the extra test):

    python docs/pictures.py                           # report-*.png of docs/start
    python docs/pictures.py mine/report.html NAME     # NAME-*.png, of the report of another comparison

The report of the first is the committed one of MiniLM on EWT5, so that everybody gets the same pictures.
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
"""Of a picture: text and charts need no more, and the file is a third as large."""


def parts(page: Page) -> dict[str, bytes]:
    """Name of a picture → its PNG, from the top of the report to its end."""
    made = {"first-screen": page.screenshot()}
    for name in ("scores", "claims", "why", "runs", "caveats"):
        if not page.locator(f"#{name}").count():
            continue
        page.evaluate("name => document.getElementById(name).scrollIntoView()", name)
        page.wait_for_timeout(1000)
        made[name] = page.screenshot()
    return made


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
