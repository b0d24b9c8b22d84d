"""Tables of scores: which runs share a column, where columns stand, what a cell holds; Markdown, LaTeX, CSV, JSON."""

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from markup import markdown_rows
from report_runs import end_with
from run_folders import write_run, write_runs

from mtlprune.evaluation.scores import main_score
from mtlprune.figures.grid import LONG, Grid, Strong, escape, number, probability
from mtlprune.reports.scores.comparisons import compare, with_tests
from mtlprune.reports.scores.tables import Comparison, grids, markdown, records, to_csv, to_json
from mtlprune.runs.folder import RunError, RunFolder


@pytest.fixture
def make(tmp_path):
    """Write a run with these scores: ``make({"pos": 90.0}, **{"train.seed": 2})``."""

    def run(scores, data="f" * 64, name="base", **settings):
        place = tmp_path / str(len(list(tmp_path.iterdir()))) / name
        folder = write_run(place, dict.fromkeys(scores, 0.5), data=data, **settings)
        table = {task: {main_score(task, {}): value, "other": 1.0} for task, value in scores.items()}
        folder.write_json("scores/test.json", table)
        return folder

    return run


def against(folders: Sequence[RunFolder]) -> dict[str, str]:
    comparison = compare(folders, "test")
    return {comparison.columns[one].title: comparison.columns[other].title for one, other in comparison.against.items()}


def table(folders: list[RunFolder], extra: dict[str, dict[str, float]] | None = None) -> list[list[str]]:
    return markdown_rows(markdown(compare(folders, "test", extra)))


def test_stl_beside_mtl(make):
    """Neither names nor machines tell settings apart."""
    alone = make({"ner": 82.0}, name="n"), make({"pos": 96.25}, **{"train.threads": 8, "data.path": "elsewhere"})
    folders = [make({"pos": 97.0, "ner": 80.5}, name="together"), *alone]
    assert table(folders) == [
        ["task", "STL", "POS+NER", "Δ"],
        ["POS accuracy", "96.25", "**97.00**", "+0.75"],
        ["NER strict span F1", "**82.00**", "80.50", "-1.50"],
    ]


def test_seeds_are_averaged_and_an_unfinished_run_is_named(make):
    seeds = {1: 90.0, 2: 92.0, 3: 97.0}
    folders = [make({"pos": score, "ner": 50.0}, **{"train.seed": seed}) for seed, score in seeds.items()]
    folders.append(make({"pos": 91.0}))
    assert table(folders)[1] == ["POS accuracy", "91.00", "**93.00 ± 3.61 (n=3)**", "+2.00"]
    one, other = make({"pos": 90.0}), make({"pos": 91.0}, **{"train.seed": 2})
    assert "not finished" not in markdown(compare([one, other], "test"))
    other.write_json("manifest.json", {"data": {"fingerprint": "f" * 64}})
    assert markdown(compare([one, other], "test")).endswith(
        f" Runs that have not finished training are {other.path}.\n"
    )


def test_corpora_have_rows_of_their_own(make):
    folders = []
    for corpus, scores in (("ewt5", {"pos": 90.0, "ner": 50.0}), ("gum", {"pos": 95.0, "dep": 10.0})):
        for name, several in (("alone", [{task: score} for task, score in scores.items()]), ("both", [scores])):
            folders += [make(one, corpus[:1] * 64, name) for one in several]
        for folder in folders[-3:]:
            manifest = folder.read_manifest()
            folder.write_json("manifest.json", {**manifest, "data": {**manifest["data"], "name": corpus}})
    text = markdown(compare(folders, "test", by_corpus=True))
    assert [[row[0].rpartition(", ")[2], row[1].split()[0], *row[2:]] for row in markdown_rows(text)[1:]] == [
        ["ewt5", "POS", "90.00", "90.00", "+0.00", "–", "–"],
        ["ewt5", "NER", "50.00", "50.00", "+0.00", "–", "–"],
        ["gum", "POS", "95.00", "–", "–", "95.00", "+0.00"],
        ["gum", "DEP", "10.00", "–", "–", "10.00", "+0.00"],
    ]
    with pytest.raises(RunError, match=r"different data .*--by corpus"):
        compare(folders, "test")


def test_baselines_have_columns_of_their_own(make):
    both = {"pos": 1.0, "ner": 2.0}
    context, random = make(both, **{"encoder.context": False}), make(both, **{"encoder.random": True})
    folders = [make({"pos": 3.0}), make(both), context, random]
    header = table(folders, {"majority": both})[0]
    assert header == ["task", "majority", "no encoder", "random encoder", "STL", "POS+NER", "Δ"]
    header = table([*folders, make({"pos": 1.0}, **{"encoder.context": False})])[0]
    assert header == ["task", "no encoder, STL", "no encoder, POS+NER", "random encoder", "STL", "POS+NER", "Δ"]


def test_settings_are_told_apart(make):
    both = {"pos": 1.0, "ner": 2.0}
    stl = make({"pos": 3.0})
    by_name = [stl, make(both, name="joint"), make(both, name="sampled", **{"train.mixing": "sampled"})]
    assert table(by_name)[0] == ["task", "STL", "POS+NER", "Δ", "POS+NER, sampled", "Δ"]
    assert "In POS+NER, sampled, the tasks differ from STL, and other settings also differ" in markdown(
        compare(by_name, "test")
    )
    longer = [make(both, name=f"longer-{rate}", **{"train.encoder_rate": rate}) for rate in (0.1, 0.2)]
    titles = {column.title for column in compare([*by_name, *longer], "test").columns}
    assert titles == {"STL", "POS+NER", "POS+NER (longer-0.1)", "POS+NER (longer-0.2)", "POS+NER, sampled"}
    by_setting = [stl, make(both), make(both, **{"train.epochs": 7}), make(both, **{"train.epochs": 9})]
    assert {"POS+NER", "POS+NER (train.epochs=7)", "POS+NER (train.epochs=9)"} < set(table(by_setting)[0])
    alone = [  # a column holds runs of several names: none of them may stand for all
        make({task: 1.0}, name=f"{fusion}-{task}", **{"encoder.fusion": fusion})
        for fusion in ("none", "gate")
        for task in ("pos", "dep")
    ]
    assert table(alone)[0] == ["task", "STL, fusion gate", "STL"]
    three = {"pos": 1.0, "ner": 2.0, "dep": 3.0}
    other_tasks = [make(three), make({**three, "srl": 1.0, "con": 1.0}), make({**both, "srl": 2.0})]
    assert set(table(other_tasks)[0][1:]) == {"POS+NER+DEP", "POS+NER+SRL", "MTL-5"}


def test_differences_are_taken_to_the_same_settings(make):
    """Two STL settings: each MTL setting has its own; one without a counterpart has no difference."""
    both = {"pos": 10.0, "ner": 10.0}
    folders = [make({"pos": 1.0}), make({"pos": 2.0}, **{"train.epochs": 9})]
    folders += [make(both), make(both, **{"train.epochs": 9}), make(both, **{"train.epochs": 5})]
    pairs = {f"POS+NER (train.epochs={number})": f"STL (train.epochs={number})" for number in (3, 9)}
    assert against(folders) == pairs


def test_refusals_are_sentences_and_the_same_run_twice_is_one(make):
    run = make({"pos": 1.0})
    other, copy = make({"ner": 1.5}, data="0" * 64), make({"pos": 1.5}, name="copy")
    for runs, split, said in (
        ([run], "dev", r"is not scored on 'dev' \(scored: test\); run: mtlprune evaluate .*--split dev$"),
        ([run, copy], "test", "have the same settings, tasks and seed, so they are one result; name only one"),
        ([run, other], "test", "were trained on different data"),
        ([], "test", "at least one run"),
    ):
        with pytest.raises(RunError, match=said):
            compare(runs, split)
    assert table([run, run]) == [["task", "STL"], ["POS accuracy", "1.00"]]


TASKS = ("pos", "dep", "srl")


def study(root: Path, seeds: Iterable[int] = (1,), encoder: str = "minilm") -> list[RunFolder]:
    sets = [dict.fromkeys(tasks, 0.9 - 0.05 * n) for n in (1, 2, 3) for tasks in itertools.combinations(TASKS, n)]
    return write_runs(root / encoder, sets, seeds, encoder=encoder)


def shown(folder: RunFolder, task: str) -> str:
    (value,) = folder.read_scores("test")[task].values()
    return f"{value:.2f}"


def test_pairs_make_a_triangle(tmp_path):
    """Row DEP under +SRL is DEP's score when trained with SRL; the diagonal is empty."""
    folders = {folder.path.name: folder for folder in study(tmp_path)}
    (grid, _) = grids(compare(folders.values(), "test"))
    assert grid.header == ["task", "STL", "+POS", "+DEP", "+SRL", "MTL-3"]
    for row, task in zip(grid.rows, TASKS, strict=True):
        pairs = ["" if other == task else "-".join(t for t in TASKS if t in (task, other)) for other in TASKS]
        sets = [task, *pairs, "pos-dep-srl"]
        assert list(map(str, row[1:])) == [shown(folders[f"{one}-1"], task) if one else "–" for one in sets]


def test_settings_that_follow_the_tasks_do_not_split_columns(tmp_path):
    """As in the paper, where single tasks and pairs have different numbers of mini-batches an update."""
    folders = [write_run(tmp_path / t, {t: 0.8}, **{"train.epochs": 3 + k}) for k, t in enumerate(TASKS)]
    for k, tasks in enumerate(itertools.combinations(TASKS, 2)):
        folders.append(write_run(tmp_path / "-".join(tasks), dict.fromkeys(tasks, 0.7), **{"train.epochs": 3 + k}))
    comparison = compare(folders, "test")
    assert grids(comparison)[0].header == ["task", "STL", "+POS", "+DEP", "+SRL"]
    text = markdown(comparison)
    assert "The runs of STL differ in train.epochs" in text
    assert "In POS+DEP, POS+SRL, DEP+SRL, the tasks differ from STL, and other settings also differ" in text


def test_encoders_are_blocks_of_rows(tmp_path):
    folders = [*study(tmp_path), *study(tmp_path, encoder="bert")]
    comparison = with_tests(compare(folders, "test", {"majority": {"pos": 12.5}}), 300)
    scores, deltas = grids(comparison)
    assert scores.header == ["encoder", "task", "majority", "STL", "+POS", "+DEP", "+SRL", "MTL-3"]
    assert [row[0] for row in scores.rows] == ["minilm"] * 3 + ["bert"] * 3
    assert [row[2] for row in scores.rows] == ["12.50", "–", "–"] * 2
    # both encoders have the same counts here, so every difference comes twice, each to its own encoder's STL
    assert [row[1:] for row in deltas.rows[:3]] == [row[1:] for row in deltas.rows[3:]]
    assert len(comparison.tests) == 18


def test_heads_stand_beside_pruned_scores(tmp_path):
    gates = {"pruning.method": "gates", "pruning.penalty": "lambda", "pruning.strength": 0.05}
    folders = [write_run(tmp_path / f"pos-{seed}", {"pos": 0.9}, seed=seed) for seed in (1, 2)]
    for seed, closed in ((1, 2), (2, 5)):
        heads = np.ones((2, 4))
        heads.flat[:closed] = 0
        folders.append(write_run(tmp_path / f"gates-{seed}", {"pos": 0.6}, heads, seed=seed, **gates))
    comparison = with_tests(compare(folders, "test"), 500)
    (grid,) = grids(comparison)
    assert grid.header == ["task", "STL", "STL, heads by gates, λ 0.05", "heads", "Δ"]
    assert grid.rows[0][3] == "4.5 ± 2.1/8"
    record = list(records(comparison))[1]
    assert (record["heads"], record["heads_of"], record["against"]) == (4.5, 8, "STL")


def test_heads_of_gate_sets_and_of_removed_heads(tmp_path):
    """Tasks with gates of their own have heads of their own; a run of `export --remove` says which heads are left."""
    own = {"pruning.method": "gates", "pruning.sets": "per_task", "pruning.keep": 3, "pruning.penalty": "exact"}
    sets = {"pos": np.eye(3), "dep": np.ones((3, 3))}
    folder = write_run(tmp_path / "own", {"pos": 0.6, "dep": 0.6}, sets, **own)
    (grid,) = grids(compare([folder], "test"))
    assert [row[2] for row in grid.rows] == ["3/9", "9/9"]
    record = {"most_open": None, "config": folder.read_config()}
    folder.write_json("manifest.json", {**folder.read_manifest(), "pruned": record})
    folder.write_json("encoder/heads.json", {"heads": 4, "kept": [[0, 1], [], [3]]})
    (grid,) = grids(compare([folder], "test"))
    assert [row[2] for row in grid.rows] == ["3/12", "3/12"]


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    return with_tests(compare(study(tmp_path, (1, 2)), "test"), 300, seed=5)


def test_records_are_the_unrounded_table(comparison):
    found = {(record["column"], record["task"]): record for record in records(comparison)}
    assert len(found) == 3 + 6 + 3
    for (title, task), record in found.items():
        (place,) = [k for k, column in enumerate(comparison.columns) if column.title == title]
        values = comparison.columns[place].values(task)
        assert (record["mean"], record["sd"]) == (statistics.mean(values), statistics.stdev(values))
        assert (record["seeds"], len(record["runs"])) == ([1, 2], 2)
        test = comparison.tests.get((place, task))
        assert (record["p"], record["p_holm"]) == ((test.difference.p, test.p_holm) if test else (None, None))
        assert record["best"] == (title == "STL")


def test_json_and_csv_hold_the_records(comparison):
    tree = json.loads(to_json(comparison))
    every = list(records(comparison))
    assert tree["cells"] == every
    assert (tree["split"], tree["resamples"], tree["seed"], tree["tests"]) == ("test", 300, 5, 9)
    assert tree["notes"] and all(text in markdown(comparison) for text in [*tree["notes"], *tree["legend"]])
    rows = list(csv.DictReader(io.StringIO(to_csv(comparison))))
    assert [list(row) for row in rows] == [list(record) for record in every]
    for row, record in zip(rows, every, strict=True):
        assert float(row["mean"]) == record["mean"] and row["seeds"] == "1;2"
        assert row["p"] == ("" if record["p"] is None else str(record["p"]))


def test_equal_scores_are_not_in_bold(tmp_path):
    folders = [write_run(tmp_path / "a", {"pos": 0.8}), write_run(tmp_path / "b", {"pos": 0.8, "ner": 0.5})]
    assert "**" not in markdown(compare(folders, "test"))


def trained(folder: RunFolder, updates: int) -> RunFolder:
    end_with(folder, step=updates)
    return folder


def test_what_has_seen_more_training_is_marked_and_never_in_bold(make):
    """Starting from a finished run, choosing heads on one, more updates: the best scores, and not in bold."""
    stl, keep = trained(make({"pos": 50.0}), 252), {"pruning.keep": 4}
    gates = {"pruning.method": "gates", "pruning.penalty": "exact", **keep}
    start = {**gates, "train.start": str(stl.path), "train.freeze": ["decoders"]}
    ranked = {"pruning.method": "importance", "pruning.importance_of": str(stl.path), **keep}
    alone = [trained(make({"pos": score}, **how), 252) for score, how in ((40.0, gates), (95.0, start), (90.0, ranked))]
    joint = trained(make({"pos": 45.0, "ner": 40.0}, name="joint"), 255)
    sampled = trained(make({"pos": 97.0, "ner": 40.0}, name="sampled", **{"train.mixing": "sampled"}), 1260)
    comparison = compare([stl, *alone, joint, sampled], "test")
    more = {c.title: comparison.more_training(k, "pos") for k, c in enumerate(comparison.columns)}
    marked = {title: reason for title, reason in more.items() if reason}
    assert marked == {
        "STL, 4 heads by static gates": "starts from a finished run (252 updates) and trains on for 252 more",
        "STL, 4 heads by importance": "a finished run (252 updates) chose its heads",
        "POS+NER, sampled": "1,260 updates of the encoder, others 252",
    }
    scores, deltas = grids(comparison)
    cells = dict(zip(scores.header, scores.rows[0], strict=True))
    assert {name for name, text in cells.items() if "‡" in text} == set(marked)
    assert sum("‡" in text for text in deltas.rows[0]) == 3
    assert [name for name, text in cells.items() if isinstance(text, Strong)] == ["STL"]
    assert not any(record["best"] and record["more_training"] for record in records(comparison))


def test_columns_are_compared_with_the_one_asked_for(tmp_path):
    """Two ways of pruning against each other, which no difference to STL says."""
    keep = {"pruning.keep": 4}
    methods = [(0.8, {}), (0.6, {"pruning.method": "random", **keep})]
    methods += [(0.61, {"pruning.method": "gates", "pruning.penalty": "exact", **keep})]
    folders = []
    for seed in (1, 2):
        for skill, how in methods:
            folders.append(write_run(tmp_path / f"{skill}-{seed}", {"pos": skill}, seed=seed, **how))
        folders.append(write_run(tmp_path / f"mtl-{seed}", {"pos": 0.7, "ner": 0.5}, seed=seed))
    chance, gates = "STL, 4 random heads", "STL, 4 heads by gates"
    comparison = with_tests(compare(folders, "test", reference=chance), 500)
    titles = [column.title for column in comparison.columns]
    pairs = {titles[k]: titles[other] for k, other in comparison.against.items()}
    assert pairs == dict.fromkeys(["STL", "POS+NER", gates], chance)  # the joint run has POS too
    row = {record["column"]: record for record in records(comparison) if record["task"] == "pos"}
    assert row[gates]["delta"] == row[gates]["mean"] - row[chance]["mean"] and row[gates]["against"] == chance
    with pytest.raises(
        RunError,
        match="--against: expected the title of a column, found 'chance'; the titles are 'STL', 'STL, 4 heads by",
    ):
        compare(folders, "test", reference="chance")


@pytest.mark.parametrize("rows", [1, LONG, LONG + 1, 200])
def test_every_row_and_what_is_opened_is_closed(rows):
    made = Grid(["label", "F1"], [[f"row_{k}", Strong(f"{k}.5")] for k in range(rows)]).latex("tab:x", "Of 50 %.")
    kind = "longtable" if rows > LONG else "tabular"
    assert f"\\begin{{{kind}}}{{lr}}" in made and f"\\end{{{kind}}}" in made
    assert made.count("\\begin{") == made.count("\\end{") and ("\\endhead" in made) == (rows > LONG)
    assert all(f"row\\_{k} & \\textbf{{{k}.5}} \\\\" in made for k in range(rows))
    assert made.count("{Of 50 \\%.}") == made.count("label & F1") == 1 + (rows > LONG)


def test_a_cell_stays_a_cell_whatever_its_words_and_numbers_are_shown():
    hostile = ("a|b", "<b>x</b>", "&lt;", "[x](javascript:1)", "two\nlines", "\x1b[31m", "p < 0.05 & q")
    made = Grid(["word"], [[cell] for cell in hostile])
    rows = [line.strip("| ").strip() for line in made.markdown().splitlines()[2:]]
    assert rows[:4] == ["a\\|b", "&lt;b>x&lt;/b>", "&amp;lt;", "[x]\\(javascript:1)"]
    assert rows[4:] == ["two\\nlines", "\\x1b[31m", "p < 0.05 & q"]
    aligned = "| a   |  n |\n|:----|---:|\n| x_1 | 10 |\n| 50% |  2 |\n"
    assert Grid(["a", "n"], [["x_1", "10"], ["50%", "2"]]).markdown() == aligned
    words = r"a\textbackslash{}b $\geq$ \{2\} \& x\textasciicircum{}y \textasciitilde{} \#"
    assert escape("a\\b ≥ {2} & x^y ~ #") == words
    assert (number(-1.234), number(math.nan), number(0.5, 0)) == ("−1.23", "–", "0")
    assert [probability(p) for p in (0.04321, 1 / 10_001, 1e-9, math.nan)] == ["0.0432", "0.0001", "<0.0001", "–"]
