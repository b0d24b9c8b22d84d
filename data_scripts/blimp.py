"""Download BLiMP, verify it, and write its 67 files of minimal pairs into a folder.

    python data_scripts/blimp.py --out data/blimp [--sources blimp_data.tar.gz]

The commit is pinned, and the files from its archive are verified by their git tree id. The corpus has the licence CC BY
4.0. README.md lists the publications to cite.
"""

import argparse
import logging
import sys
from pathlib import Path

from pinned_downloads import extract_tree, fetch_tree

from mtlprune.corpora import CorpusError
from mtlprune.corpora.blimp import SUFFIX, read_blimp

log = logging.getLogger("blimp")

ARCHIVES = "https://codeload.github.com"
COMMIT = "3e56b06fcabca9b30822fc66435fca6b1aa40bb1"
ARCHIVE = f"alexwarstadt/blimp/tar.gz/{COMMIT}"
TREE = "f63942d412768f832745906a6ed9abb7bd5619ec"
"""The git tree id of the folder data, which contains only the 67 files."""


def main(arguments: list[str] | None = None) -> int:
    """Run the script, and return its exit code, which is 2 after an error message."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    out: Path = options.out
    try:
        if out.exists() and not options.overwrite:
            raise CorpusError(f"{out}: expected a folder that is not there yet, found one; --overwrite replaces it")
        if options.sources is not None:
            extract_tree(options.sources, out, "data", SUFFIX, TREE)
        else:
            url = f"{options.archive_base_url.rstrip('/')}/{ARCHIVE}"
            log.info("%s", url)
            fetch_tree(url, out, f"blimp-{COMMIT}/data", SUFFIX, TREE)
        found = read_blimp(out)
    except CorpusError as error:
        print(f"blimp: {error}", file=sys.stderr)
        return 2
    print(f"{out}: {len(found)} paradigms, {sum(len(paradigm.pairs) for paradigm in found):,} pairs")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Download and verify BLiMP.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--sources", type=Path, help="an archive at hand with data/*.jsonl; nothing is downloaded then")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder at --out")
    parser.add_argument("--archive-base-url", default=ARCHIVES, help="mirror of %(default)s")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
