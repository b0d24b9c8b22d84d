"""Download the three sources of EWT5, verify them, join them, and store the corpus.

    python data_scripts/ewt5.py --out data/ewt5 [--downloads data/downloads/ewt5]

All sources are pinned: files by SHA-256 or git blob id, and the files from the PropBank archive by their git tree id.
Files that were downloaded and verified before are not downloaded again. The corpus has the licence CC BY-SA 4.0.
README.md lists the publications to cite.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import NamedTuple

from pinned_downloads import fetch, fetch_tree, git_tree_id

from mtlprune.cli import data
from mtlprune.corpora import CorpusError
from mtlprune.corpora.ewt5 import PROPBANK_COMMIT, UD, UNER
from mtlprune.corpora.store import check_free
from mtlprune.errors import MtlpruneError

log = logging.getLogger("ewt5")

RAW = "https://raw.githubusercontent.com"
ARCHIVES = "https://codeload.github.com"
UNER_EARLY = "UniversalNER/UNER_English-EWT/0c7ce0debb13a7d304da656f16309397e8ff36ef"


class Pin(NamedTuple):
    """A file in the downloads folder, its repository and version, and its expected checksums."""

    name: str
    repository: str
    sha256: str | None = None
    git_blob: str | None = None


FILES = (
    Pin("ud/en_ewt-ud-train.conllu", UD, "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b"),
    Pin("ud/en_ewt-ud-dev.conllu", UD, "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6"),
    Pin("ud/en_ewt-ud-test.conllu", UD, "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd"),
    Pin("uner/en_ewt-ud-dev.iob2", UNER, "0cafd881cf31d39897b6d588420fab8fbbe4423d271725c59921ac9dd49c0713"),
    Pin("uner/en_ewt-ud-test.iob2", UNER, "821ad826d5f503ac03b4edc3fbc2174f21fbb005ec25863caf2051c434616d6e"),
)
UNER_TRAIN = {
    # Only the git blob id of the file in the release is known.
    "release": Pin("uner/en_ewt-ud-train.iob2", UNER, git_blob="b2423d72f37f2226e56cbe750da76f820e6c36a9"),
    "early": Pin(
        "uner/en_ewt-ud-train.iob2", UNER_EARLY, "2d986b063bb92df99540e37de34b1415eb2a22958b86de3e4698ec3be05e339f"
    ),
}
PROPBANK = f"propbank-release-{PROPBANK_COMMIT}"
PROPBANK_ARCHIVE = f"propbank/propbank-release/tar.gz/{PROPBANK_COMMIT}"
PROPBANK_FOLDER = "data/google/ewt"
SKELETON = ".gold_skel"
# The git tree id of only the 1,145 skeletons. It differs from the tree id in the repository (f5d784f0...), where *.prop
# files are in the same folders.
SKELETON_TREE = "94b8c0f05a5b2a42b79e4c5e2432b3d72a6fabb2"


def main(arguments: list[str] | None = None) -> int:
    """Run the script, and return its exit code, which is 2 after an error message."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        check_free(options.out, options.overwrite)
        download(options.downloads, options.uner_train, options.raw_base_url, options.archive_base_url)
        data.build(["ewt5", str(options.downloads)], options.out, overwrite=options.overwrite)
    except MtlpruneError as error:
        print(f"ewt5: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Download, verify and join the sources of EWT5.")
    parser.add_argument("--out", type=Path, required=True, help="the corpus folder to make")
    parser.add_argument(
        "--downloads", type=Path, default=Path("data/downloads/ewt5"), help="where the sources are kept"
    )
    parser.add_argument(
        "--uner-train",
        choices=sorted(UNER_TRAIN),
        default="release",
        help="which version of the NER training file: that of the pinned release, or the early one of 2022-12-02, "
        "which masks 38 words of entities",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the corpus at --out")
    parser.add_argument("--raw-base-url", default=RAW, help="mirror of %(default)s")
    parser.add_argument("--archive-base-url", default=ARCHIVES, help="mirror of %(default)s")
    return parser.parse_args(arguments)


def download(folder: Path, uner_train: str = "release", raw: str = RAW, archives: str = ARCHIVES) -> None:
    """Download all sources into ``folder`` and verify them, except those that are already there.

    Raises:
        CorpusError: a download failed or differs from the pinned source (nothing of it is kept), or an existing folder
            of PropBank has other content (nothing is removed).
    """
    for pin in (*FILES, UNER_TRAIN[uner_train]):
        out = folder / pin.name
        log.info("%s", out)
        fetch(f"{raw.rstrip('/')}/{pin.repository}/{out.name}", out, pin.sha256, git_blob=pin.git_blob)
    target = folder / "propbank" / PROPBANK_FOLDER
    log.info("%s", target)
    if not target.exists():
        url = f"{archives.rstrip('/')}/{PROPBANK_ARCHIVE}"
        fetch_tree(url, target, f"{PROPBANK}/{PROPBANK_FOLDER}", SKELETON, SKELETON_TREE)
    elif (found := git_tree_id(target)) != SKELETON_TREE:
        raise CorpusError(f"{target}: expected git tree {SKELETON_TREE}, found {found}; remove the folder")


if __name__ == "__main__":
    sys.exit(main())
