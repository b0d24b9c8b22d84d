"""The contract of a family: gates, removal, observation, clones, ablations, checkpointing, export, words seen,
and the table of what it supports, each by an equality; one tiny model a family. tests/encoder/test_heads.py and its
like put the first families through more."""

import copy
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from found import without_heads
from head_models import build, by_onnx, drawn
from tiny import FURTHER, HEAD_FAMILIES, HEADS, HIDDEN, LAYERS, LONG_TAIL, make_tiny
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from mtlprune.encoder.abilities import abilities
from mtlprune.encoder.clones import Clones
from mtlprune.encoder.export import fold_gates, with_all_heads, with_classifier
from mtlprune.encoder.families import ENCODER_DECODERS, FAMILIES, by_layer, matrix, set_attention
from mtlprune.encoder.interventions import LowerLayers, ablated, fit_constants, head_outputs, measure_means
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.post_norm import obstacle
from mtlprune.encoder.removal import remove_heads
from mtlprune.encoder.sources import quiet
from mtlprune.model import MultiTaskModel
from mtlprune.training.head_gradients import head_parameters
from mtlprune.training.treatments.allocation import Clone

SENTENCES = [["the", "old", "dog", "saw", "London"], ["cats", "unbelievably"]]
GATES = [
    torch.tensor([[1.0, 0.0, 1.0, 0.5], [0.0, 0.0, 0.5, 1.0]]),  # of two groups one loses a head, one goes
    torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.25, 0.0, 0.0, 1.0]]),
    torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]),
]
EVERY = [*HEAD_FAMILIES, *FURTHER]
DECODERS = [name for name in FURTHER if FAMILIES[name].pretrained == "causal"]
GROUPED = [name for name in FURTHER if FAMILIES[name].grouping]
CLONED = [name for name in EVERY if abilities(name).clones != "no" and name not in GROUPED]
COMPUTE_ALL = ("albert", "t5", "mt5", "roformer", "megatron-bert", "rembert")
"""Their layers share a module, or return more than hidden states."""
CHECKPOINTED = [name for name in EVERY if name not in ("albert", "mpnet")]  # transformers has none for these


def table(names: list[str]) -> pytest.MarkDecorator:
    """Once for each of some families; those laid out as others are left to the slow tests."""
    rows = [pytest.param(name, marks=pytest.mark.slow if name in LONG_TAIL else ()) for name in names]
    return pytest.mark.parametrize("family", rows)


@pytest.fixture(scope="module")
def loaded(tiny_encoder: Callable[[str], Path]) -> Callable[..., Encoder]:
    """A family's encoder with random biases, so that forgetting one shows; made once: change copies only."""

    @cache
    def load(family: str, attention: str = "eager") -> Encoder:
        encoder = Encoder.load(str(tiny_encoder(family)), attention=attention)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            for name, weight in encoder.transformer.named_parameters():
                if "bias" in name:
                    nn.init.normal_(weight, std=0.2)
        return encoder

    return load


@torch.no_grad()
def words(encoder: Encoder, gates: Tensor | None = None, sentences: list[list[str]] = SENTENCES) -> Tensor:
    return encoder(encoder.collate(encoder.tokenize_all(sentences)), gates).words


def assert_near(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_every_row_is_proved_here_or_with_the_first_families() -> None:
    assert {kind for kind in FAMILIES if kind in CONFIG_MAPPING_NAMES} == {*HEAD_FAMILIES, *FURTHER}


def accepts(act: Callable[[], object]) -> bool:
    try:
        act()
    except EncoderError:
        return False
    return True


def clonable(encoder: Encoder, transformer: PreTrainedModel) -> bool:
    other = copy.deepcopy(encoder)
    vars(other).pop("head_hooks", None)
    other.transformer = transformer
    return accepts(lambda: Clone.check_model(MultiTaskModel(other, {})))


def removal(encoder: Encoder, smaller: Encoder) -> str:
    """The entry for removal: from a copy with fewer heads, and from one closed head of the first layer."""
    places, mixing = encoder.head_hooks, build(encoder.config.model_type, talking_head=True)
    one = torch.ones(mixing.config.num_hidden_layers, HEADS)
    one[0, 1] = 0
    if not accepts(lambda: remove_heads(mixing, one)):
        return "but for talking heads"
    if len(without_heads(encoder, one[:LAYERS]).head_map.kept[0]) == HEADS:
        return "those closed in all layers"
    queries = getattr(by_layer(smaller.transformer, places.family.attention)[0], places.family.qkv[0])
    whole = places.family.layout == "apart" and len(matrix(queries)) == HEADS * places.width
    return "queries and keys stay" if whole else "yes"


@table(EVERY)
def test_the_table_of_abilities_says_what_is_measured(family: str, loaded, tmp_path: Path) -> None:
    """Each entry but for ONNX's (below) from what a tiny model does."""
    encoder, gates = loaded(family), torch.ones(LAYERS, HEADS)
    gates[:, 1] = 0
    batch, closed, plain = encoder.collate(encoder.tokenize_all(SENTENCES)), words(encoder, gates), words(encoder)
    smaller = without_heads(encoder, gates)
    assert_near(words(smaller), closed)
    smaller.save(tmp_path)
    seen = observe(encoder, batch, want={"attention", "heads"})
    whole = AutoModel.from_config(encoder.config)
    shared, owning = (clonable(encoder, build(family, num_key_value_heads=keys)) for keys in (HEADS // 2, HEADS))
    head = accepts(lambda: with_classifier(whole, nn.Linear(HIDDEN, 2), ["O", "B-X"]))
    assert abilities(family)._asdict() == {
        "family": family,
        "attention": "causal or full" if accepts(lambda: set_attention(whole.config, "causal")) else "full",
        "gates": "no" if torch.equal(closed, plain) else "yes",
        "removal": removal(encoder, smaller),
        "reload": "yes" if torch.equal(words(Encoder.load(str(tmp_path), attention="eager")), words(smaller)) else "no",
        "observation": "yes" if seen.heads[0].shape[2:] == (HEADS, encoder.head_hooks.width) else "no",
        "probes": "yes" if seen.attention[0].triu(1).any() else "causal: to the left",
        "clones": {(False, False): "no", (False, True): "if no keys are shared", (True, True): "yes"}[shared, owning],
        "decomposition": "yes" if obstacle(encoder) is None else "no",
        "export": ("yes" if type(whole) is type(encoder.transformer) else "encoder alone") + ", with a head" * head,
        "onnx": abilities(family).onnx,
    }


@table(EVERY)
def test_gates_close_heads_and_closed_heads_go(family: str, loaded, tmp_path: Path) -> None:
    """Gate 1 ≡ no gate; gate 0 ≡ removed, in a padded batch; saved and reloaded ≡ before; gated or removed again ≡
    both; under autocast much the same. With fused attention, where there is one."""
    encoder = loaded(family, "sdpa")
    plain = words(encoder)
    assert torch.equal(words(encoder, torch.ones(LAYERS, HEADS)), plain)
    for place, gates in enumerate(GATES):
        wanted = words(encoder, gates)
        assert not torch.allclose(wanted, plain, atol=1e-3)
        smaller = without_heads(encoder, gates)
        assert_near(words(smaller), wanted)
        smaller.save(tmp_path / str(place))
        again = Encoder.load(str(tmp_path / str(place)))
        assert torch.equal(words(again), words(smaller)) and again.head_map == smaller.head_map
        further = torch.ones(LAYERS, HEADS)
        further[:, 3] = 0
        assert_near(words(again, further), words(encoder, gates * further))  # in original numbering
        both = without_heads(again, further)
        assert_near(words(both), words(encoder, gates * further))
        both.save(tmp_path / str(place))  # replaced as a whole
        assert torch.equal(words(Encoder.load(str(tmp_path / str(place)))), words(both))
    assert torch.equal(words(encoder), plain) and len(list(tmp_path.iterdir())) == len(GATES)
    with torch.autocast("cpu", torch.bfloat16):
        half = words(encoder)
    assert half.dtype == torch.float32 and (half - plain).norm() < 0.15 * plain.norm()


@table(EVERY)
def test_outputs_of_heads_add_up_to_that_of_their_block(family: str, loaded) -> None:
    encoder, gates = loaded(family), GATES[0]
    outputs = by_layer(encoder.transformer, encoder.head_hooks.family.output)
    given: list[Tensor] = []
    handles = [
        output.register_forward_hook(lambda module, args, result: given.append(result))
        for output in dict.fromkeys(outputs)
    ]
    batch = encoder.collate(encoder.tokenize_all(SENTENCES))
    seen = observe(encoder, batch, gates, want={"heads", "attention", "hidden"})
    for handle in handles:
        handle.remove()
    for heads, output, result, maps in zip(seen.heads, outputs, given, seen.attention, strict=True):
        columns = matrix(output).unflatten(1, heads.shape[2:])  # (H, n, d)
        total = torch.einsum("blnd,hnd->blh", heads, columns)
        assert_near(total if output.bias is None else total + output.bias, result)
        assert_near(maps[0].sum(-1), torch.ones(maps.shape[1:3]))
        assert maps[0].triu(1).any() == (encoder.attention_direction == "full")
    if encoder.attention_direction == "full":
        assert_near(seen.word_vectors(seen.last)[:5], words(encoder, gates)[:5])


@table(EVERY)
def test_transformers_alone_load_what_is_exported(family: str, loaded, tmp_path: Path) -> None:
    """Gates in the weights, and removed heads put back as closed ones, of a layer without any head too."""
    encoder = loaded(family)
    batch = encoder.collate(encoder.tokenize_all(SENTENCES))
    ids, mask = batch.input_ids, batch.attention_mask
    auto = AutoModelForTextEncoding if family in ENCODER_DECODERS else AutoModel

    def states(model) -> Tensor:
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]

    for place, gates in enumerate(GATES):
        if family == "albert":  # its layers are one module
            gates = gates[:1].expand(LAYERS, HEADS)
        with encoder.gated(gates):
            wanted = states(encoder.transformer)
        folded = copy.deepcopy(encoder.transformer)
        fold_gates(folded, gates, encoder.head_hooks.kept_heads)
        smaller = without_heads(encoder, gates)
        models = {"folded": folded, "whole": with_all_heads(smaller.transformer, smaller.head_map)}
        for name, model in models.items():
            with quiet():
                model.save_pretrained(tmp_path / f"{name}-{place}")
                assert_near(states(auto.from_pretrained(tmp_path / f"{name}-{place}").eval()), wanted)


LIKE_BERT = ("roberta", "deberta", "electra", "xlm-roberta", "camembert")  # or like deberta-v2
EXPORTED = [name for name in EVERY if name not in (*LONG_TAIL, *LIKE_BERT)]


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == "bert" else pytest.mark.slow) for name in EXPORTED]
)
def test_a_layer_without_heads_is_exported_to_onnx(family: str, tiny_encoder, tmp_path: Path) -> None:
    """Products of width 0 can be written, but no runtime reads them. T5 and umT5 torch cannot export whole either."""
    gates = GATES[1] if family != "albert" else torch.zeros(LAYERS, HEADS)
    whole = Encoder.load(str(tiny_encoder(family)))
    exported = abilities(family).onnx == "yes"
    for encoder in (without_heads(whole, gates), *(() if exported else (whole,))):
        batch = encoder.collate(encoder.tokenize_all(SENTENCES))
        given = encoder.transformer, batch.input_ids, batch.attention_mask, tmp_path / "model.onnx"
        with nullcontext() if exported else pytest.raises(Exception, match="ONNX"):
            assert_near(encoder._pool(by_onnx(*given).flatten(0, 1), batch), words(encoder))


@pytest.mark.parametrize("rank", [None, 2])
@table(CLONED)
def test_clones_begin_as_the_shared_heads_and_fold_into_weights(family: str, rank: int | None, loaded) -> None:
    """What a clone adds is added to the weights of its task and heads only: where these are closed, nothing changes."""
    encoder = copy.deepcopy(loaded(family))
    plain, others = words(encoder), torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.5, 1.0, 1.0, 0.0]])
    closed = words(encoder, others)
    batch = encoder.collate(encoder.tokenize_all(SENTENCES))
    encoder.clones = Clones(encoder.transformer, encoder.head_hooks, ["1-2", "2-4"], ["pos", "ner"], rank)
    with torch.no_grad():
        one, other = encoder.encode_for_tasks(batch, ["pos", "ner"])
        assert_near(one.words, plain)
        assert_near(other.words, plain)
        for name, delta in encoder.clones.deltas.items():
            delta[1] = torch.randn(delta[1].shape, generator=torch.Generator().manual_seed(len(name)))
        one, other = encoder.encode_for_tasks(batch, ["pos", "ner"])
        assert_near(one.words, plain)
        assert not torch.allclose(other.words, plain, atol=1e-3)
        assert_near(encoder.encode_for_tasks(batch, ["ner"], others)[0].words, closed)
        encoder.clones.fold("ner")
    encoder.clones = None
    assert_near(words(encoder), other.words)
    assert_near(words(encoder, others), closed)
    for old, new in zip(head_parameters(loaded(family)), head_parameters(encoder), strict=True):
        moved = (old.parameter != new.parameter)[..., None].movedim(new.dim, 0).flatten(1).any(1)
        own = new.owners[(1, 3)[new.layer]]
        assert not moved[~own].any() and (moved[own].all() or new.parameter.dim() == 1)


@table(DECODERS)
def test_full_attention_sees_the_right_and_causal_does_not(family: str, loaded, tiny_encoder) -> None:
    """Also of an unpadded batch, for which no mask is made; a word is its last sub-word where only that has seen it."""
    changed = [[*SENTENCES[0][:-1], "nobody"], SENTENCES[1]]
    causal, folder = loaded(family), str(tiny_encoder(family))
    assert (causal.attention_direction, causal.pooling) == ("causal", "last")
    for attention in ("eager", "sdpa"):
        full = Encoder.load(folder, attention_direction="full", attention=attention)
        assert (full.attention_direction, full.pooling) == ("full", "mean")
        for some in (slice(None), slice(1)):
            before, after = words(causal, None, SENTENCES[some]), words(causal, None, changed[some])
            assert torch.equal(before[:4], after[:4]) and not torch.allclose(before[4], after[4], atol=1e-3)
            moved = words(full, None, SENTENCES[some])[:4] - words(full, None, changed[some])[:4]
            assert (moved.abs().amax(1) > 1e-3).all()
    pieces = causal.tokenize(SENTENCES[1])
    row = torch.tensor([[*causal.frame.before, *pieces.ids.tolist(), *causal.frame.after]])
    hidden = causal.transformer(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state[0]
    ends = torch.tensor(pieces.counts).cumsum(0) - 1 + len(causal.frame.before)
    assert_near(words(causal, None, SENTENCES[1:]), hidden[ends])


def test_which_words_are_seen_is_saved_and_refused_where_it_cannot_be(tiny_encoder, tmp_path: Path) -> None:
    full = Encoder.load(str(tiny_encoder("llama")), attention_direction="full")
    full.save(tmp_path / "full")
    again = Encoder.load(str(tmp_path / "full"))
    assert again.attention_direction == "full" and torch.equal(words(again), words(full))
    assert Encoder.load(str(tmp_path / "full"), attention_direction="causal").attention_direction == "causal"
    with pytest.raises(EncoderError, match="causal is for decoder-only models, and 'ernie' is an encoder"):
        Encoder.load(str(tiny_encoder("ernie")), attention_direction="causal")
    with pytest.raises(EncoderError, match=r"encoder\.pooling: under causal attention the first sub-word"):
        Encoder.load(str(tiny_encoder("llama")), pooling="first")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@table(GROUPED)
def test_heads_share_keys_as_long_as_groups_are_alike(family: str, attention: str, loaded) -> None:
    """Query heads 1 and 2 share a key and a value, 3 and 4 another; a group whose heads are all closed is gone."""
    encoder = loaded(family, attention)
    assert encoder.head_hooks.groups == [2, 2]
    open_heads = {(0, 1): (2, 1), (0, 2): (1, 2), (3,): (1, 1), (0, 1, 2): (1, 3), (0, 1, 2, 3): (2, 2), (): (1, 0)}
    for kept, (group, values) in open_heads.items():
        gates = torch.ones(LAYERS, HEADS)
        gates[0] = 0
        gates[0, list(kept)] = 1
        smaller = without_heads(encoder, gates)
        assert_near(words(smaller), words(encoder, gates))
        attention = by_layer(smaller.transformer, smaller.head_hooks.family.attention)[0]
        assert smaller.head_hooks.groups == [group, 2] == list(smaller.head_map.groups)
        assert attention.v_proj.out_features == values * smaller.head_hooks.width


def test_copies_of_keys_that_were_trained_apart_are_not_put_back(loaded) -> None:
    smaller = without_heads(loaded("llama"), torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0] * 4]))
    attention = smaller.transformer.layers[0].self_attn
    with torch.no_grad():
        attention.k_proj.weight[0] += 1
    with pytest.raises(EncoderError, match=r"were trained apart.*--remove"):
        with_all_heads(smaller.transformer, smaller.head_map)


@table(CHECKPOINTED)
def test_checkpointing_runs_layers_again_with_the_same_gates_and_dropout(family: str, tmp_path: Path) -> None:
    """Two gate sets on one batch, as two tasks have them: bit for bit the gradients of all that can learn."""
    encoder = Encoder.load(str(make_tiny(family, tmp_path, dropout=0.1)), word_dropout=0.2).train()
    batch = encoder.collate(encoder.tokenize_all(SENTENCES))
    copied = copy.deepcopy(encoder)
    copied.use_checkpointing()
    copied = copy.deepcopy(copied)  # has to ask its own places
    slopes, calls = [], []
    for one in (encoder, copied):
        runs: list[int] = []
        attention = by_layer(one.transformer, one.head_hooks.family.attention)[0]
        attention.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        first, second = drawn(LAYERS).requires_grad_(), (1 - drawn(LAYERS)).requires_grad_()
        torch.manual_seed(1)
        loss = sum(one(batch, gates).words.square().sum() for gates in (first, second, None))
        with one.head_hooks.cache_outputs() as seen:
            loss.backward()
        assert seen == []
        slopes.append([first.grad, second.grad, *(p.grad for p in one.parameters() if p.grad is not None)])
        calls.append(len(runs))
    assert calls == [3, 6] and len(slopes[0]) == len(slopes[1])
    assert all(torch.equal(*pair) for pair in zip(*slopes, strict=True))
    assert torch.equal(words(encoder.eval()), words(copied.eval()))


@table([name for name in EVERY if name not in CHECKPOINTED])
def test_checkpointing_is_refused_where_there_is_none(family: str, loaded) -> None:
    with pytest.raises(EncoderError, match=f"no gradient checkpointing for '{family}'"):
        copy.deepcopy(loaded(family)).use_checkpointing()


@table(EVERY)
def test_kinds_of_ablation_act(family: str, tiny_encoder) -> None:
    """Resample with the same sentence ≡ exchange with it ≡ a factor of 1 ≡ no ablation; a factor of 0 ≡ zero; a mean ≡
    that vector at every slot; each kind changes what heads give, and the constant that is fitted loses no more than the
    mean on what it was fitted on. Each kind gives the same again in any order, as none changes the encoder."""
    encoder, heads = Encoder.load(str(tiny_encoder(family)), attention="eager").requires_grad_(False), GATES[1] < 0.5
    plain, pieces = words(encoder), encoder.tokenize_all(SENTENCES)
    batch = encoder.collate(pieces)
    own = torch.arange(batch.input_ids.numel()).view_as(batch.input_ids)
    with torch.no_grad(), encoder.head_hooks.gated(GATES[1], encoder.outputs_elsewhere(batch, own)):
        assert_near(encoder(batch).words, plain)  # z · output + (1 − z) · output, for gates between 0 and 1 too
    with torch.no_grad(), ablated(encoder, heads, "exchange", outputs=head_outputs(encoder, batch)):
        assert_near(encoder(batch).words, plain)
    means = measure_means(encoder, pieces)
    with torch.no_grad():  # a constant is the same vector at every slot
        with encoder.head_hooks.gated(GATES[1], [mean.expand(*own.shape, *mean.shape) for mean in means]):
            by_slot = encoder(batch).words
        with encoder.head_hooks.gated(GATES[1], means):
            assert_near(encoder(batch).words, by_slot)

    def loss(constants: Tensor) -> Tensor:
        with ablated(encoder, heads, "optimal", constants=constants):
            return (encoder(batch).words - plain).square().sum()

    settings: dict[str, dict[str, Any]] = {"zero": {}, "mean": {"constants": means}, "resample": {"seed": 0}}
    settings |= {"optimal": {"constants": fit_constants([loss], means, steps=8)}, "scale": {"factor": 2.0}}
    settings["exchange"] = {"outputs": [other.flip(1) for other in head_outputs(encoder, batch)]}

    def measured(kind: str) -> Tensor:
        with ablated(encoder, heads, kind, **settings[kind]):
            return words(encoder)

    results = {"open": plain} | {kind: measured(kind) for kind in settings}
    assert all(torch.equal(measured(kind), results[kind]) for kind in reversed(settings))
    assert torch.equal(words(encoder), plain) and torch.equal(words(encoder, (~heads).float()), results["zero"])
    apart = [(one, other) for one in results for other in results if one < other]
    assert all(not torch.allclose(results[one], results[other], atol=1e-4) for one, other in apart)
    for factor, kind in ((1.0, "open"), (0.0, "zero")):
        with ablated(encoder, heads, "scale", factor=factor):
            assert torch.equal(words(encoder), results[kind])
    losses = {kind: float((values - plain).square().sum()) for kind, values in results.items()}
    assert losses["optimal"] < min(losses["mean"], losses["zero"])


@table([*EVERY, "four layers", "convolution"])
def test_layers_below_an_ablated_head_need_no_second_pass(family: str, loaded, tiny_encoder, tmp_path: Path) -> None:
    """Bit for bit, over batches of different shapes. Families in COMPUTE_ALL compute all layers."""
    if family in ("four layers", "convolution"):
        own = {"convolution": ("deberta-v2", {"conv_kernel_size": 3})}.get(family, ("bert", {}))
        folder = shutil.copytree(tiny_encoder(own[0]), tmp_path / "four")
        config = AutoConfig.from_pretrained(folder, num_hidden_layers=4, **own[1])
        AutoModel.from_config(config).save_pretrained(folder)
        encoder = Encoder.load(str(folder), attention="eager")
    else:
        encoder = loaded(family)
    hooks, lower, batches = encoder.head_hooks, LowerLayers(encoder), [SENTENCES, SENTENCES[:1], SENTENCES[1:] * 3]
    with lower.recorded():
        plain = [words(encoder, sentences=batch) for batch in batches]
    for layer in range(hooks.layers):
        heads = torch.zeros(hooks.layers, HEADS, dtype=torch.bool)
        heads[layer, 1] = True
        with ablated(encoder, heads):
            expected = [words(encoder, sentences=batch) for batch in batches]
            calls: list[None] = []
            outputs = set(by_layer(encoder.transformer, hooks.family.output))
            counters = [
                output.register_forward_pre_hook(lambda *_, calls=calls: calls.append(None)) for output in outputs
            ]
            with lower.skipped(layer):
                found = [words(encoder, sentences=batch) for batch in batches]
            for counter in counters:
                counter.remove()
        assert all(map(torch.equal, found, expected)) and not torch.equal(found[0], plain[0])
        assert len(calls) == len(batches) * (hooks.layers - layer * (family not in COMPUTE_ALL))
    assert all(map(torch.equal, [words(encoder, sentences=batch) for batch in batches], plain))
