"""Download BLiMP, verify it, lay out its 67 files of minimal pairs.

    python data_scripts/blimp.py --out data/blimp [--sources blimp_data.tar.gz]

The commit is pinned, and the files taken from it are verified by their git tree id. The corpus is CC BY 4.0; README.md
says whom to cite.
"""

import argparse
import logging
import os
import shutil
import sys
from pathlib import Path

from pinned_downloads import extract_tar, fetch, git_tree_id

from mtlprune.corpora import CorpusError
from mtlprune.corpora.blimp import SUFFIX, read_blimp

log = logging.getLogger("blimp")

ARCHIVES = "https://codeload.github.com"
COMMIT = "3e56b06fcabca9b30822fc66435fca6b1aa40bb1"
ARCHIVE = f"alexwarstadt/blimp/tar.gz/{COMMIT}"
TREE = "f63942d412768f832745906a6ed9abb7bd5619ec"
"""git tree id of the folder data, which holds the 67 files and nothing else."""


def main(arguments: list[str] | None = None) -> int:
    """Run the script; the exit code is 2 after a message in words."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    out: Path = options.out
    try:
        if out.exists() and not options.overwrite:
            raise CorpusError(f"{out}: expected a folder that is not there yet, found one; --overwrite replaces it")
        if options.sources is not None:
            place(options.sources, "data", out)
        else:
            download(out, options.archive_base_url)
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


def download(out: Path, archives: str = ARCHIVES) -> None:
    """Fetch the archive of the pinned commit, take its data, remove the archive.

    Raises:
        CorpusError: the download failed or is not what was pinned; nothing of it is kept.
    """
    archive = out.with_name(f".{out.name}.{os.getpid()}.tar.gz")
    url = f"{archives.rstrip('/')}/{ARCHIVE}"
    log.info("%s", url)
    try:
        fetch(url, archive, None)  # archives are made on demand, so that only what is inside can be verified
        place(archive, f"blimp-{COMMIT}/data", out)
    finally:
        archive.unlink(missing_ok=True)


def place(archive: Path, only: str, out: Path) -> None:
    """Unpack, verify, and give the files their place; what is at ``out`` is replaced only then."""
    if not archive.is_file():
        raise CorpusError(f"{archive}: there is no such archive")
    fresh, old = (out.with_name(f".{out.name}.{os.getpid()}.{name}") for name in ("new", "old"))
    try:
        extract_tar(archive, fresh, only=only, suffix=SUFFIX)
        found = git_tree_id(fresh)
        if found != TREE:
            raise CorpusError(
                f"{archive}: expected the files of git tree {TREE}, found {found}; nothing of it was kept. This is not "
                "the pinned version of BLiMP: do not use it"
            )
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        for rest in (fresh, old):
            shutil.rmtree(rest, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
