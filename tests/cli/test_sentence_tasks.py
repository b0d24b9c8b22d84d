"""Tasks of whole sentences on the command line, from files to scores."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mtlprune.analyses.harness.settings import read_settings
from mtlprune.corpora.store import load_corpus
from mtlprune.runs.columns import in_columns
from mtlprune.runs.folder import RunFolder

ROW = "{}\t{}\t_\tX\t_\t_\t{}\t{}\t_\t_"
SAYS = "--comment", "s_type=sentence_type", "--comment", "prom=prominence:number", "--comment", "about=topics:labels"
SAYS += "--comment", "meta::genre=genre"


def conllu(sentences: int) -> str:
    """Sentences whose type is whether they end in a question mark, and whose number counts their words."""
    blocks = []
    for k in range(sentences):
        asks, words = k % 3 == 0, ["the", "old", "dog", "saw", "two", "cats"][: 2 + k % 5]
        words = [*words, "?" if asks else "."]
        rows = [ROW.format(n, word, n - 1, "dep" if n > 1 else "root") for n, word in enumerate(words, 1)]
        head = [f"# newdoc id = d{k}", f"# meta::genre = {'news' if k % 20 else 'court'}"] if k % 10 == 0 else []
        head += [f"# sent_id = s{k}", f"# s_type = {'q' if asks else 'decl'}"]
        head += [f"# prom = {len(words)}", f"# about = {'dogs|cats' if len(words) == 7 else ''}"]
        blocks.append("\n".join([*head, *rows]))
    return "\n\n".join(blocks) + "\n"


def test_comments_become_layers(mtlprune: Callable, tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(conllu(30))
    mtlprune("data", "build", tmp_path / "a.conllu", "--out", tmp_path / "c", *SAYS).done()
    corpus = load_corpus(tmp_path / "c")
    kinds = {name: corpus.layers[name] for name in ("sentence_type", "prominence", "topics", "genre")}
    assert kinds == {"sentence_type": "label", "prominence": "number", "topics": "labels", "genre": "label"}
    found = {s.id: s for split in corpus.splits for s in corpus[split]}
    assert [found[f"s{k}"].get("sentence_type") for k in range(4)] == ["q", "decl", "decl", "q"]
    assert [found[f"s{k}"].get("prominence") for k in range(4)] == [3.0, 4.0, 5.0, 6.0]
    assert [found[f"s{k}"].get("genre") for k in (0, 9, 10, 19, 20)] == ["court"] * 2 + ["news"] * 2 + ["court"]
    assert found["s4"].get("topics") == ("cats", "dogs") and found["s3"].get("topics") == ()
    assert "sentence_type: q" in mtlprune("data", "show", tmp_path / "c", "s0").done().out
    words = ("data", "export", tmp_path / "c", "--split", "train", "--layer", "prominence")
    mtlprune(*words, "--out", tmp_path / "n").done()
    assert (tmp_path / "n").read_text().split("\n")[0].split("\t")[1] in "34567"
    for says, why in (
        ("never=x", "expected # never = ... at some sentence"),
        ("s_type=x:number", "a.conllu, line 1: comment s_type: expected a number such as 3.5, found 'q'"),
        ("s_type=x:tags", "expected a key and a layer of the kind label or number or labels"),
        ("s_type=pos", "expected a key and a layer of the kind label"),
    ):
        files = tmp_path / "a.conllu", "--out", tmp_path / "d"
        mtlprune("data", "build", "conllu", *files, "--comment", says).refuses(why)


@pytest.fixture(scope="module")
def run(mtlprune: Callable, tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tree, a label, a number and a set of labels on 60 sentences."""
    folder = tmp_path_factory.mktemp("sentences")
    for split, size in (("train", 60), ("dev", 20), ("test", 20)):
        (folder / f"{split}.conllu").write_text(conllu(size))
    files = [word for split in ("train", "dev", "test") for word in (f"--{split}", folder / f"{split}.conllu")]
    mtlprune("data", "build", *files, "--out", folder / "c", *SAYS).done()
    types = ("sentence_type.type=label", "prominence.type=number", "topics.type=labels")
    small = [f"encoder.name={tiny_encoder('bert')}", "train.epochs=8", "train.batch_sentences=10", "train.threads=1"]
    small += ["train.encoder_rate=3e-3", "train.decoder_rate=8e-3", "train.device=cpu", "decoders.dep.arc_size=16"]
    tasks = "tasks=pos,sentence_type,prominence,topics"
    settings = [f"data.path={folder / 'c'}", tasks, *(f"decoders.{one}" for one in types), *small]
    mtlprune("train", "minilm-ewt5", *settings, "--out", folder / "run").done()
    return folder / "run"


def test_a_run_learns_and_predicts_them(mtlprune: Callable, run: Path, tmp_path: Path) -> None:
    answer = mtlprune("evaluate", run, "--split", "test").done()
    scores = RunFolder(run).read_scores("test")
    assert scores["sentence_type"].keys() == {"accuracy", "macro_f1"} and scores["sentence_type"]["accuracy"] > 66
    assert scores["prominence"].keys() == {"pearson", "spearman"} and scores["prominence"]["pearson"] > 50
    assert scores["topics"].keys() == {"precision", "recall", "f1"}
    assert "Pearson's r" in answer.out
    columns = in_columns([RunFolder(run)], "test")
    [setting] = read_settings(columns, [0], ["prominence"], 20, 0, lambda: None)
    assert setting.scores[0].observed == pytest.approx(scores["prominence"]["pearson"], abs=1e-6)
    assert "PROMINENCE" in mtlprune("table", run, "--resamples", "20").done().out
    (tmp_path / "in.conllu").write_text(conllu(4))
    mtlprune("predict", run, tmp_path / "in.conllu", "--out", tmp_path / "out.conllu").done()
    lines = (tmp_path / "out.conllu").read_text().split("\n")
    counts = [sum(f"# {layer} = " in line for line in lines) for layer in ("sentence_type", "prominence")]
    assert counts == [4, 4]
    table = mtlprune("predict", run, tmp_path / "in.conllu", "--format", "tsv").done()
    header, *rows = [row.split("\t") for row in table.out.strip("\n").split("\n")]
    assert header == ["id", "text", "prominence", "sentence_type", "topics"] and "left out: pos" in table.err
    assert len(rows) == 4 and {len(row) for row in rows} == {5}
    first = json.loads(mtlprune("predict", run, tmp_path / "in.conllu", "--format", "jsonl").done().out.split("\n")[0])
    assert first["sentence_type"]["kind"] == "label" and isinstance(first["prominence"]["value"], float)


def test_first_is_refused_where_there_is_no_such_token(mtlprune: Callable, run: Path, tiny_encoder: Callable) -> None:
    corpus = RunFolder(run).corpus_path()
    settings = f"data.path={corpus}", "tasks=sentence_type", f"encoder.name={tiny_encoder('llama')}"
    settings += "decoders.sentence_type.type=label", "decoders.sentence_type.pooling=first", "train.device=cpu"
    answer = mtlprune("train", "minilm-ewt5", *settings, "--out", run.parent / "refused")
    answer.refuses("decoders.sentence_type.pooling: expected mean")
    assert not (run.parent / "refused").exists()


SIDES = ("the old dog", "two cats", "she saw it", "he walked"), ("a river", "the park", "the old dog", "two new dogs")


def test_a_pair_task_is_trained_and_exported(mtlprune: Callable, tiny_encoder: Callable, tmp_path: Path) -> None:
    """60 pairs and 3 labels from a folder of a data set; the export gives the run's labels in plain transformers."""
    datasets, hf = pytest.importorskip("datasets"), pytest.importorskip("transformers")
    names = ["same", "other", "short"]
    pairs = [(first, second) for first in SIDES[0] for second in SIDES[1]]
    rows = [(*pairs[k % 16], 0 if k % 16 == 2 else 1 if len(pairs[k % 16][1]) > 8 else 2) for k in range(60)]
    table = dict(zip(("premise", "hypothesis", "label"), map(list, zip(*rows, strict=True)), strict=True))
    text, label = datasets.Value("string"), datasets.ClassLabel(names=names)
    features = datasets.Features({"premise": text, "hypothesis": text, "label": label})
    datasets.Dataset.from_dict(table, features=features).save_to_disk(tmp_path / "d")
    columns = "premise=words,hypothesis=words,label=entails"
    mtlprune("data", "build", tmp_path / "d", "--columns", columns, "--out", tmp_path / "c").done()
    settings = [f"data.path={tmp_path / 'c'}", "tasks=entails", "decoders.entails.type=label"]
    settings += [f"encoder.name={tiny_encoder('bert')}", "train.batch_sentences=12", "train.threads=1"]
    settings += ["train.encoder_rate=3e-3", "train.decoder_rate=8e-3", "train.device=cpu", "train.epochs=20"]
    mean = mtlprune("train", "minilm-ewt5", *settings, "train.epochs=1", "--out", tmp_path / "mean").done()
    assert "entails" in mean.out + mean.err
    again = mtlprune("export", tmp_path / "mean", "--head", "entails", "--out", tmp_path / "e")
    again.refuses("expected a run with decoders.entails.pooling: first")
    mtlprune("train", "minilm-ewt5", *settings, "decoders.entails.pooling=first", "--out", tmp_path / "run").done()
    mtlprune("evaluate", tmp_path / "run", "--split", "test").done()
    answer = mtlprune("export", tmp_path / "run", "--head", "entails", "--out", tmp_path / "e").done()
    assert "checked" in answer.out and "pipeline_tag: text-classification" in (tmp_path / "e/README.md").read_text()
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "e").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "e")
    for sentence in RunFolder(tmp_path / "run").read_predictions("test"):
        texts = " ".join(sentence.words[: sentence.split]), " ".join(sentence.words[sentence.split :])
        scores = model(**tokenizer(*texts, return_tensors="pt")).logits[0]
        assert model.config.id2label[int(scores.argmax())] == sentence.get("entails")


def test_numbers_and_label_sets_are_exported(mtlprune: Callable, run: Path, tmp_path: Path) -> None:
    settings = [f"data.path={RunFolder(run).corpus_path()}", "tasks=prominence,topics", "train.epochs=1"]
    for task, kind in (("prominence", "number"), ("topics", "labels")):
        settings += [f"decoders.{task}.type={kind}", f"decoders.{task}.pooling=first"]
    name = RunFolder(run).read_config()["encoder"]["name"]
    settings += [f"encoder.name={name}", "train.device=cpu"]
    mtlprune("train", "minilm-ewt5", *settings, "--out", tmp_path / "r").done()
    for task in ("prominence", "topics"):
        mtlprune("export", tmp_path / "r", "--head", task, "--out", tmp_path / task).done()
        assert "score_text" in (tmp_path / task / "README.md").read_text()
