"""docs/guides/your_data.md: its commands run in order, on small files under the names that stand there."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from random_sentences import spans

from mtlprune.corpora.store import load_corpus
from mtlprune.runs.folder import RunFolder

PAGE = (Path(__file__).parents[1] / "docs/guides/your_data.md").read_text(encoding="utf-8")
TUTORIALS = {title: text for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)}
Call = Callable[..., Any]
IN_PLACE = "eng.testb", "predicted.txt"

GERMAN = """\
Der/DET/ART/2/det Hund/NOUN/NN/3/nsubj sieht/VERB/VVFIN/0/root die/DET/ART/5/det Katze/NOUN/NN/3/obj ./PUNCT/$./3/punct
Eine/DET/ART/2/det Frau/NOUN/NN/3/nsubj schläft/VERB/VVFIN/0/root ./PUNCT/$./3/punct
Niemand/PRON/PIS/2/nsubj kommt/VERB/VVFIN/0/root"""
ENGLISH = """\
Smith/NNP/I-NP/I-PER visited/VBD/I-VP/O Paris/NNP/I-NP/I-LOC London/NNP/B-NP/B-LOC ././O/O
Nobody/NN/I-NP/O works/VBZ/I-VP/O for/IN/I-PP/O Acme/NNP/I-NP/I-ORG Press/NNP/I-NP/I-ORG ././O/O
The/DT/I-NP/O dog/NN/I-NP/O saw/VBD/I-VP/O Ann/NNP/I-NP/I-PER Lee/NNP/I-NP/I-PER"""


def conllu(times: int) -> str:
    form, text = "{}\t{}\t_\t{}\t{}\t_\t{}\t{}\t_\t_\n", ""
    for number, sentence in enumerate(GERMAN.splitlines() * times):
        rows = (form.format(place, *cells.split("/")) for place, cells in enumerate(sentence.split(), 1))
        text += f"# sent_id = s{number}\n{''.join(rows)}\n"
    return text


def conll2003(times: int) -> str:
    sentences = ENGLISH.replace("\n", "\n\n").replace(" ", "\n").replace("/", " ") + "\n\n"
    return "-DOCSTART- -X- O O\n\n" + sentences * times


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yours")
    for split, times in (("train", 3), ("dev", 1)):
        (folder / f"de_gsd-ud-{split}.conllu").write_text(conllu(times), encoding="utf-8")
    for name, times in (("eng.train", 4), ("eng.testa", 1), ("eng.testb", 1)):
        (folder / name).write_text(conll2003(times), encoding="utf-8")
    kinds = {"tokens": datasets.Value("string"), "ner_tags": datasets.ClassLabel(names=["O", "B-PER", "I-PER"])}
    features = datasets.Features({name: datasets.List(kind) for name, kind in kinds.items()})
    rows = {"tokens": [["Ann", "Lee", "sings"], ["Nobody", "sees", "Karl"]] * 4, "ner_tags": [[1, 2, 0], [0, 0, 1]] * 4}
    splits = {split: datasets.Dataset.from_dict(rows, features) for split in ("train", "validation")}
    datasets.DatasetDict(splits).save_to_disk(folder / "names-hf")
    return folder


@pytest.fixture
def follow(
    place: Path, mtlprune: Call, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Run the commands of a section, in the place of the files; what they said."""
    monkeypatch.chdir(place)
    small = f"encoder.name={tiny_encoder('bert')}", "train.epochs=1", "train.device=cpu", "train.threads=1"

    def commands(title: str) -> str:
        said = []
        for line in re.findall(r"^    mtlprune (.*)$", TUTORIALS[title], re.M):
            answer = mtlprune(*shlex.split(line), *(small if line.startswith("train") else [])).done()
            said.append(answer.out + answer.err)
        return "\n".join(said)

    return commands


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines() if "\t" in line]


def test_a_treebank_of_another_language(place: Path, mtlprune: Call, follow: Callable[[str], str]) -> None:
    said = follow("A treebank of another language: POS and DEP")
    assert "(train 9, dev 3 sentences)" in said and "layers: pos, dep, xpos\n" in said and "VVFIN" in said
    first = load_corpus(place / "data/de")["dev"][0]
    assert first.pos == ("DET", "NOUN", "VERB", "DET", "NOUN", "PUNCT") and first.get("xpos")[-1] == "$."
    [export] = re.findall(r"`mtlprune (data export data/de .*?)`", PAGE)
    mtlprune(*export.split()).done()
    assert (place / "dev.conllu").read_text("utf-8") == conllu(1)
    follow("Predictions")
    predicted = rows((place / "predicted.conllu").read_text("utf-8"))
    tags = set(RunFolder(place / "runs/de").read_vocabularies()["pos"]["tags"])
    assert {row[3] for row in predicted} <= tags and [r[4] for r in predicted] == [r[4] for r in rows(conllu(1))]


def test_names_then_both_then_layers_of_ones_own(place: Path, mtlprune: Call, follow: Callable[[str], str]) -> None:
    [build] = re.findall(r"^    mtlprune (data build --train .*)$", PAGE, re.M)
    mtlprune(*build.split(), "--overwrite").done()
    assert "eng.train: column ner is written in IOB1 and was converted" in follow("A CoNLL-2003-like file: NER")
    names = load_corpus(place / "data/names")["dev"]
    assert names[0].ner == spans((0, 1, "PER"), (2, 3, "LOC"), (3, 4, "LOC"))
    follow("Predictions in columns")
    words = [[line.split(" ")[0] for line in (place / name).read_text("utf-8").splitlines()] for name in IN_PLACE]
    assert words[0] == words[1]
    said = follow("Two corpora in one run")
    assert "data/names: 15 sentences appended, 0 joined" in said and "NER" in said
    assert "the layer pos has other labels in data/de" in said and "tasks=ner,dep --out runs/both" in said
    both = load_corpus(place / "data/both").info["splits"]["train"]["known"]
    assert (both["dep"], both["ner"], both["pos"]) == (9, 12, 21)
    said = follow("Layers under names of your own")
    assert "tasks=pos,chunk decoders.chunk.type=ner --out" in said
    assert {"pos", "chunk"} <= set(json.loads((place / "runs/chunks/best.json").read_text()))


def test_a_dataset(place: Path, follow: Callable[[str], str]) -> None:
    assert "read tokens as word, ner_tags as ner" in follow("A dataset in Hugging Face form")
    corpus = load_corpus(place / "data/hf")
    assert corpus.splits == ("train", "dev") and corpus["dev"][0].ner == ((0, 2, "PER"),)
