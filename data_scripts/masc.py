"""Download the two sources of MASC, verify them, join them, and store the corpus.

    python data_scripts/masc.py --out data/masc [--downloads data/downloads/masc]

Both commits are pinned, and the files from their archives are verified by git tree ids. Files that were downloaded and
verified before are not downloaded again. The corpus has the licence CC BY-SA 4.0. README.md lists the publications to
cite.
"""

import argparse
import logging
import sys
from pathlib import Path

from pinned_downloads import extract_tree, fetch, git_tree_id

from mtlprune.cli import data
from mtlprune.corpora import CorpusError
from mtlprune.corpora.ewt5 import PROPBANK_COMMIT
from mtlprune.corpora.masc import MASC_COMMIT, documents
from mtlprune.corpora.store import check_free
from mtlprune.errors import MtlpruneError

log = logging.getLogger("masc")

ARCHIVES = "https://codeload.github.com"
TREES = {
    f"oanc/masc/tar.gz/{MASC_COMMIT}": {
        f"masc-{MASC_COMMIT}/1/original-annotations/Penn_Treebank": "0b0a46477c97355f9397d749481600b4f8103dca",
        f"masc-{MASC_COMMIT}/1/txtfiles": "760eb8617e1e06a1c8c4821f3696d5ece9c8b8ca",
        f"masc-{MASC_COMMIT}/1/ne-person": "4c819e36577505d3b673098f164cd00e5564af03",
        f"masc-{MASC_COMMIT}/1/ne-organization": "e5b2699d658eac41d6770380b753acfa8afd9e61",
        f"masc-{MASC_COMMIT}/1/ne-location": "7d4e07fe45af07299b642f667f81e7f1e50bb734",
        f"masc-{MASC_COMMIT}/1/ne-date": "c143f28c1a98437545e58c078ce12fec0e261786",
    },
    f"propbank/propbank-release/tar.gz/{PROPBANK_COMMIT}": {
        f"propbank-release-{PROPBANK_COMMIT}/data/oanc/masc": "7f1694b28c635621c5e835649b2fac6f6b1a47a1",
    },
}
"""Archive → folder in the archive → git tree id of the files in the folder that belong to documents of the corpus."""


def main(arguments: list[str] | None = None) -> int:
    """Run the script, and return its exit code, which is 2 after an error message."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        check_free(options.out, options.overwrite)
        download(options.downloads, options.archive_base_url)
        data.build(["masc", str(options.downloads)], options.out, overwrite=options.overwrite)
    except MtlpruneError as error:
        print(f"masc: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Download, verify and join the sources of MASC.")
    parser.add_argument("--out", type=Path, required=True, help="the corpus folder to make")
    parser.add_argument(
        "--downloads", type=Path, default=Path("data/downloads/masc"), help="where the sources are kept"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the corpus at --out")
    parser.add_argument("--archive-base-url", default=ARCHIVES, help="mirror of %(default)s")
    return parser.parse_args(arguments)


def download(folder: Path, archives: str = ARCHIVES) -> None:
    """Download the files of the documents of MASC into ``folder`` and verify them, except those already there.

    Raises:
        CorpusError: a download failed or differs from the pinned source (nothing of it is kept), or an existing folder
            has other content (nothing is removed).
    """
    for address, trees in TREES.items():
        missing = {inside: tree for inside, tree in trees.items() if not _is_there(folder / Path(inside).name, tree)}
        if not missing:
            continue
        url, archive = f"{archives.rstrip('/')}/{address}", folder / ".archive.tar.gz"
        log.info("%s", url)
        try:
            fetch(url, archive, None)
            for inside, tree in missing.items():
                extract_tree(archive, folder / Path(inside).name, inside, wanted(), tree)
        finally:
            archive.unlink(missing_ok=True)


def _is_there(target: Path, tree: str) -> bool:
    """Return True if ``target`` is a folder with the expected files. Raises CorpusError if it has other content."""
    if not target.exists():
        return False
    if (actual := git_tree_id(target)) != tree:
        raise CorpusError(f"{target}: expected git tree {tree}, found {actual}; remove the folder")
    return True


def wanted() -> tuple[str, ...]:
    """Return the ends of the paths of all files that belong to documents of the corpus.

    The archives also contain documents of the Wall Street Journal, whose text belongs to the LDC, and documents without
    trees. Both are left out.
    """
    endings = (".mrg", ".mrg.txt", ".ascii-1-NEW.mrg", ".txt", "-NE.xml", ".gold_skel")
    names = [document.name for document in documents()]
    names += [name.replace("-ms98", "-UTF16-ms98") for name in names if name.startswith("sw")]
    return tuple(f"/{name}{ending}" for name in names for ending in endings)


if __name__ == "__main__":
    sys.exit(main())
