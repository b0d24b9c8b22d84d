"""Remove pictures, LaTeX tables and Markdown of Results in results/ to which no page links. Commands write them beside
their tables, and version control keeps every one that ever was, so rebuild.sh calls this last.

    python results/unshown.py MARK        # only of files that are newer than the file MARK
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"[(\"']([^()\"'\s]+\.(?:png|gif|svg|md))")


def main() -> None:
    root, start = Path(__file__).parent, Path(sys.argv[1]).stat().st_mtime
    pages = [root.parent / "README.md", *root.rglob("*.md"), *(root.parent / "docs").rglob("*.md")]
    shown = {(page.parent / target).resolve() for page in pages for target in LINK.findall(page.read_text())}
    for file in sorted(root.rglob("*")):
        # The page of a Result has its JSON beside it; other Markdown is somebody's text.
        is_made = file.suffix in (".png", ".svg", ".tex") or (
            file.suffix == ".md" and file.with_suffix(".json").is_file()
        )
        if is_made and file.stat().st_mtime >= start and file.resolve() not in shown:
            file.unlink()
    for index in root.rglob("maps/maps.json"):  # lists the maps of its folder
        if not any(index.parent.glob("*.png")):
            index.unlink()
            index.parent.rmdir()


main()
