"""Build OntoNotes 5 from your licensed copy; nothing is downloaded, for the LDC allows no passing on.

    python data_scripts/ontonotes5.py FOLDER --out data/ontonotes5 [--dep PATH | --converter JAR]

1. Get OntoNotes Release 5.0 (LDC2013T19, free of charge from https://catalog.ldc.upenn.edu/LDC2013T19) and unpack it.
2. Get the CoNLL-2012 files: either v4 with its scripts (https://conll.cemantix.org/2012/data.html) or v12
   (conll-formatted-ontonotes-5.0, https://cemantix.org/data/ontonotes.html). Both come without words.
3. Put the words in with the distribution's own script (Python 2):
       bash skeleton2conll.sh -D .../ontonotes-release-5.0/data/files/data .../conll-2012
   Every *_gold_skel becomes a *_gold_conll beside it. FOLDER is the folder above train, development and test.
4. So that documents without NER or SRL annotation are known for what they are, put (or link the files of) the release's
   annotations folder below FOLDER: their *.name and *.prop files decide. Without them a document whose column is empty
   throughout counts as not annotated.
5. Dependencies: the published results use the Stanford Parser 3.3.0 (2013-11-12,
   https://nlp.stanford.edu/software/stanford-parser-full-2013-11-12.zip): unpack it and name its jar with --converter
   (needs Java; JAVA_TOOL_OPTIONS=-Xmx4g gives it more memory). Or convert the trees yourself and name the CoNLL-X or
   CoNLL-U files with --dep.
"""

import argparse
import sys
from pathlib import Path

from mtlprune.cli import data
from mtlprune.errors import MtlpruneError


def main(arguments: list[str] | None = None) -> int:
    """Run the script; the exit code is 2 after a message in words."""
    options = _parse(arguments)
    try:
        dep = options.dep or options.converter
        data.build(["ontonotes5", str(options.folder)], options.out, dep=dep, overwrite=options.overwrite)
    except MtlpruneError as error:
        print(f"ontonotes5: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s FOLDER --out OUT ..."
    )
    parser.add_argument("folder", type=Path, help="CoNLL-2012 files with words, below train, development and test")
    parser.add_argument("--out", type=Path, required=True, help="the corpus folder to make")
    parser.add_argument(
        "--dep", type=Path, help="dependencies converted beforehand: CoNLL-X or CoNLL-U, file or folder"
    )
    parser.add_argument("--converter", type=Path, help="jar of the Stanford parser, run with Java")
    parser.add_argument("--overwrite", action="store_true", help="replace the corpus at --out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
