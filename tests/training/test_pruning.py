"""Runs with gates: what presses on them and when, what they leave alone, and the masks they are compared with."""

import math
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import Settings, check_resumes, corpus_of, gradients, prepared, trained, trainer
from torch.utils.flop_counter import FlopCounterMode

from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.gates import OPEN_LOGIT, Gates, deterministic, probability_open
from mtlprune.encoder.interventions import Closed, ablated, fold_means, measure_means, set_substitute
from mtlprune.encoder.pieces import EncoderError
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import RunFolder
from mtlprune.training.head_gradients import sentence_loss
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.pruning import fix_heads
from mtlprune.training.pruning.penalty import TargetPenalty
from mtlprune.training.pruning.selectors import Finished, importance, sentence_derivatives
from mtlprune.training.run import Run

HEADS = (2, 4)  # of the tiny encoder
UNMOVED = {"epochs": 4, "encoder_rate": 1e-12, "decoder_rate": 1e-12}  # 16 updates after which weights are as before


@pytest.fixture(scope="module")
def gated(small_settings: Settings) -> Settings:
    """Settings with gates; ``tasks`` and ``train`` as for small_settings, the rest are pruning's."""
    return lambda tasks="pos", train=None, **pruning: (
        small_settings(tasks, **(train or {})) | {"pruning": {"method": "gates", **pruning}}
    )


def best_weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.weights_path(folder.read_best()["joint"]["epoch"]))


lines = RunFolder.read_gates
"""What gates.jsonl holds of each evaluation."""


def test_rates_of_weights_follow_the_schedule_gates_have_a_constant_one_and_no_decay(gated: Settings, tmp_path):
    made = trainer(gated(train={"epochs": 2, "warmup": 0.5, "weight_decay": 0.5}, rate=0.02), tmp_path / "run")
    groups, seen = made.optimizer.param_groups, []
    assert [group["weight_decay"] for group in groups] == [0.5, 0.5, 0.0]
    [logits] = groups[2]["params"]
    assert logits is made.model.gates["shared"].logits
    for _ in range(made.total):
        made.update([MiniBatch(("pos",), [1, 2])])
        made.progress.step += 1
        seen.append([group["lr"] for group in groups])
    shape = [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]  # 60 sentences in batches of at most 16, twice
    for rates, expected in zip(zip(*seen, strict=True), (1e-3, 3e-3), strict=False):
        assert rates == pytest.approx([expected * share for share in shape])
    assert {rates[2] for rates in seen} == {0.02}


def test_the_gradient_is_clipped_as_a_whole_but_for_gates_which_do_not_clip(gated: Settings, tmp_path):
    batch = MiniBatch(("pos",), [1, 2, 4, 5])
    free, short = (
        gradients(trainer(gated(train={"clip": clip}, strength=100.0), tmp_path / f"{clip}"), batch)
        for clip in (1e6, 1e-3)
    )
    gates = free.pop("gates.shared.logits")
    assert float(gates.norm()) > 10
    torch.testing.assert_close(short.pop("gates.shared.logits"), gates, rtol=0, atol=0)
    whole, clipped = (float(torch.stack([g.norm() for g in found.values()]).norm()) for found in (free, short))
    assert whole > 0.1 and clipped == pytest.approx(1e-3, rel=1e-3)  # all of it is the weights'
    for name, gradient in free.items():
        torch.testing.assert_close(short[name], gradient * (1e-3 / whole), rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("sets", ["shared", "per_task"])
def test_the_price_is_added_once_an_update_whatever_the_mini_batches(gated: Settings, sets, tmp_path):
    """Two mini-batches: the mean of their gradients, and λ/L · ∂ expected open once, by its closed form."""
    one, other = MiniBatch(("pos", "dep"), [1, 2]), MiniBatch(("pos", "dep"), [4, 5])
    common = {"train": {"clip": 1e6}, "sets": sets}
    free = [
        gradients(trainer(gated("pos,dep", **common, strength=0.0), tmp_path / f"{place}"), batch)
        for place, batch in enumerate((one, other))
    ]
    made = trainer(gated("pos,dep", **common, strength=3.0), tmp_path / "penalised")
    before = {f"gates.{name}.logits": gates.logits.detach().clone() for name, gates in made.model.gates.items()}
    assert len(before) == (1 if sets == "shared" else 2)
    found = gradients(made, one, other)
    for name, logits in before.items():
        q = probability_open(logits)
        penalty = 3.0 / HEADS[0] * q * (1 - q)
        torch.testing.assert_close(found[name], (free[0][name] + free[1][name]) / 2 + penalty, rtol=1e-4, atol=1e-6)


RELEASED = [[("pos", [1, 2]), ("dep", [4, 5])], [("pos", [7, 8, 10]), ("pos", [11])], [("dep", [1]), ("pos", [13, 14])]]


def released_updates(
    model: MultiTaskModel, losses: Callable[[str, list[int]], torch.Tensor], total: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The updates of the released scripts, written anew from their description: in every mini-batch the penalty is
    added to the task's loss, the balancer remembers and weighs the sum, one clipping takes in all parameters, gates
    have an Adam of their own. λ 0.5, a window of 2, norm 0.05, encoder 1e-3, decoders 3e-3, gates 0.02; no warm-up.

    Yields:
        The gradients of each update, clipped, once its step is taken.
    """
    [gates] = [p for name, p in model.named_parameters() if name == "gates.shared.logits"]
    adam = torch.optim.Adam([gates], lr=0.02)
    adamw = torch.optim.AdamW(
        [{"params": model.encoder.parameters(), "lr": 1e-3}, {"params": model.tasks.parameters(), "lr": 3e-3}],
        weight_decay=0.0,
    )
    falling = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: (total - step) / total)
    queues: dict[str, list[float]] = {}
    for update in RELEASED:
        for task, rows in update:
            open_ = torch.sigmoid(gates - 0.33 * math.log(0.1 / 1.1))
            loss = losses(task, rows) + 0.5 * open_.sum(1).mean()
            queues.setdefault(task, []).append(float(loss.detach()))
            means = {name: sum(queue[-2:]) / len(queue[-2:]) for name, queue in queues.items()}
            (loss * (sum(means.values()) / means[task]) / len(update)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        seen = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        for optimizer in (adamw, adam):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        falling.step()
        yield seen


def test_a_penalty_in_the_loss_takes_the_steps_of_the_released_scripts(gated: Settings, tmp_path):
    rates = {"encoder_rate": 1e-3, "decoder_rate": 3e-3, "warmup": 0.0, "clip": 0.05}
    mixed = {"mixing": "sampled", "accumulate": 2, "balance": "running_mean", "balance_window": 2}
    settings = gated("pos,dep", {**rates, **mixed}, strength=0.5, rate=0.02, in_loss=True)
    ours, theirs = (trainer(settings, tmp_path / name) for name in ("ours", "theirs"))

    def losses(task: str, rows: list[int]) -> torch.Tensor:
        return theirs.model.losses(theirs.data.batch(MiniBatch((task,), rows)))[task]

    for update, expected in zip(RELEASED, released_updates(theirs.model, losses, theirs.total), strict=True):
        found = gradients(ours, *[MiniBatch((task,), rows) for task, rows in update])
        ours.progress.step += 1
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(ours.model.gates["shared"].logits, theirs.model.gates["shared"].logits)
    batch = [MiniBatch(("pos", "dep"), [1, 2])]
    paths = {p: tmp_path / f"{p}" for p in (False, True)}
    logged = (trainer(gated("pos,dep", strength=9.0, in_loss=p), path).update(batch) for p, path in paths.items())
    assert next(logged) == next(logged)  # losses as decoders have them


@pytest.mark.parametrize(
    "penalty",
    [{}, {"overlap": 1.0}, {"in_loss": True}, *({"penalty": "target", "keep": 3, "overlap": o} for o in (0.0, 1.0))],
    ids=str,
)
def test_only_sets_of_tasks_that_took_part_feel_anything(gated: Settings, penalty, tmp_path):
    """Sampled mixing with one set a task: the others, and idle decoders, neither decay nor keep moving by momentum."""
    mixed = {"mixing": "sampled", "accumulate": 2, "weight_decay": 0.5}
    made = trainer(gated("pos,ner,dep", mixed, sets="per_task", rate=0.1, **penalty), tmp_path / "run")
    made.model.train()
    made.update([MiniBatch((task,), [1, 2]) for task in ("pos", "ner", "dep")])  # all have momentum from here on
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    found = gradients(made, MiniBatch(("dep",), [1, 2]), MiniBatch(("dep",), [4, 5]))
    assert {name for name in found if name.startswith("gates")} == {"gates.dep.logits"}
    moved = {name for name, tensor in made.model.state_dict().items() if not torch.equal(before[name], tensor)}
    parts = {".".join(name.split(".")[:2]) for name in moved}
    assert parts == {"encoder.transformer", "tasks.dep", "gates.dep"}
    found = gradients(made, MiniBatch(("dep",), [1, 2]), MiniBatch(("pos",), [1, 2]))
    assert {name for name in found if name.startswith("gates")} == {"gates.dep.logits", "gates.pos.logits"}


def test_overlap_presses_by_the_others_gates(gated: Settings, tmp_path):
    """∂ / ∂a_t of Σ z_t · z_o is Σ_o z_o · ∂z_t/∂a_t; exact where the others are known (evaluation mode)."""
    batch = MiniBatch(("pos", "dep"), [1, 2])
    free = gradients(trainer(gated("pos,dep", sets="per_task", strength=0.0), tmp_path / "free"), batch)
    made = trainer(gated("pos,dep", sets="per_task", strength=0.0, overlap=2.0), tmp_path / "pressed")
    logits = {name: made.model.gates[name].logits.detach().clone().requires_grad_() for name in ("pos", "dep")}
    z = {name: deterministic(values) for name, values in logits.items()}
    expected = torch.autograd.grad(2.0 * (z["pos"] * z["dep"]).sum(), list(logits.values()))
    found = gradients(made, batch)
    for name, penalty in zip(logits, expected, strict=True):
        key = f"gates.{name}.logits"
        torch.testing.assert_close(found[key] - free[key], penalty, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def ungated(small_settings: Settings, tmp_path_factory) -> RunFolder:
    return trained(small_settings("pos,dep,con", epochs=2), tmp_path_factory.mktemp("ungated") / "run")


@pytest.mark.parametrize(
    ("tasks", "train_settings", "sets"),
    [
        ("pos,ner,dep,con,srl", {"epochs": 2}, "shared"),
        ("pos,dep,con", {"mixing": "sampled", "epochs": 2, "balance": "running_mean"}, "per_task"),
    ],
    ids=["joint-shared", "sampled-per_task"],
)
def test_the_log_agrees_with_the_weights(gated: Settings, tasks, train_settings, sets, tmp_path):
    """One line an evaluation; the line of the best epoch holds the gates of the weights kept, to six digits."""
    folder = trained(gated(tasks, train_settings, sets=sets, rate=0.03, strength=0.3), tmp_path / "run")
    names = ["shared"] if sets == "shared" else tasks.split(",")
    found, metrics = lines(folder), folder.read_metrics()
    assert [(line["epoch"], line["step"]) for line in found] == [(m["epoch"], m["step"]) for m in metrics]
    for line in found:
        assert list(line["gates"]) == list(line["open"]) == list(line["expected"]) == names
        assert line["open"] == {name: (np.array(values) > 1e-3).sum() for name, values in line["gates"].items()}
    line = found[folder.read_best()["joint"]["epoch"] - 1]
    for name in names:
        logits = best_weights(folder)[f"gates.{name}.logits"]
        assert logits.shape == HEADS
        np.testing.assert_allclose(line["gates"][name], deterministic(logits).numpy(), rtol=1e-5)
        assert line["expected"][name] == pytest.approx(float(probability_open(logits).sum()), abs=1e-4)
    assert found[0]["gates"] != found[-1]["gates"]


@pytest.mark.parametrize("keep", [0, 3])
def test_exact_ends_with_exactly_so_many(gated: Settings, keep, tmp_path):
    folder = trained(gated("pos", UNMOVED, penalty="exact", keep=keep, rate=0.1, settle=0.6), tmp_path / "run")
    found = lines(folder)
    assert [line["step"] for line in found] == [4, 8, 12, 16]  # fixed after ⌈0.6 · 16⌉ = 10
    assert np.unique(found[1]["gates"]["shared"]).tolist() not in ([0], [1], [0, 1])
    for line in found[2:]:
        gates = np.array(line["gates"]["shared"])
        assert line["open"] == line["expected"] == {"shared": keep} and gates.sum() == keep
        assert set(np.unique(gates)) <= {0.0, 1.0} and line["gates"] == found[2]["gates"]
    weights = best_weights(folder)
    assert torch.equal(weights["gates.shared.mask"], torch.tensor(found[2]["gates"]["shared"], dtype=torch.float32))
    kept, lost = (weights["gates.shared.logits"][weights["gates.shared.mask"] == side] for side in (1, 0))
    assert not (len(kept) and len(lost)) or float(kept.min()) >= float(lost.max())


@pytest.mark.parametrize(
    ("pruning", "best", "warned"),
    [
        ({"penalty": "target", "keep": 8, "settle": 0.6}, 3, []),  # settled after 10 updates
        ({"penalty": "exact", "keep": 8, "settle": 0.6}, 3, []),
        ({"penalty": "target", "keep": 3, "settle": 0.3}, 4, [""]),  # the last one, with a warning
        ({"penalty": "target", "keep": 3, "settle": 0.3, "sets": "per_task"}, 4, [" for pos", " for ner"]),
    ],
)
def test_the_first_epoch_that_may_be_the_best_is(gated: Settings, pruning, best, warned, tmp_path, caplog):
    """Nothing changes, so that all epochs have one score: the best has settled and come to its number, or none has."""
    settings = gated("pos,ner", {**UNMOVED, "patience": 1}, init="open", rate=1e-9, warmup=0.3, **pruning)
    folder = trained(settings, tmp_path / "run")
    assert len({line["joint"] for line in folder.read_metrics()}) == 1 and len(folder.read_metrics()) == 4
    assert {one["epoch"] for one in folder.read_best().values()} == {best}
    assert [path.name for path in (folder.path / "weights").iterdir()] == [f"epoch-00{best}.safetensors"]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(":")[0] for text in said] == [f"8 heads are open{name}, not 3" for name in warned]


@pytest.mark.parametrize(
    ("keep", "open_", "near"), [(1, 0, True), (1, 3, False), (72, 75, True), (72, 76, False), (100, 94, False)]
)
def test_near_is_one_head_or_a_twentieth(keep: int, open_: int, near: bool):
    gates, penalty = Gates(12, 12), TargetPenalty(keep, 144, total=10)
    gates.logits.grad = torch.zeros(12, 12)
    penalty({"pos": gates}, 0)
    gates.fix(torch.arange(144).view(12, 12) < open_)
    expected = {} if near else {"pos": open_}
    assert penalty.off_target({"pos": gates, "dep": Gates(12, 12)}) == expected  # dep: not steered


def compare(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, bool]:
    parts: dict[str, bool] = {}
    for name, tensor in other.items():
        part = name.split(".")[0]
        if part != "gates":
            parts[part] = parts.get(part, True) and torch.equal(tensor, one[name])
    return parts


@pytest.mark.parametrize(
    ("freeze", "tasks", "pruning"),
    [
        ("decoders", "pos,dep,con", {}),
        ("encoder", "pos,dep,con", {}),
        ("encoder,decoders", "pos,dep,con", {}),
        ("", "pos,dep,con", {}),
        ("encoder,decoders", "dep", {"penalty": "exact", "keep": 5, "settle": 0.7}),  # then nothing is left to train
        ("encoder,decoders", "dep", {"method": "topk", "keep": 5}),
    ],
)
def test_what_is_frozen_stays_to_the_last_bit(gated: Settings, ungated: RunFolder, freeze, tasks, pruning, tmp_path):
    how = {"start": str(ungated.path), "freeze": freeze or (), "epochs": 2, "weight_decay": 0.1}
    settings = gated(tasks, how, rate=0.1, **pruning)
    settings["encoder"]["name"] += "/."  # another name of the same folder
    folder = trained(settings, tmp_path / "run")
    equal = {"encoder": "encoder" in freeze, "tasks": "decoders" in freeze}
    assert compare(best_weights(ungated), best_weights(folder)) == equal
    first, last = lines(folder)
    assert first["gates"] != last["gates"] and last["open"]["shared"] == pruning.get("keep", last["open"]["shared"])


def one_at_a_time(run: Run, model: MultiTaskModel, row: int) -> torch.Tensor:
    """∂ (loss of the sentence alone · its words) / ∂ξ, with ξ true factors at the heads' places. (L, A)"""
    factors = torch.ones(HEADS, requires_grad=True)
    pieces = model.encoder.collate([run.pieces[row]])
    total = torch.zeros(())
    for name in run.config.tasks:
        if run.is_annotated[name][row]:
            gates = model.gates[name if name in model.gates else "shared"]() if model.gates else 1.0
            encoded = model.encoder(pieces, factors * gates)
            target = model.tasks[name].collate([run.targets[name][row]], encoded.sizes)
            total = total + model.tasks[name].loss(encoded, target) * encoded.sizes[0]
    return torch.autograd.grad(total, factors)[0]


@pytest.mark.parametrize("kind", ["ungated", "shared", "per_task"])
def test_derivatives_of_a_batch_equal_those_of_each_sentence_alone(small_settings: Settings, kind, tmp_path):
    """Layers that some sentences lack, long sentences in several windows, gates of the measured run: all by oracle."""
    settings = small_settings("pos,ner,dep,con,srl", epochs=1)
    if kind != "ungated":
        settings["pruning"] = {"method": "gates", "sets": kind}
    run = prepared(settings, tmp_path / "run")
    model = run.model.eval()
    rows = list(range(10))
    assert len(model.encoder.collate([run.pieces[row] for row in rows]).input_ids) > len(rows)  # or nothing is shown
    assert not all(all(run.is_annotated[task][row] for row in rows) for task in run.is_annotated)
    found = sentence_derivatives(run, model, rows, torch.float32)
    assert found.shape == (10, *HEADS)
    for row in rows:
        expected = one_at_a_time(run, model, row)
        torch.testing.assert_close(found[row], expected, rtol=2e-3, atol=2e-4 * float(expected.abs().max()))


def test_importance_is_the_mean_size_of_derivatives_by_layer(gated: Settings, ungated: RunFolder, tmp_path):
    """And Fisher information the sum of squares. Heads that are closed already have no importance."""
    few = trained(gated("pos,dep", {"epochs": 1}, method="random", keep=2), tmp_path / "few")
    refused = gated("pos,dep", method="importance", keep=3, importance_of=str(few.path))
    with pytest.raises(ConfigError, match="expected a run with 3 open heads or more, found 2"):
        prepared(refused, tmp_path / "refused")
    settings = gated("pos,dep", method="importance", keep=3, importance_of=str(ungated.path))
    run = prepared(settings, tmp_path / "run")
    model = MultiTaskModel.load(ungated.path)
    slopes = torch.stack([one_at_a_time(run, model, row) for row in range(60)])
    total = slopes.abs().sum(0)
    expected = total / total.norm(dim=1, keepdim=True)
    finished = Finished(run, torch.float32)
    assert sorted(finished.rows) == list(range(60))
    found = importance(finished.derivatives(finished.rows))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    information = slopes.square().sum(0)
    own = finished.derivatives(finished.rows).square().sum(0)
    torch.testing.assert_close(own, information, rtol=2e-3, atol=1e-4 * float(information.max()))


@pytest.mark.parametrize("closed", get_args(Closed))
def test_heads_are_ranked_towards_what_they_contribute_when_closed(gated: Settings, ungated, closed, tmp_path):
    """Derivatives by outputs add up to that of all losses by gates at 1, whatever a closed head contributes."""
    settings = gated("pos,dep", method="fisher", keep=3, importance_of=str(ungated.path), closed=closed)
    run, rows = prepared(settings, tmp_path / "run"), list(range(10))
    finished = Finished(run, torch.float32)
    model, encoder = finished.model, finished.model.encoder
    slopes = finished.derivatives(rows)
    if closed == "resample":  # whose outputs a sentence gets depends on its batch
        slopes = sentence_derivatives(run, model, rows, torch.float32, finished.substitutes)
    set_substitute(encoder, closed, finished.means, run.config.train.seed)
    gates = torch.ones(HEADS, requires_grad=True)
    encoded = encoder(encoder.collate([run.pieces[row] for row in rows]), gates)
    losses = [
        sentence_loss(model.tasks[name], encoded.select([row]), run.targets[name][row])
        for name in run.config.tasks
        for row in rows
        if run.is_annotated[name][row]
    ]
    expected = torch.autograd.grad(torch.stack(losses).sum(), gates)[0]
    torch.testing.assert_close(slopes.sum(0), expected, rtol=2e-3, atol=1e-4 * float(expected.abs().max()))


def test_random_heads(gated: Settings, tmp_path):
    """As many of each layer as can be even, or as of another run; others for another seed."""
    wanted = {"method": "given", "heads": "1-1,1-2,1-3,1-4,2-2"}
    like = {"layers_like": str(trained(gated("pos", {"epochs": 1}, **wanted), tmp_path / "like").path)}
    masks = []
    for seed, pruning in ((1, {"keep": 5}), (1, {"keep": 5}), (2, {"keep": 5}), (1, like)):
        settings = gated("pos", {"seed": seed, "epochs": 2}, method="random", **pruning)
        first, last = lines(trained(settings, tmp_path / f"{len(masks)}"))
        masks.append(np.array(first["gates"]["shared"]))
        assert first["gates"] == last["gates"] and set(np.unique(masks[-1])) <= {0.0, 1.0}
    assert [mask.sum(1).tolist() for mask in masks] == [[3, 2], [3, 2], [3, 2], [4, 1]]
    assert (masks[0] == masks[1]).all() and (masks[0] != masks[2]).any()


def test_a_draw_is_shared_and_nested(gated: Settings, tmp_path):
    """Heads of a draw hang on neither seed nor tasks, and a smaller draw lies inside a larger one."""
    masks = []
    for tasks, seed, keep, draw in (("pos", 1, 4, 1), ("dep", 2, 4, 1), ("pos", 1, 2, 1), ("pos", 1, 4, 2)):
        settings = gated(tasks, {"seed": seed, "epochs": 1}, method="random", keep=keep, draw=draw)
        masks.append(np.array(lines(trained(settings, tmp_path / f"{len(masks)}"))[0]["gates"]["shared"]) > 0)
    first, other, smaller, redrawn = masks
    assert (first == other).all() and (first != redrawn).any()
    assert smaller.sum() == 2 and (first | ~smaller).all()


def test_given_heads_of_each_task(gated: Settings, tmp_path):
    """Sparse sharing: a task reads its own heads alone, and the run knows them when it is loaded."""
    own = {"pos": "1-1,2-3", "dep": "1-1,1-2"}
    settings = gated("pos,dep", {"epochs": 1}, method="given", sets="per_task", heads={"per_task": own})
    [line] = lines(folder := trained(settings, tmp_path / "run"))
    assert line["gates"] == {"pos": [[1, 0, 0, 0], [0, 0, 1, 0]], "dep": [[1, 1, 0, 0], [0, 0, 0, 0]]}
    model = MultiTaskModel.load(folder.path)
    assert {name: gates().tolist() for name, gates in model.gates.items()} == line["gates"]
    shared = gated("pos,dep", {"epochs": 1}, method="given", heads="1-4")
    assert lines(trained(shared, tmp_path / "shared"))[0]["gates"] == {"shared": [[0, 0, 0, 1], [0, 0, 0, 0]]}


def test_random_heads_may_close_with_the_noise_of_gates(gated: Settings, tmp_path):
    """From all open to the same heads as without noise: logits fall by the schedule, samples are noisy, then fixed."""
    settings = {"method": "random", "keep": 3}
    made = trainer(gated(noise=True, **settings), tmp_path / "noisy")  # 12 updates
    for run in (made.data, plain := prepared(gated(**settings), tmp_path / "plain")):
        fix_heads(run, made.folder, torch.float32)
    gates, wanted = made.model.gates["shared"].train(), plain.model.gates["shared"].mask
    for step in range(9):  # the warm-up ends after 4.8, fixed after ⌈0.7 · 12⌉ = 9
        fall = OPEN_LOGIT * (1 - 2 * min(1.0, step / 4.8))
        torch.testing.assert_close(gates.logits.detach(), torch.where(wanted == 1, OPEN_LOGIT, fall))
        assert not gates.is_fixed() and len({tuple(gates().flatten().tolist()) for _ in range(20)}) > 5
        made.update([MiniBatch(("pos",), [1, 2])])
        made.progress.step += 1
    assert gates.is_fixed() and torch.equal(gates(), wanted) and gates.logits.grad is None


def test_random_heads_may_take_the_gates_of_a_run(gated: Settings, tmp_path):
    """All that a layer's gates did in that run, at its records exactly, is done by other heads of the layer."""
    how = {"penalty": "exact", "keep": 3, "rate": 0.5, "settle": 0.7, "init": "open"}
    run = trained(gated("pos", {"epochs": 4}, **how), tmp_path / "gates")
    theirs = [torch.tensor(line["gates"]["shared"]) for line in lines(run)]
    settings = {"method": "random", "layers_like": str(run.path), "noise": "run"}
    made = trainer(gated("pos", {"epochs": 4}, **settings), tmp_path / "random")
    fix_heads(made.data, made.folder, torch.float32)
    gates = made.model.gates["shared"].train()
    mask, each = gates.mask.clone(), made.total // 4
    assert torch.equal(mask.sum(1), theirs[-1].sum(1)) and not torch.equal(mask, theirs[-1])
    for step in range(made.total):
        made.update([MiniBatch(("pos",), [1, 2])])
        made.progress.step += 1
        if (step + 1) % each == 0:
            kept, closed = (torch.where(mask == wanted, gates.evaluated(), -1).sort(1).values for wanted in (1, 0))
            before = theirs[step // each]
            assert torch.allclose(kept, torch.where(theirs[-1] == 1, before, -1).sort(1).values, atol=1e-5)
            assert torch.allclose(closed, torch.where(theirs[-1] == 0, before, -1).sort(1).values, atol=1e-5)
    assert any(0 < value < 1 for value in theirs[0].flatten()) and gates.is_fixed() and torch.equal(gates(), mask)
    check_resumes(gated("pos", {"epochs": 2}, **settings), 3, tmp_path / "resumed")
    with pytest.raises(ConfigError, match="layers_like"):
        build_config(gated("pos", method="random", keep=3, noise="run"))


@pytest.mark.parametrize("sets", ["shared", "per_task"])
def test_top_k_has_exactly_so_many_at_every_step(gated: Settings, sets, tmp_path):
    tasks = {"method": "topk", "keep": 3, "sets": sets, "anneal_from": 10.0, "temperature": 0.1, "warmup": 0.5}
    made = trainer(gated("pos,dep", {"epochs": 2}, rate=0.1, **tasks), tmp_path / "run")
    made.model.train()
    counts, masks = [], set()
    for gates in made.model.gates.values():
        gates.register_forward_hook(lambda module, args, values: counts.append(float(values.detach().sum())))
        gates.register_forward_hook(lambda module, args, values: masks.add(tuple(values.flatten().tolist())))
    before = {name: gates.logits.detach().clone() for name, gates in made.model.gates.items()}
    for step in range(made.total):  # 8
        for gates in made.model.gates.values():
            assert float(gates.temperature) == pytest.approx(10 * 0.01 ** min(1.0, step / 4))
        made.update([MiniBatch(("pos", "dep"), [1, 2])])
        made.progress.step += 1
    assert set(counts) == {3.0} and len(masks) > 3 and {value for mask in masks for value in mask} == {0.0, 1.0}
    for name, gates in made.model.gates.items():
        assert not torch.equal(gates.logits, before[name]) and gates.open_count() == 3


def test_a_selection_on_a_frozen_run_takes_no_gradients_of_weights(gated: Settings, ungated: RunFolder, tmp_path):
    """No weight has a gradient or moments; the backward pass computes those of activations alone, not twice as much."""
    settings = {"start": str(ungated.path), "freeze": "encoder,decoders"}
    made = trainer(gated("pos", settings, penalty="exact", keep=4, rate=0.1), tmp_path / "run")
    batch = MiniBatch(("pos",), [1, 2, 4, 5])
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        made.model.losses(made.data.batch(batch))
    with FlopCounterMode(display=False) as whole:
        assert gradients(made, batch).keys() == {"gates.shared.logits"}
    assert len(made.optimizer.state) == 1 and whole.get_total_flops() < 2.05 * forward.get_total_flops()


def test_means_are_over_all_slots_of_the_training_sentences(small_settings: Settings, tmp_path):
    """By the definition, sentence by sentence: windows of long ones too, special tokens, no padding, no dropout."""
    run = prepared(small_settings("pos"), tmp_path / "run")
    encoder, seen = run.model.encoder.train(), []
    found = measure_means(encoder, run.pieces)
    assert encoder.training
    for pieces in run.pieces:
        batch = encoder.eval().collate([pieces])
        with torch.no_grad(), encoder.head_hooks.cache_outputs() as heads:
            encoder(batch)
        there = batch.attention_mask.bool()
        seen.append(torch.stack([layer[there] for layer in heads]).transpose(0, 1).double())  # (slots, L, A, d)
    assert len(run.model.encoder.collate(run.pieces).input_ids) > len(run.pieces)  # or windows are not tested
    torch.testing.assert_close(found, torch.cat(seen).mean(0).float(), rtol=1e-4, atol=1e-6)


EXACT = {"method": "gates", "penalty": "exact"}


@pytest.mark.parametrize(
    ("closed", "frozen", "pruning"),
    [
        ("mean", [], EXACT),
        ("mean", [], {"method": "importance"}),
        ("optimal", ["encoder", "decoders"], EXACT | {"rate": 0.01}),
        ("resample", ["encoder"], {"method": "random"}),
    ],
)
def test_substitutes_are_kept_read_back_and_scored(gated: Settings, ungated, closed, frozen, pruning, tmp_path):
    """Means are measured before the first update and stay; constants learn though the encoder is frozen; what is
    resampled makes the run's own predictions again."""
    if pruning["method"] == "importance":
        pruning = pruning | {"importance_of": str(ungated.path)}
    train = {"start": str(ungated.path), "freeze": frozen, "epochs": 2}
    settings = gated("pos", train, keep=3, closed=closed, **pruning)
    run = prepared(settings, tmp_path / "same")
    means = measure_means(run.model.encoder, run.pieces)
    folder = trained(settings, tmp_path / "run")
    weights, model = best_weights(folder), MultiTaskModel.load(folder.path)
    constants = weights.pop("encoder.head_constants", None)
    assert compare(best_weights(ungated), weights)["encoder"] == bool(frozen)
    assert (constants is None) == (closed == "resample") == (model.encoder.resample is not None)
    if constants is not None:
        assert torch.equal(model.encoder.head_constants, constants)
        far = float((constants - means).abs().max())
        assert far == 0 if closed == "mean" else 1e-4 < far < 1
    predicted = [sentence.pos for sentence in model.annotate(list(corpus_of(settings)["dev"]))]
    assert predicted == [sentence.pos for sentence in folder.read_predictions("dev")]
    if closed == "mean":  # a run that begins with it and has no closed heads has no constants
        go_on = gated("pos", {"start": str(folder.path)}, method="none")
        assert prepared(go_on, tmp_path / "next").model.encoder.head_constants is None
    else:
        check_resumes(settings, 3, tmp_path / "resumed")


def test_what_is_resampled_goes_into_no_weights(gated: Settings, tmp_path):
    encoder = prepared(gated("pos", keep=3, penalty="exact", closed="resample"), tmp_path / "other").model.encoder
    with pytest.raises(EncoderError, match="which no weights can hold"):
        fold_means(encoder, torch.ones(encoder.head_hooks.layers, encoder.head_hooks.heads))


def test_a_run_whose_closed_heads_are_resampled_can_rank_heads(gated: Settings, tmp_path):
    folder = trained(gated("pos", keep=3, penalty="exact", closed="resample"), tmp_path / "run")
    ranked = gated("pos", method="importance", keep=3, importance_of=str(folder.path))
    slopes = Finished(prepared(ranked, tmp_path / "ranked"), torch.float32).derivatives([0, 1])
    assert len(slopes) == 2 and slopes.isfinite().all() and slopes.any()


def test_no_ablation_replaces_what_the_closed_heads_of_a_run_contribute(gated: Settings, tmp_path):
    encoder = prepared(gated("pos", keep=3, penalty="exact", closed="mean"), tmp_path / "run").model.encoder
    heads = torch.zeros(encoder.head_hooks.layers, encoder.head_hooks.heads, dtype=torch.bool)
    batch = encoder.collate(encoder.tokenize_all([["a", "word"]]))
    with ablated(encoder, heads, "zero"), pytest.raises(EncoderError, match=r"pruning\.closed"):
        encoder(batch, torch.zeros(heads.shape))
