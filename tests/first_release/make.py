"""How the folders beside this file were made, with commit e87b36e on the path:

python make.py; mtlprune evaluate finished-pos --split test; mtlprune evaluate finished-dep --split test; rm */.lock
"""

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from mtlprune.config.config import Config, build_config
from mtlprune.corpora.grammar import build_grammar
from mtlprune.corpora.store import save_corpus
from mtlprune.runs.folder import RunFolder
from mtlprune.training.loop import train

RATES = {"encoder_rate": 1e-3, "decoder_rate": 1e-2, "checkpoint_minutes": 1e6}


def config(task: str) -> Config:
    return build_config(
        {
            "name": task,
            "data": {"path": "corpus"},
            "tasks": [task],
            "encoder": {"name": "encoder"},
            "decoders": {"dep": {"arc_size": 4, "relation_size": 4}, "ner": {"size": 4}},
            "pruning": {"method": "gates", "rate": 0.3},
            "train": {"epochs": 3, "batch_sentences": 4, "device": "cpu", "precision": "fp32", "threads": 1, **RATES},
        }
    )


if __name__ == "__main__":
    splits = build_grammar(16, 6, 4, seed=5)
    save_corpus(splits, Path("corpus"), name="tiny", licence="Apache-2.0", sources={})
    letters = [chr(code) for code in range(97, 123)]
    words = sorted({word.lower() for sentence in splits["train"] for word in sentence.words})[:60]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *".,'-?!", *("##" + c for c in letters), *words]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}
    architecture = BertConfig(
        vocab_size=len(vocabulary), max_position_embeddings=96, initializer_range=0.2, pad_token_id=0, **sizes
    )
    BertModel(architecture, add_pooling_layer=False).save_pretrained("encoder")
    BertTokenizer(vocab=vocabulary, do_lower_case=True).save_pretrained("encoder")
    train(config("pos"), RunFolder("finished-pos"))
    train(config("dep"), RunFolder("finished-dep"))
    updates = iter(range(5, 0, -1))
    train(config("pos"), RunFolder("half-pos"), stop=lambda: next(updates) == 1)
