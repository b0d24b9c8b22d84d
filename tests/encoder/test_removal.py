"""Heads removed ≡ heads masked, in every family; saved and reloaded ≡ before; what does not fit is refused in words."""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from head_models import IDS, MASK, WITH_SDPA, build, drawn, gated, run
from run_folders import change_json
from safetensors.torch import load_file, save_file
from tiny import HEAD_FAMILIES, HEADS, LAYERS
from torch import Tensor
from transformers import PreTrainedModel

from mtlprune.encoder.heads import HeadHooks
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.pieces import EncoderError
from mtlprune.encoder.removal import KeptHeads, load_pruned, remove_heads, save_pruned
from mtlprune.encoder.sources import quiet
from mtlprune.evaluation.head_masks import OPEN_ABOVE
from mtlprune.io.files import SUMS

DOCS = Path(__file__).parents[2] / "docs/guides/removal.md"


def gates_of(pattern: list[list[int]], layers: int = LAYERS, whole: bool = False) -> Tensor:
    """Gates closed but for the pattern's heads, which are 1 or all different; layers take the patterns in turn."""
    gates, values = torch.zeros(layers, HEADS), torch.ones(layers, HEADS) if whole else drawn(layers)
    for layer in range(layers):
        heads = pattern[layer % len(pattern)]
        gates[layer, heads] = values[layer, heads]
    return gates


def reloaded(model: PreTrainedModel, heads: KeptHeads, folder: Path) -> PreTrainedModel:
    with quiet():
        save_pruned(model, heads, folder)
    return load_pruned(folder, attention="eager")


def test_a_gate_just_open_stays_and_one_just_closed_goes():
    gates = torch.tensor([[OPEN_ABOVE, 1.1 * OPEN_ABOVE, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert remove_heads(build("bert"), gates).kept == ((1, 3), (0, 1, 2, 3))


def test_of_layers_that_share_a_module_a_head_goes_when_it_is_closed_in_all():
    gates = torch.ones(4, HEADS)
    gates[0, 0] = gates[1, :2] = gates[2, 3] = gates[3, 3] = 0
    model = build("albert")
    whole = copy.deepcopy(model)
    heads = remove_heads(model, gates)
    assert heads.kept == ((1, 2, 3), (1, 2, 3), (0, 1, 2), (0, 1, 2)) and heads.layer_gates
    expected = run(model)
    torch.testing.assert_close(expected, gated(whole, gates))
    handle = model.encoder.albert_layer_groups[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model)
    handle.remove()
    assert torch.equal(run(model), expected)  # a pass that breaks off does not shift later ones


def test_heads_that_are_mixed_cannot_go():
    model = build("deberta", talking_head=True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(EncoderError, match=r"layer 1: its head_logits_proj mixes the heads"):
        remove_heads(model, gates_of([[0, 1, 2, 3], [0]]))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    removed, gates = copy.deepcopy(model), gates_of([[0, 1, 2, 3]])
    remove_heads(removed, gates)
    torch.testing.assert_close(run(removed), gated(model, gates))


@pytest.fixture(scope="module")
def pruned(tmp_path_factory, tiny_encoder) -> Path:
    encoder = Encoder.load(str(tiny_encoder("bert")), pooling="first")
    encoder.head_map = remove_heads(encoder.transformer, gates_of([[2], []]))
    folder = tmp_path_factory.mktemp("pruned") / "encoder"
    encoder.save(folder)
    return folder


def test_without_context_there_are_no_heads(pruned, tmp_path):
    encoder = Encoder.load(str(pruned), context=False)
    with pytest.raises(EncoderError, match="without context is kept with its run only"):
        encoder.save(tmp_path / "saved")
    assert encoder.head_map is None


def test_the_snippet_of_the_docs_runs(pruned):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 2 and len(blocks[0].split("\n\n")[-1].splitlines()) == 2
    here: dict[str, Any] = {}
    exec(re.sub(r'"runs/.*?"', repr(str(pruned)), blocks[0]) + blocks[1], here)
    assert torch.equal(here["hidden"], load_pruned(pruned)(**here["inputs"]).last_hidden_state)


@pytest.fixture
def damaged(pruned, tmp_path) -> Path:
    """Without its sums: its files are judged by what they hold."""
    return Path(shutil.copytree(pruned, tmp_path / "encoder", ignore=shutil.ignore_patterns(SUMS)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kept": [[2]]}, r"heads.json: unexpected content: heads that the model in the folder does not have"),
        ({"kept": [[2], [0, 4]]}, r"heads.json: unexpected content"),
        ({"kept": [[2], [1, 0]]}, r"heads.json: unexpected content: heads that"),
        ({"kept": [[2], [0], [1]]}, r"heads.json: unexpected content"),
        ({"heads": 5}, r"heads.json: unexpected content: heads that"),
        ({"family": "roberta"}, r"heads.json: unexpected content: heads that"),
        ({"kept": None}, r"heads.json: unexpected content"),
        ({"format": 2}, r"heads.json: unexpected content: the format 2"),
        ({"kept": [[2], [0]]}, r"model.safetensors does not hold the weights .* size mismatch"),
        ({"layer_gates": True}, r"model.gated.safetensors is missing"),
    ],
)
def test_a_head_map_that_does_not_fit_is_refused(damaged, values, message):
    change_json(damaged / "heads.json", **values)
    for load in (load_pruned, lambda folder: Encoder.load(str(folder))):
        with pytest.raises(EncoderError, match=message):
            load(damaged)


def test_layers_that_share_a_module_keep_the_same_heads(tmp_path):
    model = build("albert")
    reloaded(model, remove_heads(model, gates_of([[1, 2]], 4)), tmp_path)
    change_json(tmp_path / "heads.json", kept=[[1, 2], [1], [1, 2], [1, 2]])
    with pytest.raises(EncoderError, match=r"heads.json: unexpected content: heads that"):
        load_pruned(tmp_path)


def test_files_that_are_missing_or_broken_are_named(damaged):
    weights = load_file(damaged / "model.safetensors")
    save_file({**weights, "surplus": torch.zeros(1)}, damaged / "model.safetensors")
    with pytest.raises(EncoderError, match=r"does not hold the weights .*surplus"):
        load_pruned(damaged)
    (damaged / "heads.json").unlink()
    with pytest.raises(EncoderError, match=r"does not fit its config.json: \d+ weights have other shapes"):
        Encoder.load(str(damaged))
    with pytest.raises(EncoderError, match=r"heads.json is missing: expected a folder with a model from which heads"):
        load_pruned(damaged)


@torch.no_grad()
@pytest.mark.parametrize("family", HEAD_FAMILIES)
def test_every_layer_has_its_entry_among_attentions(family, tmp_path):
    """With transformers' own output_attentions, in memory and reloaded; without fused kernels only, as transformers."""
    whole = build(family)
    layers = whole.config.num_hidden_layers
    pattern = [[], [1, 3]] if family != "albert" else [[], [], [1, 3], [1, 3]]
    kept = [pattern[layer] for layer in range(layers)]
    inputs = {"input_ids": IDS, "attention_mask": MASK, "output_attentions": True}
    wanted = [(2, len(heads), 7, 7) for heads in kept]
    gates = gates_of(pattern, layers, whole=True)
    with HeadHooks(whole).gated(gates):  # and transformers' hooks are there before heads are removed
        before = whole(**inputs).attentions
    heads = remove_heads(whole, gates)
    for model in (whole, copy.deepcopy(whole), reloaded(whole, heads, tmp_path)):
        found = model(**inputs).attentions
        assert [tuple(one.shape) for one in found] == wanted
        torch.testing.assert_close(found[-1], before[-1][:, [1, 3]])
        if family in WITH_SDPA:
            model.set_attn_implementation("sdpa")
            assert not any(one is not None for one in model(**inputs).attentions or ())
