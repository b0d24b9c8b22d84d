"""mtlprune check: says what train would meet, and fails where train would."""

from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.runs import RunFolder
from mtlprune.sentence import Predicate, Sentence, Span


def row(out: str, title: str) -> list[str]:
    """The cells behind a title of the printed table."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    [found] = [cells[1:] for cells in rows if cells[:1] == [title]]
    return found


def test_it_says_what_training_then_does(mtlprune, lab, trained):
    answer = mtlprune("check", lab.config)
    assert answer.code == 0, answer.err
    assert answer.out.endswith("ready\n")
    assert row(answer.out, "sentences with srl") == ["24", "8"]
    corpus = load_corpus(lab.corpus)
    assert row(answer.out, "words")[:1] == [f"{sum(map(len, corpus['train'])):,}"]
    assert row(answer.out, "longest sentence (words)")[0] == str(max(map(len, corpus["train"])))
    steps = RunFolder(trained).read_json("manifest.json")["finished"]["step"]
    assert f"updates: 3 an epoch, {steps} in 2 epochs (joint mixing)" in answer.out
    parameters = RunFolder(trained).read_json("manifest.json")["parameters"]
    assert f"together {sum(parameters.values()):,}" in answer.out
    assert "precision fp32 on cpu, threads: 1" in answer.out


def test_it_warns(mtlprune, lab, tmp_path):
    words = tuple(f"w{place}" for place in range(70))
    wide = (Predicate(0, None, (Span(1, 50, "ARG1"),)),)
    train = [Sentence("a", words, ("NN",) * 70, srl=wide), Sentence("b", ("\u4eba", "runs"), ("NN", "VB"), srl=())]
    dev = [Sentence("c", ("Ann", "!"), ("NNP", "."), srl=())]
    save_corpus({"train": train, "dev": dev}, tmp_path / "c", name="small", licence="none", sources={})
    answer = mtlprune("check", lab.config, f"data.path={tmp_path / 'c'}", "tasks=pos,srl")
    assert answer.code == 0, answer.err
    assert "warning: pos: 2 labels of dev are not in train and can never be predicted: ., NNP" in answer.out
    assert "warning: srl: 1 arguments of train are wider than decoders.srl.max_width = 30" in answer.out
    assert "warning: train: 1.4% of the words become unknown tokens" in answer.out
    assert row(answer.out, "sentences longer than the positions") == ["1", "0"]
    assert int(row(answer.out, "windows of the longest")[0]) > 1
    assert row(answer.out, "words that become unknown tokens") == ["1", "0"]
