"""Train static word vectors for comparison: skip-gram with negative sampling on the training sentences of corpora.

    pip install gensim                       # mtlprune itself does not need it
    python results/degeneration/static.py runs/static/skip-gram.txt data/grammar20k data/ewt5 data/masc data/gum

The output has the text format of word2vec.
"""

import sys
from pathlib import Path

from gensim.models import Word2Vec  # type: ignore[import-not-found]

from mtlprune.corpora.store import load_corpus


def main(out: str, *corpora: str) -> None:
    """Train and write vectors of size 128, as in the language models, on one thread so that results are repeatable."""
    sentences = [list(sentence.words) for path in corpora for sentence in load_corpus(Path(path))["train"]]
    model = Word2Vec(sentences, vector_size=128, sg=1, negative=5, window=5, min_count=1, epochs=5, workers=1, seed=1)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    model.wv.save_word2vec_format(out, binary=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
