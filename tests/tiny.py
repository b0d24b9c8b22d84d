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


_Tokenizer = Callable[[Sequence[str]], hf.PreTrainedTokenizerBase]
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def _wordpieces(kind: Any, specials: Sequence[str] = BERT_SPECIALS) -> _Tokenizer:
    return lambda words: kind(vocab=_wordpiece(words, specials), do_lower_case=True)


def _sentencepiece(kind: Any, specials: Sequence[str] = BERT_SPECIALS) -> _Tokenizer:
    return lambda words: kind(vocab=_unigram(words, specials))


def _byte_pairs(kind: Any, specials: Sequence[str] = BERT_SPECIALS) -> _Tokenizer:
    return lambda words: kind(**dict(zip(("vocab", "merges"), _bpe(words, specials), strict=True)))


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


def _decoder_tokenizer(before: str = "", after: str = "", **names: str) -> _Tokenizer:
    """Byte-level BPE of decoder-only models: at most one special token before a sentence, and one after it."""

    def build(words: Sequence[str]) -> hf.PreTrainedTokenizerBase:
        built = _bytes(words, sorted(set(names.values())))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        built.decoder = decoders.ByteLevel()
        around = [(token, built.token_to_id(token)) for token in (before, after) if token]
        template = " ".join(part for part in (before, "$A", after) if part)
        built.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
        tokens = {f"{kind}_token": name for kind, name in names.items()}
        return hf.PreTrainedTokenizerFast(tokenizer_object=built, **tokens)

    return build


# counting starts after the padding id, 1, so two rows of the table are never reached
FROM_TWO = {"max_position_embeddings": POSITIONS + 2}
LIKE_ROBERTA, NARROW = FROM_TWO | {"type_vocab_size": 1}, {"embedding_size": HIDDEN // 2}
BY_TURNS = {"local_attention": 16, "global_attn_every_n_layers": 2}
RELATIVE = {"relative_attention": True, "position_biased_input": False, "max_relative_positions": -1}
RELATIVE |= {"pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
BUCKETS = {"share_att_key": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm"}
_XLMR = ("<s>", "<pad>", "</s>", "<unk>")
_CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
_ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_MPNET = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
_MAKERS: dict[str, tuple[_Tokenizer, type[hf.PreTrainedConfig], dict[str, Any]]] = {
    "bert": (_wordpieces(hf.BertTokenizer), hf.BertConfig, {}),
    # the hub's default: no leading space on a lone word
    "roberta": (_byte_pairs(hf.RobertaTokenizer, ROBERTA_SPECIALS), hf.RobertaConfig, LIKE_ROBERTA),
    "electra": (_wordpieces(hf.BertTokenizer), hf.ElectraConfig, NARROW),
    "deberta-v2": (_sentencepiece(hf.DebertaV2Tokenizer), hf.DebertaV2Config, RELATIVE | BUCKETS),
    "distilbert": (_wordpieces(hf.BertTokenizer), hf.DistilBertConfig, {"hidden_dim": INNER}),
    "modernbert": (_modernbert_tokenizer, hf.ModernBertConfig, BY_TURNS),
    "deberta": (_byte_pairs(hf.DebertaTokenizer), hf.DebertaConfig, RELATIVE),
    "xlm-roberta": (_sentencepiece(hf.XLMRobertaTokenizer, _XLMR), hf.XLMRobertaConfig, LIKE_ROBERTA),
    "albert": (_sentencepiece(hf.AlbertTokenizer, _ALBERT), hf.AlbertConfig, NARROW),
    "mpnet": (_wordpieces(hf.MPNetTokenizer, _MPNET), hf.MPNetConfig, FROM_TWO),
    "camembert": (_sentencepiece(hf.CamembertTokenizer, _CAMEMBERT), hf.CamembertConfig, LIKE_ROBERTA),
    # the hub's are BPE on bytes within special tokens, as ModernBERT's
    "eurobert": (_modernbert_tokenizer, hf.EuroBertConfig, {}),
    # RoFormer's own tokenizer first cuts Chinese with a package of its own; what follows is BERT's
    "roformer": (_wordpieces(hf.BertTokenizer), hf.RoFormerConfig, NARROW),
}
HEAD_FAMILIES = list(_MAKERS)  # those that every test of heads goes through

_WORDS, _XLM = _wordpieces(hf.BertTokenizer), _sentencepiece(hf.XLMRobertaTokenizer, _XLMR)
_ROBERTA = _byte_pairs(hf.RobertaTokenizer, ROBERTA_SPECIALS)
_NO_FRAME = _decoder_tokenizer(eos="<|endoftext|>", pad="<|endoftext|>")  # Qwen, GPT-2, Pythia
_BOS = _decoder_tokenizer("<s>", bos="<s>", eos="</s>", unk="<unk>", pad="<pad>")  # Llama, Gemma
_BY_HEAD = {"head_dim": HIDDEN // HEADS}
GROUPED = _BY_HEAD | {"num_key_value_heads": HEADS // 2}
_TEXT_TO_TEXT = {"d_kv": HIDDEN // HEADS, "d_ff": INNER, "relative_attention_num_buckets": 8}
_PRONOUNCED = {"pronunciation_vocab_size": 20, "shape_vocab_size": 20}
_PRONOUNCED |= {"pronunciation_embed_dim": 8, "shape_embed_dim": 8}


def _newer(config: str) -> Any:
    """A config that the lowest version of transformers does not have; None there, where the family is left out."""
    return getattr(hf, config, None)


_T5_TOKENIZER = _decoder_tokenizer("", "</s>", eos="</s>", unk="<unk>", pad="<pad>")
_FURTHER: dict[str, tuple[_Tokenizer, Any, dict[str, Any]]] = {
    "ernie": (_WORDS, hf.ErnieConfig, {}),
    "llama": (_BOS, hf.LlamaConfig, GROUPED),
    "luke": (_ROBERTA, hf.LukeConfig, LIKE_ROBERTA | {"entity_vocab_size": 5, "entity_emb_size": 8}),
    "nomic_bert": (_WORDS, _newer("NomicBertConfig"), _BY_HEAD),
    "gpt2": (_NO_FRAME, hf.GPT2Config, {}),
    "gpt_neox": (_NO_FRAME, hf.GPTNeoXConfig, {}),
    "opt": (_decoder_tokenizer("</s>", bos="</s>", pad="<pad>"), hf.OPTConfig, {"ffn_dim": INNER, "init_std": 0.2}),
    "gemma3_text": (_BOS, hf.Gemma3TextConfig, GROUPED | {"layer_types": ["sliding_attention", "full_attention"]}),
    "olmo2": (_NO_FRAME, hf.Olmo2Config, GROUPED),
    "modernbert-decoder": (_modernbert_tokenizer, hf.ModernBertDecoderConfig, {}),
    "t5": (_T5_TOKENIZER, hf.T5Config, _TEXT_TO_TEXT),
    "umt5": (_T5_TOKENIZER, hf.UMT5Config, _TEXT_TO_TEXT),
    # the long tail: laid out as one of those above
    "data2vec-text": (_ROBERTA, hf.Data2VecTextConfig, LIKE_ROBERTA),
    "xlm-roberta-xl": (_XLM, hf.XLMRobertaXLConfig, LIKE_ROBERTA),
    "bert-generation": (_XLM, hf.BertGenerationConfig, {}),
    "roberta-prelayernorm": (_ROBERTA, hf.RobertaPreLayerNormConfig, LIKE_ROBERTA),
    "roc_bert": (_WORDS, hf.RoCBertConfig, _PRONOUNCED),
    "megatron-bert": (_WORDS, hf.MegatronBertConfig, {}),
    "rembert": (_sentencepiece(hf.AlbertTokenizer, _ALBERT), hf.RemBertConfig, {"input_embedding_size": HIDDEN // 2}),
    "splinter": (_WORDS, hf.SplinterConfig, {}),
    "gte": (_XLM, _newer("GteConfig"), {"type_vocab_size": 1}),
    "jina_embeddings_v3": (_XLM, _newer("JinaEmbeddingsV3Config"), {"type_vocab_size": 1}),
    "ultrabert": (_modernbert_tokenizer, _newer("UltrabertConfig"), GROUPED),
    "mistral": (_BOS, hf.MistralConfig, GROUPED),
    "qwen2": (_NO_FRAME, hf.Qwen2Config, GROUPED),
    "qwen3": (_NO_FRAME, hf.Qwen3Config, GROUPED),
    "gemma2": (_BOS, hf.Gemma2Config, GROUPED),
    "smollm3": (_NO_FRAME, hf.SmolLM3Config, GROUPED),
    "granite": (_NO_FRAME, hf.GraniteConfig, GROUPED),
    "mt5": (_T5_TOKENIZER, hf.MT5Config, _TEXT_TO_TEXT),
    "olmo3": (_NO_FRAME, hf.Olmo3Config, GROUPED | {"layer_types": ["sliding_attention", "full_attention"]}),
}
_MAKERS |= {family: row for family, row in _FURTHER.items() if row[1] is not None}
FURTHER = list(_MAKERS)[len(HEAD_FAMILIES) :]  # those that tests/encoder/test_families.py goes through
LONG_TAIL = FURTHER[FURTHER.index("umt5") + 1 :]
# RoFormer's fixed table of positions asks for a gradient that never comes (transformers 5.23)
FAMILIES = [family for family in HEAD_FAMILIES if family != "roformer"]
CONTRACT_FAMILIES = FAMILIES[:6]  # those every task is tested with


def _made(family: str, words: Sequence[str], dropout: float, **more: Any) -> tuple[hf.PreTrainedTokenizerBase, Any]:
    tokenizer_of, kind, own = _MAKERS[family]
    tokenizer = tokenizer_of(list(dict.fromkeys(words)))
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep", "mask")}
    ids["bos_token_id"] = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
    ids["eos_token_id"] = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    stated = vars(kind())
    config = {name: place for name, place in ids.items() if name in stated}
    config |= {name: dropout for name in stated if "dropout" in name or "pdrop" in name}
    config |= {"vocab_size": len(tokenizer), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
    config |= {"num_attention_heads": HEADS, "intermediate_size": INNER, "max_position_embeddings": POSITIONS}
    config["initializer_range"] = 0.2  # ten times the usual: neighbours must matter for the equality tests to bite
    return tokenizer, kind(**config | own | more)


def make_config(family: str, *, dropout: float = 0.0, **more: Any) -> Any:
    """The config of a tiny encoder of ``family``, with ``more`` changed, for models that need no tokenizer."""
    return _made(family, WORDS, dropout, **more)[1]


def make_tiny(
    family: str, folder: Path, words: Sequence[str] = WORDS, *, dropout: float = 0.0, positions: int = POSITIONS
) -> Path:
    """Write a tiny encoder of ``family`` (hidden 32, 2 layers, 4 heads, 64 positions) with its tokenizer to ``folder``.

    Args:
        words: the vocabulary; each becomes one or two pieces, anything else is spelled out.
        dropout: of the transformer itself.
        positions: tokens, special ones included, it can see at once.
    """
    tokenizer, config = _made(family, words, dropout)
    config.max_position_embeddings += positions - POSITIONS
    with torch.random.fork_rng():
        torch.manual_seed(list(_MAKERS).index(family))
        kind = hf.AutoModelForTextEncoding if family in ("t5", "mt5", "umt5") else hf.AutoModel
        kind.from_config(config).save_pretrained(folder)
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
