"""Tiny, randomly initialised encoders of every family, with tokenizers of the family's own class; no downloads."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 32, 2, 4, 64, 64
ALPHABET = [chr(code) for code in range(33, 127)]
TEXT = (
    "the a of in and to he she it was is two old new dog dogs cat cats park house river letter teacher student parcel "
    "saw walked wrote gave opened unbelievably quickly nobody everybody London Paris Smith . , ! ? ( ) 's n't"
)
WORDS = TEXT.split()


def _halves(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Every other word is one piece; the others are two: whole words, first halves, second halves."""
    whole, heads, tails = list(words[::2]), [], []
    for word in words[1::2]:
        if len(word) == 1:
            whole.append(word)
        else:
            heads.append(word[: len(word) // 2])
            tails.append(word[len(word) // 2 :])
    return whole, heads, tails


def _wordpiece(words: Sequence[str], specials: Sequence[str]) -> dict[str, int]:
    whole, heads, tails = _halves([word.lower() for word in words])
    pieces = [*specials, *ALPHABET, *(f"##{c}" for c in ALPHABET), *whole, *heads, *(f"##{t}" for t in tails)]
    return {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}


def _unigram(words: Sequence[str], specials: Sequence[str]) -> list[tuple[str, float]]:
    whole, heads, tails = _halves(words)
    scores = dict.fromkeys(specials, 0.0)
    scores |= {piece: -12.0 for piece in ["▁", *ALPHABET] if piece not in scores}
    scores |= {piece: -3.0 - 0.01 * place for place, piece in enumerate([*(f"▁{w}" for w in whole + heads), *tails])}
    return list(scores.items())


def _bytes(words: Sequence[str], specials: Sequence[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator([" ".join(words)] * 2, trainer)
    return made


def _bpe(words: Sequence[str], specials: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    state = json.loads(_bytes(words, specials).to_str())["model"]
    return state["vocab"], [tuple(pair) for pair in state["merges"]]


BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def _bert_tokenizer(words: Sequence[str]) -> hf.PreTrainedTokenizerBase:
    return hf.BertTokenizer(vocab=_wordpiece(words, BERT_SPECIALS), do_lower_case=True)


def _roberta_tokenizer(words: Sequence[str]) -> hf.PreTrainedTokenizerBase:
    vocab, merges = _bpe(words, ROBERTA_SPECIALS)
    return hf.RobertaTokenizer(vocab=vocab, merges=merges)  # the hub's default: no leading space on a lone word


def _deberta_tokenizer(words: Sequence[str]) -> hf.PreTrainedTokenizerBase:
    vocab, merges = _bpe(words, BERT_SPECIALS)
    return hf.DebertaTokenizer(vocab=vocab, merges=merges)


def _mpnet_tokenizer(words: Sequence[str]) -> hf.PreTrainedTokenizerBase:
    specials = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
    return hf.MPNetTokenizer(vocab=_wordpiece(words, specials), do_lower_case=True)


def _modernbert_tokenizer(words: Sequence[str]) -> hf.PreTrainedTokenizerBase:
    made = _bytes(words, BERT_SPECIALS)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    cls, sep = made.token_to_id("[CLS]"), made.token_to_id("[SEP]")
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", cls), ("[SEP]", sep)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT_SPECIALS, strict=True))
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def _sizes(tokenizer: hf.PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.2,  # ten times the usual: neighbours must matter for the equality tests to bite
        "pad_token_id": tokenizer.pad_token_id,
    }


def _config(kind: type[hf.PreTrainedConfig], tokenizer: hf.PreTrainedTokenizerBase, dropout: float, **more: Any) -> Any:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return kind(**(_sizes(tokenizer) | rates | more))


def _distilbert(tokenizer: hf.PreTrainedTokenizerBase, dropout: float) -> hf.DistilBertConfig:
    named = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    named |= {"intermediate_size": "hidden_dim"}
    sizes = {named.get(name, name): value for name, value in _sizes(tokenizer).items()}
    return hf.DistilBertConfig(**sizes, dropout=dropout, attention_dropout=dropout)


def _modernbert(tokenizer: hf.PreTrainedTokenizerBase, dropout: float) -> hf.ModernBertConfig:
    specials = {name: getattr(tokenizer, name) for name in ("cls_token_id", "sep_token_id")}
    rates = dict.fromkeys(("embedding_dropout", "mlp_dropout", "attention_dropout"), dropout)
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    return hf.ModernBertConfig(
        **_sizes(tokenizer), **specials, **rates, **ends, local_attention=16, global_attn_every_n_layers=2
    )


def _eurobert(tokenizer: hf.PreTrainedTokenizerBase, dropout: float) -> hf.EuroBertConfig:
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    return hf.EuroBertConfig(
        **_sizes(tokenizer), **ends, attention_dropout=dropout, mask_token_id=tokenizer.mask_token_id
    )


def _deberta(kind: type[hf.PreTrainedConfig], **more: Any) -> Callable[[hf.PreTrainedTokenizerBase, float], Any]:
    relative = {
        "relative_attention": True,
        "position_biased_input": False,
        "max_relative_positions": -1,
        "pos_att_type": ["c2p", "p2c"],
        "type_vocab_size": 0,
    }
    return lambda tokenizer, dropout: _config(kind, tokenizer, dropout, **relative, **more)


def _plain(kind: type[hf.PreTrainedConfig], **more: Any) -> Callable[[hf.PreTrainedTokenizerBase, float], Any]:
    return lambda tokenizer, dropout: _config(kind, tokenizer, dropout, **more)


def _sentencepiece(kind: Any, specials: Sequence[str]) -> Callable[[Sequence[str]], hf.PreTrainedTokenizerBase]:
    return lambda words: kind(vocab=_unigram(words, specials))


_MAKERS: dict[str, tuple[Callable[[Sequence[str]], hf.PreTrainedTokenizerBase], Callable[..., Any]]] = {
    "bert": (_bert_tokenizer, _plain(hf.BertConfig)),
    # counting starts after the padding id, 1, so two rows of the table are never reached
    "roberta": (_roberta_tokenizer, _plain(hf.RobertaConfig, max_position_embeddings=POSITIONS + 2, type_vocab_size=1)),
    "electra": (_bert_tokenizer, _plain(hf.ElectraConfig, embedding_size=HIDDEN // 2)),
    "deberta-v2": (
        _sentencepiece(hf.DebertaV2Tokenizer, BERT_SPECIALS),
        _deberta(hf.DebertaV2Config, share_att_key=True, position_buckets=16, norm_rel_ebd="layer_norm"),
    ),
    "distilbert": (_bert_tokenizer, _distilbert),
    "modernbert": (_modernbert_tokenizer, _modernbert),
    "deberta": (_deberta_tokenizer, _deberta(hf.DebertaConfig)),
    "xlm-roberta": (
        _sentencepiece(hf.XLMRobertaTokenizer, ("<s>", "<pad>", "</s>", "<unk>")),
        _plain(hf.XLMRobertaConfig, max_position_embeddings=POSITIONS + 2, type_vocab_size=1),
    ),
    "albert": (
        _sentencepiece(hf.AlbertTokenizer, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
        _plain(hf.AlbertConfig, embedding_size=HIDDEN // 2),
    ),
    "mpnet": (_mpnet_tokenizer, _plain(hf.MPNetConfig, max_position_embeddings=POSITIONS + 2)),
    "camembert": (
        _sentencepiece(hf.CamembertTokenizer, ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")),
        _plain(hf.CamembertConfig, max_position_embeddings=POSITIONS + 2, type_vocab_size=1),
    ),
    # the hub's are BPE on bytes within special tokens, as ModernBERT's
    "eurobert": (_modernbert_tokenizer, _eurobert),
    # RoFormer's own tokenizer first cuts Chinese with a package of its own; what follows is BERT's
    "roformer": (_bert_tokenizer, _plain(hf.RoFormerConfig, embedding_size=HIDDEN // 2)),
}

HEAD_FAMILIES = list(_MAKERS)  # those whose heads are known
# RoFormer's fixed table of positions asks for a gradient that never comes (transformers 5.23)
FAMILIES = [family for family in HEAD_FAMILIES if family != "roformer"]
CONTRACT_FAMILIES = FAMILIES[:6]  # those every task is tested with


def make_config(family: str, *, dropout: float = 0.0, **more: Any) -> Any:
    """The config of a tiny encoder of ``family``, with ``more`` changed, for models that need no tokenizer."""
    tokenizer_of, config_of = _MAKERS[family]
    config = config_of(tokenizer_of(list(dict.fromkeys(WORDS))), dropout)
    return type(config)(**(config.to_dict() | more))


def make_tiny(
    family: str, folder: Path, words: Sequence[str] = WORDS, *, dropout: float = 0.0, positions: int = POSITIONS
) -> Path:
    """Write a tiny encoder of ``family`` (hidden 32, 2 layers, 4 heads, 64 positions) with its tokenizer to ``folder``.

    Args:
        words: the vocabulary; each becomes one or two pieces, anything else is spelled out.
        dropout: of the transformer itself.
        positions: tokens, special ones included, it can see at once.
    """
    tokenizer_of, config_of = _MAKERS[family]
    tokenizer = tokenizer_of(list(dict.fromkeys(words)))
    config = config_of(tokenizer, dropout)
    config.max_position_embeddings += positions - POSITIONS
    with torch.random.fork_rng():
        torch.manual_seed(HEAD_FAMILIES.index(family))
        model = hf.AutoModel.from_config(config)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_lab(folder: Path, encoder: Path, sizes: Sequence[int], *, threads: int | None = 1, **more: Any) -> Path:
    """A corpus of the grammar (``sizes`` of train, dev and test) and the file of a run of seconds on it; ``more`` are
    blocks of its configuration.

    Returns:
        The file; the corpus stands beside it.
    """
    import yaml

    from mtlprune.corpora.grammar import build_grammar
    from mtlprune.corpora.store import save_corpus

    save_corpus(build_grammar(*sizes, 1), folder / "corpus", name="grammar", licence="Apache-2.0", sources={})
    decoders = {"dep": {"arc_size": 16, "relation_size": 8}, "con": {"span_size": 16, "label_size": 8}}
    train = {"epochs": 2, "batch_sentences": 8, "encoder_rate": 1e-3, "decoder_rate": 1e-2}
    train |= {"precision": "fp32", "device": "cpu", "threads": threads}
    tree = {"name": "tiny", "data": {"path": str(folder / "corpus")}, "encoder": {"name": str(encoder)}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**tree, "decoders": decoders, "train": train, **more}))
    return folder / "tiny.yaml"
