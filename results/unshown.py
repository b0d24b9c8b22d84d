"""Remove generated pictures, LaTeX tables and Markdown pages in results/ to which no page links.

    python results/unshown.py MARK        # considers only files that are newer than the file MARK

Commands write these files next to their tables. Version control keeps every version of a file, so rebuild.sh runs this
script at the end.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"[(\"']([^()\"'\s]+\.(?:png|gif|svg|md))")


def main() -> None:
    root, start = Path(__file__).parent, Path(sys.argv[1]).stat().st_mtime
    pages = [root.parent / "README.md", *root.rglob("*.md"), *(root.parent / "docs").rglob("*.md")]
    linked = {(page.parent / target).resolve() for page in pages for target in LINK.findall(page.read_text())}
    for file in sorted(root.rglob("*")):
        # The Markdown page of a result has a JSON file of the same name. Other Markdown was written by hand.
        is_made = file.suffix in (".png", ".svg", ".tex") or (
            file.suffix == ".md" and file.with_suffix(".json").is_file()
        )
        if is_made and file.stat().st_mtime >= start and file.resolve() not in linked:
            file.unlink()
    for index in root.rglob("maps/maps.json"):  # this file lists the maps of its folder
        if not any(index.parent.glob("*.png")):
            index.unlink()
            index.parent.rmdir()


main()
