"""Treatments against their oracles: what gives joint training, gradients by brute force, outputs of changed weights."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from run_folders import change_json
from small_runs import Settings, assert_alike, check_refused, check_resumes, gradients, train_until, trained, trainer
from tiny import make_tiny
from torch import Tensor

from mtlprune.analyses.harness.reading import find_sources
from mtlprune.config.blocks import ADDED_TREATMENTS, HeadsConfig
from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.observe import observe, use_eager
from mtlprune.encoder.pieces import EncoderError
from mtlprune.model import MultiTaskModel
from mtlprune.reports.page import runs as page
from mtlprune.reports.page.claims import claim_sets
from mtlprune.runs.folder import RunError, RunFolder
from mtlprune.runs.groups import DescribedRun
from mtlprune.runs.results import Result, head_rows, write_result
from mtlprune.training.heads import drawn_heads
from mtlprune.training.loop import train
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.treatments import begin_treatments
from mtlprune.training.treatments.base import HeadGradients
from mtlprune.training.treatments.distil import teaching_of
from mtlprune.training.treatments.merge import arithmetic, ties

CARD = Path(__file__).parents[2] / "docs/methods/treatments.md"
ALL = ("pos", "ner", "dep", "con", "srl")
ROWS = [1, 2, 4, 5, 7, 8, 10, 11, 13]
BATCH = MiniBatch(ALL, ROWS)
OWN = {"pos": "1-1", "ner": "1-1,2-3", "dep": "2-3", "con": "1-2,2-4", "srl": "1-1,1-2,1-3,1-4,2-1,2-2,2-3,2-4"}
RANDOM = {"rule": "random", "like": {"named": "1-1,1-2,2-4"}, "seed": 3}


@pytest.fixture(scope="module")
def plain(quiet_settings: Settings) -> Settings:
    """Without dropout; ``treatment`` is that of the configuration."""
    return lambda treatment=None, tasks="pos,ner,dep,con,srl", **how: (
        quiet_settings(tasks, **{"warmup": 0.0, "clip": 1e9, **how}) | {"treatment": treatment or {}}
    )


@pytest.fixture(scope="module")
def finished(plain: Settings, tmp_path_factory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("finished")
    return {task: str(trained(plain(tasks=task, epochs=1), out / task).path) for task in ALL}


@pytest.fixture(scope="module")
def both(plain: Settings, tmp_path_factory) -> str:
    return str(trained(plain(tasks="pos,dep", epochs=1), tmp_path_factory.mktemp("both") / "run").path)


@pytest.fixture(scope="module")
def joint(plain: Settings, tmp_path_factory) -> dict[str, Tensor]:
    return gradients(trainer(plain(), tmp_path_factory.mktemp("joint") / "run"), BATCH)


@pytest.fixture(scope="module")
def alone(plain: Settings, tmp_path_factory) -> dict[str, dict[str, Tensor]]:
    return each_task(plain(), tmp_path_factory.mktemp("alone"))


def each_task(settings: dict[str, Any], folder: Path) -> dict[str, dict[str, Tensor]]:
    return {task: gradients(trainer(settings, folder / task), MiniBatch((task,), ROWS)) for task in ALL}


def head_slices(made: Any) -> list[tuple[str, Any]]:
    names = {id(parameter): name for name, parameter in made.model.named_parameters()}
    return [(names[id(part.parameter)], part) for part in HeadGradients(made.model).parts]


@pytest.mark.parametrize("treatment", ["dispatch", "distil", "clone", "clone of rank 3"])
def test_where_nothing_is_treated_it_is_joint_training(treatment, plain: Settings, finished, joint, tmp_path):
    """All heads dispatched to all tasks, gold alone (at the end of distillation), clones before their first update."""
    block = {
        "dispatch": {"dispatch": {"heads": "all", "last": 1.0}},
        "distil": {"distil": {"teachers": finished}},
        "clone": {"clone": {"heads": "2-1,2-3"}},
        "clone of rank 3": {"clone": {"heads": "2-1,2-3", "rank": 3}},
    }[treatment]
    made = trainer(plain(block), tmp_path / "run")
    made.progress.step = made.total - 1
    found = gradients(made, BATCH)
    if "clone" in block:
        assert_alike({name: found[name] for name in joint}, joint)
    else:  # bit for bit
        assert all(torch.equal(found[name], value) for name, value in joint.items()) and found.keys() == joint.keys()


def test_dispatch_begins_with_the_last_updates_and_distillation_ends_with_them(plain: Settings, finished, tmp_path):
    blocks = {"dispatch": {"heads": {"per_task": OWN}, "last": 0.25}, "distil": {"teachers": finished}}
    made, active, weights = trainer(plain(blocks), tmp_path / "run"), [], []
    parts = {type(part).__name__: part for part in made.treatments}
    for step in range(made.total):
        made.progress.step = step
        made.begin_update()
        active.append(parts["Dispatch"].active)
        weights.append(parts["Distil"].weight)
    assert made.total == 12 and active == [False] * 9 + [True] * 3
    assert weights == pytest.approx([step / 11 for step in range(12)])


@pytest.mark.parametrize("how", ["joint", "one task a batch"])
def test_dispatch_gives_each_head_the_gradients_of_its_tasks_alone(how, plain: Settings, tmp_path):
    mixing = {"mixing": "sampled", "accumulate": 5} if how != "joint" else {}
    settings = plain({"dispatch": {"heads": {"per_task": OWN}, "last": 1.0}}, **mixing)
    made = trainer(settings, tmp_path / "run")
    batches = [BATCH] if how == "joint" else [MiniBatch((task,), ROWS) for task in ALL]
    found = gradients(made, *batches)
    alone = each_task(plain(**mixing), tmp_path)
    for name, part in head_slices(made):
        for task in ALL:
            alone[task][name] *= part.broadcast_to_rows(made.treatments[-1].heads[task][part.layer].float())
    expected: dict[str, Tensor] = {}
    for gradient in alone.values():
        for name, value in gradient.items():
            expected[name] = expected.get(name, 0) + value / len(batches)
    assert_alike(found, expected)


@pytest.mark.parametrize("tasks", [(), ("ner", "srl")])
def test_protected_heads_have_no_gradient_of_those_tasks(tasks, plain: Settings, alone, tmp_path):
    made = trainer(plain({"protect": {"heads": "1-2,2-1", "tasks": list(tasks)}}), tmp_path / "run")
    found = gradients(made, BATCH)
    for name, part in head_slices(made):
        kept = torch.tensor([float(h != (1, 0)[part.layer]) for h in range(4)])
        terms = [alone[t][name] * (part.broadcast_to_rows(kept) if t in (tasks or ALL) else 1.0) for t in ALL]
        torch.testing.assert_close(found[name], torch.stack(terms).sum(0), rtol=1e-4, atol=1e-6)
        if not tasks:
            assert not found[name][(part.broadcast_to_rows(kept) == 0).expand_as(found[name])].any()


def projected(each: Tensor, generator: torch.Generator) -> Tensor:
    """PCGrad as it is written down: (T, D) → (D,)."""
    total = torch.zeros_like(each[0])
    for own in range(len(each)):
        gradient = each[own].clone()
        for other in torch.randperm(len(each), generator=generator).tolist():
            product = gradient @ each[other]
            if other != own and product < 0:
                gradient -= product / (each[other] @ each[other]) * each[other]
        total += gradient
    return total


@pytest.mark.parametrize("places", [((0, 1), (1, 3)), ((1, 0), (1, 3))])
def test_projection_at_heads_is_that_of_each_heads_gradients(places, plain: Settings, alone, tmp_path):
    heads = ",".join(f"{layer + 1}-{head + 1}" for layer, head in places)
    made = trainer(plain({"project": {"at": "heads", "heads": heads}}), tmp_path / "run")
    found = gradients(made, BATCH)
    made.treatments[-1].before_update(0)

    def own(gradient: dict[str, Tensor], layer: int, head: int) -> Tensor:
        parts = [(gradient[name], part) for name, part in head_slices(made) if part.layer == layer]
        rows = [value.index_select(part.dim, part.owners[head].nonzero()[:, 0]) for value, part in parts]
        return torch.cat([row.double().flatten() for row in rows])

    for place in places:
        each = torch.stack([own(alone[task], *place) for task in ALL])
        expected = projected(each, made.treatments[-1].generator)
        torch.testing.assert_close(own(found, *place), expected, rtol=1e-3, atol=1e-5)


def test_projection_at_features_is_that_of_word_vectors(plain: Settings, tmp_path):
    made = trainer(plain({"project": {}}, seed=2), tmp_path / "run")
    found = gradients(made, BATCH)
    other = trainer(plain(seed=2), tmp_path / "joint")
    batch = other.data.batch(BATCH)
    [(encoded, _)] = other.model.encodings(batch.pieces, list(ALL))
    sources = [encoded.words, encoded.cls, encoded.sep]
    each = []
    for task in ALL:
        loss = other.model.decoder_loss(task, encoded, *batch.targets[task])
        own = torch.autograd.grad(loss, sources, retain_graph=True, allow_unused=True, materialize_grads=True)
        each.append(torch.cat([gradient.flatten().double() for gradient in own]))
    made.treatments[-1].before_update(0)
    total = projected(torch.stack(each), made.treatments[-1].generator)
    assert not torch.allclose(total, torch.stack(each).sum(0))  # there are conflicts
    parts = total.float().split([s.numel() for s in sources])
    torch.autograd.backward(sources, [p.view_as(s) for p, s in zip(parts, sources, strict=True)])
    encoder = {f"encoder.{n}": p.grad for n, p in other.model.encoder.named_parameters() if p.grad is not None}
    assert_alike({name: found[name] for name in encoder}, encoder, 1e-4)
    joint = gradients(trainer(plain(seed=2), tmp_path / "whole"), BATCH)
    assert_alike(*({n: g for n, g in each.items() if n.startswith("tasks.")} for each in (found, joint)))


@pytest.mark.parametrize(
    ("family", "more"),
    [("albert", {}), ("eurobert", {"num_key_value_heads": 2}), ("deberta", {"talking_head": True}), ("deberta-v2", {})],
)
def test_heads_without_weights_of_their_own_are_refused(family, more, plain: Settings, tmp_path):
    settings = plain({"clone": {"heads": "1-1"}}, "pos,dep")
    config = make_tiny(family, tmp_path / "encoder") / "config.json"
    change_json(config, **more)
    settings["encoder"] = {"name": str(config.parent), "random": True}
    check_refused(settings, tmp_path, "cannot be treated separately")


@pytest.mark.parametrize(("rank", "precision"), [(None, "fp32"), (2, "bf16")])
def test_clones_train_are_kept_and_are_not_read_as_one_encoder(rank, precision, plain: Settings, both, tmp_path):
    settings = plain({"clone": {"heads": RANDOM, "rank": rank}}, "pos,dep", epochs=1, precision=precision)
    run = trained(settings, tmp_path / "run")
    assert [len(heads) for heads in run.treated()["clone"]["heads"].values()] == [3]
    model = MultiTaskModel.load(run.path)
    assert all(bool(delta.any()) for name, delta in model.encoder.clones.deltas.items() if name.endswith("output"))
    batch = model.encoder.collate(model.encoder.tokenize_all([("a", "dog")]))
    for reading in (lambda: model.encoder(batch), lambda: observe(use_eager(model.encoder), batch)):
        with pytest.raises(EncoderError, match="this encoder has clones of heads for each of pos, dep"):
            reading()
    for subject, task in zip(find_sources([str(run.path)])[0].open(), ("pos", "dep"), strict=True):
        assert subject.label == f"POS+DEP:{task.upper()}" and subject.task == task
        torch.testing.assert_close(subject.encoder(batch).words, model.encoder.encode_for_tasks(batch, [task])[0].words)
        assert list(subject.model("cpu").tasks) == [task]
    with pytest.raises(ConfigError, match="expected a run without clones of heads"):
        trainer(plain(None, "pos,dep", start=str(run.path)), tmp_path / "other")
    begun = trainer(plain({"clone": {"heads": "2-1"}}, "pos,dep", start=both), tmp_path / "begun").model.state_dict()
    assert all(torch.equal(begun[name], value) for name, value in MultiTaskModel.load(both).state_dict().items())


@pytest.mark.parametrize("task", ALL)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(task, plain: Settings, finished, tmp_path):
    made = trainer(plain({"distil": {"teachers": {task: finished[task]}}}, task), tmp_path / "run")
    gold = trainer(plain(None, task), tmp_path / "gold")
    for one in (made, gold):
        one.model.load_state_dict(MultiTaskModel.load(finished[task]).state_dict())
    batch = MiniBatch((task,), ROWS)
    taught, learnt = gradients(made, batch), gradients(gold, batch)
    sizes = [max(float(g.abs().max()) for g in found.values()) for found in (taught, learnt)]
    assert sizes[0] < 1e-4 * sizes[1]


@pytest.mark.parametrize("left", [{}, {"begun_from": {}}, {"begun_from": {"treatment.distil.teachers.pos": {}}}])
def test_a_manifest_that_no_longer_names_the_teachers_is_refused(left, plain: Settings, finished, tmp_path):
    settings, run = plain({"distil": {"teachers": {"pos": finished["pos"]}}}, "pos"), RunFolder(tmp_path / "run")
    train_until(1, settings, run)
    manifest = run.read_manifest()
    del manifest["begun_from"]
    run.write_json("manifest.json", manifest | left)
    with pytest.raises(RunError, match=r"damaged: .*manifest\.json; restore"):
        train(build_config(settings), run)


class Sure:
    """A teacher that gives gold nearly all of its probability, in the place of the scores of a decoder."""

    def __init__(self, task: str, decoder: Any, encoded: Any, target: dict[str, Tensor]) -> None:
        self.decoder, self.encoded, self.target = decoder, encoded, target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoder, name)

    def scores(self, words: Tensor) -> Tensor:
        return sure(self.target["tags"], len(self.decoder.labels["tags"]))

    def span_scores(self, encoded: Any) -> Tensor:
        return sure(self.target["chart"].clamp(min=0), len(self.decoder.weight)).transpose(2, 3)

    def relation_scores(self, *_: Any) -> Tensor:
        return sure(self.target["relations"], len(self.decoder.labels["relations"]))

    def features(self, encoded: Any) -> tuple[Tensor, None]:
        if "chart" in self.target:
            return 50.0 * self.target["chart"].float(), None
        longest = max(encoded.sizes)
        heads = torch.full((len(encoded.sizes), longest, longest + 1), float("-inf"))
        for row, own in zip(heads, self.target["heads"].split(encoded.sizes), strict=True):
            row[: len(own), : len(own) + 1] = sure(own, len(own) + 1)
        return heads, None

    def label_scores(self, *_: Any) -> Tensor:
        return sure(self.target["labels"], len(self.decoder.labels["labels"]))


def sure(gold: Tensor, classes: int) -> Tensor:
    return 50.0 * torch.nn.functional.one_hot(gold, classes).float()


@pytest.mark.parametrize("task", ["pos", "ner", "dep", "con"])
def test_a_teacher_as_sure_as_gold_is_gold(task, plain: Settings, tmp_path):
    """With weights at which every class and every pair of words has another score."""
    made = trainer(plain(None, task), tmp_path / "run")
    decoder: Any = made.model.tasks[task]
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    batch = made.data.batch(MiniBatch((task,), ROWS))
    [(encoded, _)] = made.model.encodings(batch.pieces, [task])
    known, target = batch.targets[task]
    encoded = encoded if known is None else encoded.select(known)
    teach = teaching_of(decoder)
    loss = teach((decoder, encoded), (Sure(task, decoder, encoded, target), encoded), target)
    torch.testing.assert_close(loss, decoder.loss(encoded, target), rtol=1e-4, atol=1e-5)


def test_ties_by_hand_and_equal_models_merge_to_that_model():
    base = {"w": torch.zeros(5)}
    tuned = [{"w": torch.tensor(row)} for row in ([4.0, -1.0, 2.0, 0.1, 3.0], [2.0, 3.0, -5.0, 0.2, 0.1])]
    # the three largest of each: 4, 2, 3 and 2, 3, −5
    assert ties(base, tuned, None, 0.6)["w"].tolist() == [3.0, 3.0, -5.0, 0.0, 3.0]
    for merged in (arithmetic(base, tuned[:1] * 5, None), ties(base, tuned[:1] * 5, None, 1.0)):
        torch.testing.assert_close(merged, tuned[0])


@pytest.mark.parametrize("method", ["fisher", "arithmetic"])
def test_a_run_begins_from_the_merger(method, plain: Settings, finished, both, tmp_path):
    """That of twice one run is that run, of two runs is not."""
    again = MultiTaskModel.load(both).encoder.state_dict()
    for other, equal in ((finished["dep"], False), (both, True)):
        merge = {"sources": {"pos": both, "dep": other}, "method": method}
        made = trainer(plain({"merge": merge}, "pos,dep"), tmp_path / f"{equal}")
        begin_treatments(made.data, made.folder, torch.float32)
        found = made.model.encoder.state_dict()
        assert all(torch.allclose(found[name], value, atol=1e-6) for name, value in again.items()) == equal


def test_a_merger_has_constants_of_closed_heads_of_its_own(plain: Settings, finished, tmp_path):
    """The constants are measured in this run, and the merged runs have none."""
    pruning = {"method": "random", "keep": 4, "closed": "optimal"}
    settings = plain(
        {"merge": {"sources": {task: finished[task] for task in ("pos", "dep")}, "method": "arithmetic"}}, "pos,dep"
    ) | {"pruning": pruning}
    made = trainer(settings, tmp_path / "run")
    begin_treatments(made.data, made.folder, torch.float32)
    assert made.model.encoder.head_constants is not None


def test_the_merger_takes_whole_encoders_only(plain: Settings, finished, tmp_path):
    pruned = plain(tasks="dep", epochs=1) | {"pruning": {"method": "random", "keep": 4}}
    merge = {"sources": {"pos": finished["pos"], "dep": str(trained(pruned, tmp_path / "pruned").path)}}
    with pytest.raises(ConfigError, match=r"merge\.sources\.dep: expected a run with all heads open"):
        trainer(plain({"merge": merge}, "pos,dep"), tmp_path / "run")


def test_heads_by_claims_and_random_ones_of_the_same_layers(plain: Settings, tmp_path):
    grids = {"POS": [[1, 1, 0, 0], [0, 0, 1, 1]], "NER": [[1, 0, 0, 0], [1, 1, 1, 0]]}
    grids["DEP"] = [[1, 0, 0, 0], [0, 0, 1, 0]]
    ones, frames, encoder = [], [], Path(plain()["encoder"]["name"])
    for (label, grid), seed in itertools.product(grids.items(), (1, 2, 3)):
        who = {"encoder": label, "run": label, "seed": seed}
        gates = np.array(grid, float)  # which two seeds of three claim
        frames.append(head_rows({"gate": 1 - gates if seed == 3 else gates}).assign(**who))
        ones.append({**who, "kind": f"{encoder}/../{encoder.name}", "layers": 2, "heads": 4, "open": 8})
    write_result(tmp_path / "r", Result("claims", {"encoders": ones, "notes": []}, {"heads": pd.concat(frames)}))
    for kind in ("roberta-large", f"{encoder}, random weights"):  # of the same size
        about = {"encoders": [one | {"kind": kind} for one in ones], "notes": []}
        write_result(tmp_path / "other", Result("claims", about, {"heads": pd.concat(frames)}))
        with pytest.raises(ConfigError, match=rf"encoder .*{encoder.name}, found those of {kind} in .*/other; "):
            trainer(plain({"dispatch": {"heads": {"claims": str(tmp_path / "other")}}}, "pos,ner,dep"), tmp_path / "no")
    claims, tasks = {"claims": str(tmp_path / "r")}, "pos,ner,dep"
    made = trainer(plain({"dispatch": {"heads": claims}, "protect": {"heads": claims}}, tasks), tmp_path / "run")
    own = {"pos": ["1-1", "1-2", "2-3", "2-4"], "ner": ["1-1", "2-1", "2-2", "2-3"], "dep": ["1-1", "2-3"]}
    assert made.model.treated == {"dispatch": {"heads": own}, "protect": {"heads": {"shared": ["1-1", "2-3"]}}}
    random = {"rule": "random", "like": claims}
    made = trainer(plain({"dispatch": {"heads": random}}, tasks), tmp_path / "random")
    assert made.model.treated["dispatch"]["like"] == own and made.model.treated["dispatch"]["heads"] != own
    with pytest.raises(ConfigError, match=r"dispatch\.heads\.least has no effect"):
        trainer(plain({"dispatch": {"heads": claims | {"least": 2}}}, tasks), tmp_path / "least")
    with pytest.raises(ConfigError, match="permuted keeps the heads that tasks share"):
        trainer(plain({"clone": {"heads": random | {"rule": "permuted"}}}, tasks), tmp_path / "shared")


@pytest.mark.parametrize("rule", ["random", "unclaimed", "permuted"])
def test_controls_have_as_many_heads_of_each_layer(rule: str) -> None:
    """Unclaimed ones first; or permuted, so that tasks share what they share in the claims; or by chance alone."""
    draw, config = np.random.default_rng(0), build_config({"data": {"path": "x"}, "tasks": "pos,ner"})
    like = {task: torch.from_numpy(draw.random((5, 12)) < 0.4) for task in ("pos", "ner")}
    shared, claimed, seen = (like["pos"] & like["ner"]).sum(1), torch.zeros(5), set()
    for seed in range(200):
        found = drawn_heads(HeadsConfig(rule=rule, like={"named": "1-1"}, seed=seed), like, config)
        for task, mask in found.items():
            assert torch.equal(mask.sum(1), like[task].sum(1))
        claimed += (found["pos"] & like["pos"]).sum(1) / 200
        assert rule != "permuted" or torch.equal((found["pos"] & found["ner"]).sum(1), shared)
        seen.add(str(found))
    assert len(seen) == 200
    number = like["pos"].sum(1)
    few = (2 * number - 12).clamp(min=0).float()  # others of the layer
    torch.testing.assert_close(claimed, few if rule == "unclaimed" else number**2 / 12, rtol=0, atol=0.35)


@pytest.mark.parametrize(
    ("treatment", "how", "words"),
    [
        (
            {"clone": {"heads": "all"}, "dispatch": {"heads": "all"}},
            {},
            "combined with treatment.dispatch",
        ),
        ({"clone": {"heads": "3-1"}}, {}, "expected heads up to 2-4, found 3-1"),
        ({"clone": {"heads": {}}}, {}, "expected one of named, per_task, claims and rule, found none"),
        ({"clone": {"heads": {"per_task": {"pos": "1-1"}}}}, {}, "expected one set of heads"),
        ({"dispatch": {"heads": {"per_task": {"pos": "1-1"}}}}, {}, "expected heads for each of pos, dep"),
        ({"project": {}}, {"mixing": "sampled"}, "each batch has one task"),
        ({"protect": {"heads": "all"}}, {"freeze": "encoder"}, "no effect on a frozen encoder"),
        ({"merge": {"sources": {"pos": "x", "srl": "y"}}}, {}, r"expected tasks of this run \(pos, dep\), found 'srl'"),
        ({"distil": {"teachers": {"pos": "nowhere"}}}, {}, "expected the folder of a finished run, found nowhere"),
        ({"cloning": {}}, {}, "an installed package, found 'cloning'"),
        ({"project": {"heads": "1-1"}}, {}, "heads has an effect only with at: heads"),
        ({"protect": {"heads": {"rule": "random", "like": "all"}}}, {}, "random heads with like: all are all heads"),
        ({"protect": {"heads": {"rule": "unclaimed"}}}, {}, "rule: random, unclaimed or permuted go together"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(treatment, how, words, plain: Settings, tmp_path):
    check_refused(plain(treatment, "pos,dep", **how), tmp_path, words)


def test_a_treatment_of_ones_own_is_one_file(plain: Settings, joint, tmp_path, monkeypatch):
    """The one of the card."""
    [block] = re.findall(r"^```python\n(.*?)^```$", CARD.read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(block, str(CARD), "exec", dont_inherit=True), names)
    monkeypatch.setattr(ADDED_TREATMENTS, "built_in", {"halve": names["Halve"]})
    for how in ({"freeze": "encoder"}, {"project": {}}):  # what would cut the graph, or find no gradient
        more = {"project": how.pop("project")} if "project" in how else {}
        with pytest.raises(ConfigError, match=r"treatment\.halve cannot be combined with"):
            trainer(plain({"halve": {"heads": "1-2"}, **more}, **how), tmp_path / "refused")
    with pytest.raises(ConfigError, match=r"^config: unknown key treatment\.halve\.heads\.name .*one of named"):
        build_config(plain({"halve": {"heads": {"name": "1-2"}}}))
    made = trainer(plain({"halve": {"heads": "1-2,2-1"}}), tmp_path / "run")
    found = gradients(made, BATCH)
    for name, part in head_slices(made):
        halves = torch.ones(4)
        halves[(1, 0)[part.layer]] = 0.5
        assert torch.equal(found[name], joint[name] * part.broadcast_to_rows(halves))
    assert made.config.model_dump()["treatment"]["halve"]["heads"]["named"] == ("1-2", "2-1")


def test_the_page_names_the_treated_heads(plain: Settings, tmp_path):
    treatment = {"dispatch": {"heads": {"per_task": {"pos": "1-1", "dep": "2-3,2-4"}}}, "project": None, "distil": None}
    trainer(plain(treatment, "pos,dep"), tmp_path / "run")
    trainer(plain(None, "pos,dep"), tmp_path / "joint")
    [told] = page.part([DescribedRun.read(RunFolder(tmp_path / name)) for name in ("run", "joint")]).holds["treated"]
    assert told.endswith("run was treated: dispatch of the heads POS: 1-1, DEP: 2-3 2-4 (layer-head).")
    own = {"method": "given", "sets": "per_task", "heads": {"per_task": {"pos": "1-1,1-3", "dep": "2-2"}}}
    given = DescribedRun.read(trained(plain(tasks="pos,dep", epochs=1) | {"pruning": own}, tmp_path / "given"))
    [told] = page.part([given]).holds["treated"]
    assert told.endswith("given was treated: only the given heads POS: 1-1 1-3, DEP: 2-2 (layer-head) are open.")
    assert not claim_sets([given])[0]  # no task claimed them


DISPATCH = {"heads": {"per_task": {task: OWN[task] for task in ("pos", "dep")}}, "last": 0.5}


@pytest.mark.parametrize(
    ("treatment", "how"),
    [
        ({"dispatch": DISPATCH, "protect": {"heads": "1-3", "tasks": ["pos"]}}, {}),
        ({"dispatch": DISPATCH}, {"mixing": "sampled", "accumulate": 2}),
        ({"clone": {"heads": "1-2,2-3"}}, {"accumulate": 2}),
        ({"project": {}}, {"balance": "running_mean"}),
        ({"distil": {"rise": 0.8}}, {}),
        ({}, {"balance": "famo"}),
        ({}, {"mixing": "sampled", "balance": "uw"}),
    ],
)
def test_stopped_and_gone_on(treatment, how, small_settings: Settings, finished, tmp_path):
    if "distil" in treatment:
        treatment = {"distil": treatment["distil"] | {"teachers": {task: finished[task] for task in ("pos", "dep")}}}
    check_resumes(small_settings("pos,dep", epochs=2, **how) | {"treatment": treatment}, 5, tmp_path)
