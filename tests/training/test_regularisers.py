"""CosReg (R by its definition, its gradient, which weights it turns), attention along arcs, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Settings, check_refused, corpus_of, gradients, trained, trainer
from torch import Tensor

from mtlprune.config.config import ConfigError, build_config
from mtlprune.encoder.arcs import uas_of
from mtlprune.model import MultiTaskModel
from mtlprune.tasks.base import Task
from mtlprune.tasks.linear import POS
from mtlprune.training.cosreg import check_cosreg, mean_cosine
from mtlprune.training.mixing import MiniBatch
from mtlprune.training.run import NewRun


def rows_of(number: int, features: int, seed: int = 0) -> Tensor:
    return torch.randn(number, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3


def closed_form(rows: Tensor) -> Tensor:
    """dR/dw_k = 2/N² (I − ŵ_k ŵ_kᵀ) Σ ŵ / |w_k|, a row at a time."""
    units = [row / row.norm() for row in rows]
    total = torch.stack(units).sum(0)
    parts = [(total - unit * (unit @ total)) / row.norm() for unit, row in zip(units, rows, strict=True)]
    return 2 / len(rows) ** 2 * torch.stack(parts)


@pytest.mark.parametrize("shape", [(2, 3), (7, 5), (20, 4)])
def test_r_is_the_mean_over_pairs_and_does_not_see_lengths(shape):
    rows = rows_of(*shape)
    pairs = 0.0
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            pairs += 0.0 if i == j else float(one @ other / (one.norm() * other.norm()))
    assert float(mean_cosine(rows)) == pytest.approx(pairs / len(rows) ** 2, abs=1e-14)
    scaled = rows * torch.linspace(0.1, 9, len(rows), dtype=torch.float64)[:, None]
    assert float(mean_cosine(scaled)) == pytest.approx(float(mean_cosine(rows)), abs=1e-14)


def test_r_at_its_ends():
    row = rows_of(1, 4)
    assert float(mean_cosine(torch.cat([row, -row]))) == pytest.approx(-1 / 2)
    assert float(mean_cosine(row.repeat(5, 1))) == pytest.approx(4 / 5)
    assert float(mean_cosine(torch.eye(6))) == pytest.approx(0, abs=1e-7)


def test_its_gradient_is_that_of_finite_differences_and_the_closed_form():
    rows = rows_of(6, 4).requires_grad_()
    mean_cosine(rows).backward()
    torch.testing.assert_close(rows.grad, closed_form(rows.detach()), rtol=1e-12, atol=1e-15)
    torch.autograd.gradcheck(mean_cosine, (rows,), eps=1e-6, atol=1e-8)
    assert float((rows.grad * rows.detach()).sum(1).abs().max()) < 1e-15  # lengths do not move
    flat = torch.zeros(3, 4, requires_grad=True)
    mean_cosine(flat).backward()
    assert not flat.grad.any()


def with_gradients(settings: dict[str, Any], folder: Path) -> tuple[MultiTaskModel, dict[str, Tensor]]:
    """A model and its gradients, with weights of decoders that are nowhere 0."""
    made = trainer(settings, folder)
    torch.manual_seed(3)
    for parameter in made.model.tasks.parameters():
        torch.nn.init.normal_(parameter, 0, 0.1)
    return made.model, gradients(made, MiniBatch(made.config.tasks, [1, 2, 4, 5]))


@pytest.mark.parametrize("tasks", ["pos", "pos,ner,dep,con,srl"])
def test_it_adds_its_gradient_to_label_rows_alone(small_settings: Settings, tmp_path: Path, tasks: str):
    still = {"clip": 1e9, "encoder_rate": 1e-12, "decoder_rate": 1e-12}
    _, plain = with_gradients(small_settings(tasks, **still), tmp_path / "plain")
    model, penalised = with_gradients(small_settings(tasks, **still, cosreg=2.5), tmp_path / "penalised")
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    expected = {}
    for task in tasks.split(","):
        rows = model.tasks[task].label_rows().rows.detach()
        expected[names[rows.data_ptr()]] = 2.5 * closed_form(rows)
    assert len(expected) == len(tasks.split(","))
    assert {name for name in plain if not torch.equal(plain[name], penalised[name])} == expected.keys()
    for name, added in expected.items():
        torch.testing.assert_close((penalised[name] - plain[name]).flatten(1), added, rtol=1e-3, atol=1e-6)


def test_the_log_has_r_without_its_factor_and_training_lowers_it(small_settings: Settings, tmp_path: Path):
    plain, penalised = (
        trained(small_settings("pos", epochs=3, decoder_rate=1e-2, cosreg=strength), tmp_path / str(strength))
        for strength in (0.0, 5.0)
    )
    assert set(plain.read_metrics()[0]["loss"]) == {"pos"}
    losses = [line["loss"]["cosreg"] for line in penalised.read_metrics()]
    assert losses[-1] < losses[0]
    rows = [MultiTaskModel.load(run.path).tasks["pos"].label_rows().rows.detach() for run in (plain, penalised)]
    ends = [float(mean_cosine(matrix)) for matrix in rows]
    assert ends[1] < ends[0]


def test_a_decoder_without_rows_of_two_labels_is_refused(small_settings: Settings, tmp_path: Path):
    class WithoutRows(POS):
        label_rows = Task.label_rows  # type: ignore[assignment]

    config = build_config(small_settings("pos", cosreg=1.0))
    model, _ = with_gradients(small_settings("pos"), tmp_path / "run")
    lone = {"tags": ["A"]}
    for decoder, words in ((WithoutRows(lone, 4, None), "no matrix"), (POS(lone, 4, None), "label weights of 1")):
        model.tasks["pos"] = decoder
        with pytest.raises(ConfigError, match=f"found {words}.* in that of pos; leave"):
            check_cosreg(NewRun(config, model, {}, [], []))
        check_cosreg(NewRun(build_config(small_settings("pos")), model, {}, [], []))


def test_protection_raises_and_suppression_lowers_attention_along_arcs(small_settings: Settings, tmp_path: Path):
    settings, found = small_settings("pos", epochs=2), {}
    settings["encoder"]["word_dropout"] = 0.0
    for strength in (5.0, -5.0):
        run = trained({**settings, "syntax": {"strength": strength, "scale": "mean"}}, tmp_path / f"{strength}")
        losses = [line["loss"] for line in run.read_metrics()]
        assert set(losses[0]) == {"pos", "syntax"} and (losses[-1]["syntax"] - losses[0]["syntax"]) * strength < 0
        encoder = MultiTaskModel.load(run.path).encoder
        found[strength] = uas_of(encoder, list(corpus_of(settings)["dev"])).best(weight=True).value
    assert found[-5.0] > found[5.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": {"cosreg": 1.0, "start": "elsewhere", "freeze": "decoders"}}, "cosreg has no effect"),
        ({"train": {"cosreg": -1.0}}, "train.cosreg"),
        ({"syntax": {"strength": 1, "heads": "3-1"}}, "no head 3-1"),
        ({"syntax": {"strength": 1, "heads": "2-9"}}, "layer 2 has 1, 2, 3, 4"),
        ({"syntax": {"strength": 1}, "encoder": {"context": False}}, "needs heads, and"),
        ({"syntax": {"strength": 1}, "train": {"freeze": "encoder"}}, "no effect on a frozen encoder"),
        (
            {"syntax": {"strength": 1}, "tasks": ["pos", "ner"], "pruning": {"method": "gates", "sets": "per_task"}},
            "one attention for all tasks",
        ),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_refused(small_settings: Settings, change, words, tmp_path: Path):
    check_refused({**small_settings("pos"), **change}, tmp_path, words)
