"""R, cones, spectra, isotropy and negative directions: identities, bounds, a linear programme, sums that stream."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from found import GATES, column, grids, reading_of, sentences_of, subject_of, without_heads
from hypothesis import given
from hypothesis import strategies as st
from oracles import mean_cosine
from scipy.optimize import linprog
from torch import Tensor
from transformers import BertForMaskedLM

from mtlprune.analyses.analysis import Request
from mtlprune.analyses.harness.reading import ProbeError, SubjectResult, find_sources
from mtlprune.analyses.vectors.degeneration import DegenerationOptions, show
from mtlprune.analyses.vectors.degeneration import maths as dg
from mtlprune.analyses.vectors.degeneration.measure import HEAD_MEASURES, TERMS, DegenerationSurvey, take_apart
from mtlprune.analyses.vectors.degeneration.pieces import (
    BANDS,
    Softmax,
    by_frequency,
    count_pieces,
    drift,
    first_checkpoint,
    read_vectors,
)
from mtlprune.analyses.vectors.smoothing.maths import cosine
from mtlprune.encoder.model import Encoder
from mtlprune.encoder.observe import observe
from mtlprune.encoder.pieces import EncoderError
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.results import Result, long_frame
from mtlprune.statistics import twonn


def drawn(rows: int, features: int, seed: int = 0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, features, dtype=torch.float64, generator=generator) + shift


clouds = st.builds(drawn, st.integers(2, 9), st.integers(2, 7), st.integers(0, 99), st.sampled_from([0.0, 0.5, 3.0]))


@given(clouds)
def test_r_is_cossim(rows):
    number = len(rows)
    similarity = float(cosine(rows[None], torch.ones(1, number, dtype=torch.bool)))
    moments = moments_of(rows)
    assert float(moments.mean_cosine()) == pytest.approx(similarity * (number - 1) / number, abs=1e-12)
    assert float(moments.mean_cosine()) == pytest.approx(mean_cosine(rows), abs=1e-12)


def test_a_row_of_zeros_counts_nothing():
    rows = torch.cat([drawn(3, 4), torch.zeros(1, 4, dtype=torch.float64)])
    units = rows[:3] / rows[:3].norm(dim=1, keepdim=True)
    found = float(moments_of(rows).mean_cosine())
    assert found == pytest.approx(float((units.sum(0).square().sum() - 4) / 16), abs=1e-14)


def test_angles_and_positive_pairs():
    turns = torch.deg2rad(torch.tensor([-20.0, 0, 20], dtype=torch.float64))
    fan = torch.stack([turns.cos(), turns.sin()], 1) * torch.tensor([[1.0], [5], [2]])
    assert dg.angles_to_mean(fan).tolist() == pytest.approx([20, 0, 20], abs=1e-5) and dg.positive_share(fan) == 1
    opposed = torch.cat([fan, -fan])
    assert dg.angles_to_mean(opposed).isnan().all() and dg.positive_share(opposed) == pytest.approx(12 / 30)


def test_the_projection_and_partition_isotropy():
    plane = drawn(30, 2, shift=2.0) @ drawn(2, 6, seed=1)
    shown = dg.projection(plane)
    torch.testing.assert_close(shown @ shown.T, plane @ plane.T)
    assert (shown.mean(0) >= 0).all() and shown[:, 0].norm() >= shown[:, 1].norm()
    assert dg.projection(drawn(5, 1)).shape == (5, 2)
    basis = torch.cat([torch.eye(4), -torch.eye(4)]).double()
    assert dg.partition_isotropy(basis) == pytest.approx(1, abs=1e-12)
    rows = drawn(20, 3, shift=1.0)
    directions = torch.linalg.eigh(rows.T @ rows).eigenvectors
    sums = [float((rows @ (sign * c)).exp().sum()) for c in directions.T for sign in (1, -1)]
    assert dg.partition_isotropy(rows) == pytest.approx(min(sums) / max(sums))
    assert 0 <= dg.partition_isotropy(1000 * rows) < 1e-12  # no overflow


def moments_of(rows: Tensor) -> dg.Moments:
    moments = dg.Moments(*rows.shape[1:])
    for part in rows.split(20):
        moments.add(part)
    return moments


def test_ranks_from_one_to_all_and_what_has_no_isoscore():
    assert float(dg.effective_rank(torch.ones(7))) == pytest.approx(7)
    assert float(dg.effective_rank(torch.tensor([3.0, 0, 0]))) == pytest.approx(1)
    assert dg.effective_rank(torch.zeros(3)).isnan()
    assert float(dg.top_share(torch.tensor([2.0, 1, 1]), 1)) == pytest.approx(4 / 6)
    few = drawn(12, 500)  # 12 centred rows have 11 directions: nearly all of them used alike
    assert 0.97 < float(moments_of(few).effective_rank_share()) <= 1 + 1e-9
    line = drawn(40, 1) @ drawn(1, 5, seed=2) + 3
    assert float(moments_of(line).effective_rank_share()) == pytest.approx(1 / 5, abs=1e-3)
    assert dg.isoscore(torch.zeros(4, 4)).isnan() and dg.isoscore(torch.ones(1, 1)).isnan()


def published_isoscore(covariance: Tensor) -> float:
    """Algorithm 1, step by step."""
    n = len(covariance)
    variances = torch.linalg.eigvalsh(covariance)
    normalised = math.sqrt(n) * variances / variances.norm()
    defect = float((normalised - 1).norm()) / math.sqrt(2 * (n - math.sqrt(n)))
    share = (n - defect**2 * (n - math.sqrt(n))) ** 2 / n**2
    return (n * share - 1) / (n - 1)


def test_moments_stream_and_keep_clouds_apart():
    heads = drawn(50, 12).unflatten(1, (3, 4)) + torch.arange(3)[:, None]  # (N, heads, d)
    moments = moments_of(heads)
    for head in range(3):
        rows = heads[:, head]
        assert float(moments.mean_cosine()[head]) == pytest.approx(mean_cosine(rows), abs=1e-12)
        assert float(moments.cosine()[head]) == pytest.approx(mean_cosine(rows) * 50 / 49, abs=1e-12)
        torch.testing.assert_close(moments.spectrum()[head], torch.linalg.svdvals(rows))
        torch.testing.assert_close(moments.mean()[head], rows.mean(0))
        assert float(moments.isoscore()[head]) == pytest.approx(published_isoscore(torch.cov(rows.T)), abs=1e-10)
        centred = torch.linalg.svdvals(rows - rows.mean(0))
        assert float(moments.effective_rank_share()[head]) == pytest.approx(float(dg.effective_rank(centred)) / 4)


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.6])
def test_existence_is_that_of_the_linear_programme(shift):
    generator = np.random.default_rng(3)
    answers = []
    for number in (2, 5, 8, 10, 12, 30) * 6:
        rows = generator.standard_normal((number, 5)) + shift
        found = dg.negative_direction(rows)
        solved = linprog(np.zeros(5), A_ub=rows, b_ub=-np.ones(number), bounds=(None, None))  # H v ≤ −1
        answers.append(found is not None)
        assert answers[-1] == (solved.status == 0)
        if found is not None:
            assert (rows @ found[0]).max() < 0 and np.linalg.norm(found[0]) == pytest.approx(1)
    assert len(set(answers)) == 2
    fan = np.deg2rad([-70, -20, 30, 50])
    found = dg.negative_direction(np.stack([np.cos(fan), np.sin(fan)], 1) * [[3.0], [1], [2], [1]])
    assert found[1] == pytest.approx(np.cos(np.deg2rad(60)))  # the widest margin
    assert found[0] == pytest.approx([-np.cos(np.deg2rad(-10)), -np.sin(np.deg2rad(-10))])


@pytest.mark.parametrize(("vectors", "p"), [(5, 1), (8, 99 / 128), (10, 0.5), (15, 1471 / 2**14)])
def test_how_often_random_vectors_have_a_negative_direction(vectors, p):
    assert dg.wendel(vectors, 5) == pytest.approx(p)


SENTENCES = sentences_of((5, 11, 3, 8, 1, 6, 9, 9, 4, 7, 10, 2, 12, 6, 5, 8))
REQUEST = Request((), Path("nowhere"), DegenerationOptions(rows=80, permutations=50))


def measured(encoder: Encoder, gates: Tensor | None = None) -> SubjectResult:
    return DegenerationSurvey(reading_of(SENTENCES), subject_of(encoder, gates), REQUEST).run()


def test_the_sample_depends_on_sentences_only_and_has_one_word_of_each():
    sizes = [*map(len, SENTENCES)]
    sample = dg.draw(sizes, 40, seed=3)
    assert len(set(sample.stored_words)) == len(sample.stored_words) and len(sample.rows) == 40
    lone = sample.stored_words[sample.one_a_sentence]
    assert (np.searchsorted(sample.starts, lone, side="right") - 1).tolist() == list(range(len(sizes)))
    assert (dg.draw(sizes, 40, seed=3).stored_words == sample.stored_words).all()
    assert len(dg.draw(sizes, 9999, 0).rows) == sum(sizes)


def words(encoder: Encoder) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden states and head outputs of all words, sentence by sentence: no padding anywhere."""
    found: list[tuple[list[Tensor], list[Tensor]]] = []
    for sentence in SENTENCES:
        seen = observe(encoder, encoder.collate([encoder.tokenize(sentence.words)]), GATES, {"hidden", "heads"})
        found.append(tuple([*map(seen.word_vectors, states)] for states in (seen.hidden, seen.heads)))
    hidden, heads = zip(*found, strict=True)
    return [*map(torch.cat, zip(*hidden, strict=True))], [*map(torch.cat, zip(*heads, strict=True))]


def test_what_streams_is_what_whole_matrices_say(bert):
    found, (hidden, heads) = measured(bert, GATES), words(bert)
    for layer, states in enumerate(hidden):
        assert column(found, "layers", "mean_cosine")[layer] == pytest.approx(mean_cosine(states), abs=1e-10)
        assert column(found, "layers", "rows")[layer] == len(states) == sum(map(len, SENTENCES))
        isoscore = float(dg.isoscore(torch.cov(states.T)))
        assert column(found, "layers", "isoscore")[layer] == pytest.approx(isoscore, abs=1e-8)
    sample = dg.draw([len(sentence) for sentence in SENTENCES], 80, 0)
    drawn = hidden[-1][sample.stored_words][sample.rows].float().double()
    assert column(found, "layers", "positive")[-1] == dg.positive_share(drawn)
    assert column(found, "layers", "dimension")[-1] == pytest.approx(
        twonn.likelihood(hidden[-1][sample.stored_words][sample.one_a_sentence].double()), 1e-4
    )
    for (layer, head), value in np.ndenumerate(grids(found)["cosine"]):
        outputs = heads[layer][:, head]
        expected = mean_cosine(outputs) * len(outputs) / (len(outputs) - 1)
        assert value == pytest.approx(expected if GATES[layer, head] else math.nan, abs=1e-10, nan_ok=True)
    assert column(found, "embeddings", "rows") == bert.transformer.get_input_embeddings().weight.shape[0]
    assert column(found, "embeddings", "margin") >= 0
    assert math.isnan(column(found, "layers", "margin")[0]) == (len(sample.rows) < 78)


def test_the_mean_taken_apart(bert):
    hidden, _ = words(bert)
    mean = hidden[-1].mean(0)
    layers, heads, _ = take_apart(subject_of(bert, GATES), reading_of(SENTENCES), mean, REQUEST)
    terms = np.array([[row[f"share_{term}"] for term in TERMS] for row in layers])
    assert terms.shape == (3, 4)
    np.testing.assert_allclose(terms.sum(1), 1, atol=1e-10)
    np.testing.assert_allclose(terms[0, 1:3], 0, atol=1e-12)
    assert heads.sum() == pytest.approx(terms[-1, 1], abs=1e-8)
    assert (heads[GATES.numpy() == 0] == 0).all()


def test_removed_heads_are_as_closed_ones(bert):
    gates = (GATES > 0).double()
    closed, cut = measured(bert, gates), measured(without_heads(bert, gates))
    for name in HEAD_MEASURES:
        np.testing.assert_allclose(grids(cut)[name], grids(closed)[name], atol=1e-6)
        assert np.isnan(grids(closed)[name][gates.numpy() == 0]).all()
    np.testing.assert_allclose(grids(cut)["cone"], grids(closed)["cone"], atol=1e-9)
    for term in TERMS:
        shares = [column(one, "layers", f"share_{term}") for one in (cut, closed)]
        np.testing.assert_allclose(*shares, atol=1e-9)
    found = grids(measured(without_heads(bert, torch.tensor([[0.0] * 4, [1.0] * 4]))))  # a layer without heads
    assert found["gate"].tolist() == [[0] * 4, [1] * 4] and (found["cone"][0] == 0).all()
    assert np.isnan(found["cosine"][0]).all() and not np.isnan(found["cosine"][1]).any()


def test_encoders_that_cannot_be_taken_apart_say_so(tiny_encoder):
    found = measured(Encoder.load(str(tiny_encoder("modernbert")), attention="eager"))
    assert "cone" not in grids(found) and "not a Post-LN encoder" in found.notes[0]
    assert len(column(found, "layers", "isoscore")) == 3
    bare = measured(Encoder.load(str(tiny_encoder("bert")), context=False))
    assert bare.frames.keys() == {"embeddings", "spectra", "points"} and "has no layers" in bare.notes[0]
    assert column(bare, "embeddings", "rows") > 0


# -- embeddings against frequency, and the softmax over them -----------------------------------------------------------


def test_layernorm_puts_everything_on_a_plane_unless_it_has_no_offset(bert):
    torch.manual_seed(1)
    norm = torch.nn.LayerNorm(24, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight, 1, 0.5)
    torch.nn.init.normal_(norm.bias)
    rows = norm(torch.randn(500, 24, dtype=torch.float64) * torch.rand(500, 1) * 30).detach()
    plane, normal = dg.plane(norm.weight, norm.bias, rows), 1 / norm.weight.detach()
    offset = float(norm.bias.detach() @ normal)
    assert plane["plane_spread"] < 1e-14 and plane["plane_angle"] > 90
    torch.testing.assert_close(rows @ normal, torch.full((500,), offset, dtype=torch.float64))
    assert plane["plane_distance"] == pytest.approx(abs(offset) / float(normal.norm()))
    assert plane["plane_largest"] == pytest.approx(float((normal.square() / normal.square().sum()).max()))
    assert dg.plane(norm.weight, norm.bias, torch.randn(9, 24))["plane_spread"] > 1e-3
    assert dg.plane(torch.tensor([1.0, 0.0]), torch.zeros(2), rows[:, :2]) == {}
    assert dg.plane(norm.weight, None, rows) == {}  # as in ModernBERT
    assert (column(measured(bert, GATES), "layers", "plane_spread")[1:] < 1e-6).all()  # kept in float32


def test_rare_rows_in_a_planted_cone_are_found_by_frequency():
    counts = np.array([-1, 0, 0, 1, 5, 9, 10, 50, 400, 5000])
    degrees = torch.tensor([180.0, 2, -2, 8, -8, 9, 30, -30, 60, -70], dtype=torch.float64).deg2rad()
    table = torch.stack([degrees.cos(), degrees.sin()], 1) * 3
    losses, times = torch.arange(10, dtype=torch.float64), torch.ones(10, dtype=torch.float64)
    frames, spearman = by_frequency(table, [*"abcdefghij"], counts, {"loss": losses * times, "predicted": times})
    # the special piece is left out
    wide = frames["pieces"].pivot(index="term", columns="measure", values="value").loc[list(BANDS)]
    assert wide["pieces"].tolist() == [2, 3, 2, 1, 1] and wide["norm"].tolist() == pytest.approx([3] * 5)
    assert wide["loss"].tolist() == [1.5, 4, 6.5, 8, 9]
    assert wide["cosine"].is_monotonic_decreasing and spearman < -0.8
    assert wide.loc["never", "R"] == pytest.approx(mean_cosine(table[1:3]))
    assert set(frames["sample"]["label"]) == set("bcdefghij")
    states = torch.tensor([[1.0, 2], [3, 2]], dtype=torch.float64)
    moved = drift(table - torch.tensor([[2.0, 2]]), table, states)
    assert (moved["away"] - 1).abs().max() < 1e-12 and moved["moved"].tolist() == pytest.approx([8**0.5 / 3] * 10)
    turned = drift(table @ torch.tensor([[0.0, 1], [-1, 0]], dtype=torch.float64), table, None)
    assert turned["turned"].tolist() == pytest.approx([90.0] * 10) and "away" not in turned


def test_the_softmax_is_given_each_piece_once(tiny_encoder, tmp_path):
    torch.manual_seed(2)
    folder, encoder = str(tmp_path / "lm"), Encoder.load(str(tiny_encoder("bert")))
    model = BertForMaskedLM._from_config(encoder.config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.2, 0.5)
    model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    reading, mask = reading_of(SENTENCES), encoder.tokenizer.mask_token_id
    batches = [encoder.collate([encoder.tokenize(sentence.words)]) for sentence in reading.sentences]
    softmax, table = Softmax.of(folder, mask, batches, "cpu"), model.get_input_embeddings().weight.detach().double()
    pieces = [piece for sentence in SENTENCES for piece in encoder.tokenize(sentence.words).ids]
    assert sorted(softmax.gold.tolist()) == sorted(pieces) and softmax.plane["plane_spread"] < 1e-6
    scores = softmax.states @ table.T + model.cls.predictions.bias.detach().double()
    expected = torch.nn.functional.cross_entropy(scores, softmax.gold, reduction="none")
    torch.testing.assert_close(softmax.losses, expected, rtol=1e-4, atol=1e-4)
    measures = softmax.measures(table)
    assert measures["predicted"].tolist() == count_pieces(encoder, [s.words for s in SENTENCES]).clip(0).tolist()
    assert float(measures["loss"].sum()) == pytest.approx(float(softmax.losses.sum()))
    assert measures["negative"].tolist() == pytest.approx((softmax.states @ table.T < 0).double().mean(0).tolist())
    inside, turn = batches[0].source[0] >= 0, torch.arange(batches[0].input_ids.shape[1]) % 7
    with torch.no_grad():
        given = batches[0].input_ids.masked_fill(inside & (turn == 1), mask)
        one = model(given, attention_mask=batches[0].attention_mask).logits[0, 1]
    place = int((inside & (turn == 0)).sum())  # pieces of the turn before; [CLS] stands in column 0
    assert float(softmax.losses[place]) == pytest.approx(-float(one.log_softmax(-1)[softmax.gold[place]]), rel=1e-4)
    with pytest.raises(EncoderError, match="no head that predicts pieces"):
        Softmax.of(str(tiny_encoder("bert")), mask, batches, "cpu")


def test_static_vectors_are_read_as_word2vec_writes_them(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("2 3\nthe 1 -0.5 2e-1 \n\u00a0x 0 0 1\n")
    words, rows = read_vectors(path)
    assert words == ["the", "\u00a0x"] and rows.tolist() == [[1, -0.5, 0.2], [0, 0, 1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 1 2\n", ":1: expected the numbers of words and of features"),
        ("", ":1: expected the numbers"),
        ("2 2\nthe 1 2\na 1\n", ":3: expected a word and 2 numbers, found 'a 1'"),
        ("2 2\nthe 1 x\na 1 2\n", ":2: expected a word and 2 numbers"),
        ("2 2\nthe 1 nan\na 1 2\n", ":2: expected a word and 2 numbers"),
        ("3 2\nthe 1 2\na 1 2\n", "expected 3 words (at least two), found 2"),
    ],
)
def test_another_file_of_vectors_is_refused(tmp_path, text, words):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(ProbeError, match=re.escape(words)):
        read_vectors(tmp_path / "v.txt")
    with pytest.raises(ProbeError, match="cannot be read as text"):
        read_vectors(tmp_path / "none.txt")


def test_several_encoders_are_told_apart_by_run_and_seed(tmp_path):
    names = []
    for seed in (1, 2):
        run = RunFolder(tmp_path / str(seed))
        run.write_config({"name": "base", "data": {"corpora": ["x"]}, "train": {"seed": seed}})
        names += [str(run.path / "checkpoints" / f"step-{step}") for step in (0, 10)]
    (tmp_path / "1" / "checkpoints" / "step-0").mkdir(parents=True)
    assert first_checkpoint(names[1]) == tmp_path / "1" / "checkpoints" / "step-0"
    assert first_checkpoint(names[0]) is None and first_checkpoint(names[3]) is None
    found = [(source.label, source.seed) for source in find_sources([*names, "minilm"])]
    steps = [(f"base, step {step}", seed) for seed in (1, 2) for step in (0, 10)]
    assert found == [*steps, ("minilm", 0)] and find_sources(names[:1])[0].label == "pretrained"


def test_the_median_of_four_decoders_lies_between_two_of_them():
    keys = {"encoder": "MTL-4", "run": "mtl", "seed": 1}
    found = [{**keys, "task": f"t{-x}", "spearman": x, "spearman_p": 0.01} for x in (-0.9, -0.7, -0.3, -0.1)]
    about = {"encoders": [{**keys, "layers": 1, "heads": 1, "open": 1}], "claims": None, "notes": []}
    result = Result("degeneration", about, {"decoders": long_frame(found, *keys, "task")})
    assert any("The median is -0.50." in sentence for sentence in show.findings(result))
