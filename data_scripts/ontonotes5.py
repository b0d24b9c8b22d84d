"""Build OntoNotes 5 from your licensed copy. Nothing is downloaded, because the LDC does not permit redistribution.

    python data_scripts/ontonotes5.py FOLDER --out data/ontonotes5 [--dep PATH | --converter JAR]

1. Get OntoNotes Release 5.0 (LDC2013T19, free of charge from https://catalog.ldc.upenn.edu/LDC2013T19) and unpack it.
2. Get the CoNLL-2012 files: either v4 with its scripts (https://conll.cemantix.org/2012/data.html) or v12
   (conll-formatted-ontonotes-5.0, https://cemantix.org/data/ontonotes.html). Neither contains words.
3. Insert the words with the script of the distribution (Python 2):
       bash skeleton2conll.sh -D .../ontonotes-release-5.0/data/files/data .../conll-2012
   The script writes a *_gold_conll next to each *_gold_skel. FOLDER is the folder that contains train, development and
   test.
4. Copy or link the annotations folder of the release below FOLDER. Its *.name and *.prop files tell which documents
   have NER and SRL annotation. Without these files, a document whose column is empty throughout counts as not
   annotated.
5. For dependencies, the published results use the Stanford Parser 3.3.0 (2013-11-12,
   https://nlp.stanford.edu/software/stanford-parser-full-2013-11-12.zip). Unpack the parser, and give its jar to
   --converter (which needs Java; JAVA_TOOL_OPTIONS=-Xmx4g gives it more memory). Or convert the trees yourself, and
   give the CoNLL-X or CoNLL-U files to --dep.
"""

import argparse
import sys
from pathlib import Path

from mtlprune.cli import data
from mtlprune.errors import MtlpruneError


def main(arguments: list[str] | None = None) -> int:
    """Run the script, and return its exit code, which is 2 after an error message."""
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
