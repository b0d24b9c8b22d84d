"""The data scripts, run against a server on this machine that serves the corpus files under their pinned addresses."""

import functools
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conll2012_files import small_corpus
from random_sentences import spans
from served import Server, script, serving, tar
from shared_corpora import CORPORA, EWT, needs_ewt

from mtlprune.corpora.store import load_corpus

ewt5 = script("ewt5")
PROPBANK = f"/{ewt5.PROPBANK_ARCHIVE}"
DEV = f"/{ewt5.UNER}/en_ewt-ud-dev.iob2"
TRAIN = f"/{ewt5.UNER}/en_ewt-ud-train.iob2"


@functools.cache
def release_archive() -> bytes:
    """PropBank's skeletons as the release's archive holds them, among files that are not wanted."""
    members = {f"{ewt5.PROPBANK}/README.md": b"...", f"{ewt5.PROPBANK}/data/google/ewt/answers/00/x.xml.prop": b"..."}
    with tarfile.open(EWT / "propbank" / "ewt_gold_skel.tar.gz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content:
                members[f"{ewt5.PROPBANK}/{member.name}"] = content.read()
    return tar(members)


def filled(server: Server) -> Server:
    """Every pinned address, with the early version of UNER's train file (the release's is not at hand)."""
    for pin in (*ewt5.FILES, ewt5.UNER_TRAIN["early"]):
        path = EWT / pin.name
        server.addresses[f"/{pin.repository}/{path.name}"] = path.read_bytes
    server.addresses[PROPBANK] = release_archive
    return server


@pytest.fixture
def mirror() -> Iterator[Server]:
    with serving() as server:
        yield filled(server)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """The mirror, and the folder of the corpus that was built from it once."""
    folder = tmp_path_factory.mktemp("built")
    with serving() as server:
        assert run(filled(server), folder, "--uner-train", "early") == 0
        yield server, folder


def run(mirror: Server, folder: Path, *more: str) -> int:
    bases = ["--raw-base-url", mirror.url, "--archive-base-url", mirror.url + "/"]
    places = ["--out", str(folder / "ewt5"), "--downloads", str(folder / "downloads")]
    return ewt5.main([*places, *bases, *more])


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@needs_ewt
def test_ewt5_from_a_mirror(built: tuple[Server, Path], capsys: pytest.CaptureFixture[str]) -> None:
    mirror, folder = built
    corpus = load_corpus(folder / "ewt5")
    counts = [corpus.info["splits"][split] for split in ("train", "dev", "test")]
    expected = {
        "sentences": [12_544, 2_001, 2_077], "words": [204_577, 25_147, 25_094], "all_layers": [12_544, 1_973, 2_062],
        "predicates": [40_486, 4_977, 4_799], "arguments": [81_396, 9_580, 9_329],
    }  # fmt: skip
    assert {name: [one[name] for one in counts] for name in expected} == expected
    entities = [tuple(one["entities"][kind] for kind in ("PER", "LOC", "ORG")) for one in counts]
    assert entities == [(2_873, 2_698, 1_434), (343, 399, 224), (449, 317, 322)]
    assert corpus.info["licence"] == "CC BY-SA 4.0"
    assert set(corpus.info["sources"]) >= {"ud/en_ewt-ud-train.conllu", "propbank/data/google/ewt"}
    downloads = folder / "downloads"
    assert len([name for name in files(downloads) if name.startswith("propbank/data/google/ewt/")]) == 1145
    assert {name for name in files(downloads) if not name.startswith("propbank/")} == {
        f"{source}/en_ewt-ud-{split}.{ending}"
        for source, ending in (("ud", "conllu"), ("uner", "iob2"))
        for split in ("train", "dev", "test")
    }
    # what is there is neither built over nor fetched again
    mirror.asked.clear()
    assert run(mirror, folder, "--uner-train", "early") == 2
    assert "found one; name another, or replace it (--overwrite)" in capsys.readouterr().err
    ewt5.download(downloads, "early", mirror.url, mirror.url)
    assert mirror.asked == []
    # nor is what somebody changed taken for the pinned files
    next((downloads / "propbank").rglob("*.gold_skel")).write_text("changed")
    with pytest.raises(ewt5.CorpusError, match=r"expected git tree 94b8c0f.*remove the folder"):
        ewt5.download(downloads, "early", mirror.url, mirror.url)


@needs_ewt
def test_real_sentences_that_are_not_one_to_one(built: tuple[Server, Path]) -> None:
    corpus = load_corpus(built[1] / "ewt5")
    # one skeleton sentence over two of UD
    first, second = (corpus["train"].find(f"reviews-275919-{number}") for number in ("0010", "0011"))
    assert [(len(s), [p.lemma for p in s.srl]) for s in (first, second)] == [
        (13, ["bill", "take", "take", "train"]),
        (8, ["get", "answer"]),
    ]
    assert second.con[:3] == spans((0, 8, "S"), (0, 7, "SBARQ"), (0, 2, "WHADVP"))
    # the skeleton's it + 's is the word it's, and its noun phrases follow
    its = corpus["train"].find("email-enronsent09_01-0033")
    assert its.words[18:21] == ("since", "it's", "creation")
    assert its.con[-3:] == spans((18, 21, "PP"), (19, 21, "NP"), (19, 20, "NP"))
    # the skeleton's one token at the beginning is two words, and an argument
    moving = corpus["train"].find("answers-20111108091938AAmE8Tv_ans-0003")
    assert moving.words[:3] == ("I", "m", "moving")
    assert moving.srl[0].arguments[:2] == spans((0, 2, "ARG1"), (2, 3, "V"))
    backslash = corpus["dev"].find("answers-20110909115731AAl3uzs_ans-0004")
    assert (backslash.words, backslash.con) == (("\\\\", "//"), spans((0, 2, "X")))


@needs_ewt
def test_the_early_file_is_not_taken_for_the_release(mirror, tmp_path, capsys):
    mirror.addresses[TRAIN] = (EWT / "uner/en_ewt-ud-train.iob2").read_bytes
    assert run(mirror, tmp_path) == 2
    told = capsys.readouterr().err
    assert "expected git blob b2423d72f37f2226e56cbe750da76f820e6c36a9" in told
    assert "found 236914d90bc061dfaae0abf322ab36da483fd70a" in told
    assert "uner/en_ewt-ud-train.iob2" not in files(tmp_path / "downloads")
    assert not (tmp_path / "ewt5").exists()


ESCAPING = tar({f"{ewt5.PROPBANK}/data/google/ewt/a/00/b.xml.gold_skel": b"x", "../../escaped": b"x"})


@needs_ewt
@pytest.mark.parametrize(
    ("address", "change", "what"),
    [
        (DEV, lambda content: content[:-2] + b"!\n", "expected sha256 0cafd881"),
        (DEV, None, "404"),
        (PROPBANK, "cut", "cut off after"),
        (PROPBANK, lambda _: ESCAPING, "refused: the member '../../escaped' would lie outside its folder; nothing was"),
    ],
    ids=["changed", "missing", "archive cut", "archive escapes"],
)
def test_what_is_not_whole_or_not_pinned_is_refused(mirror, tmp_path, capsys, address, change, what):
    before = mirror.addresses[address]
    if change is None:
        del mirror.addresses[address]
    elif change == "cut":
        mirror.cut.add(address)
    else:
        mirror.addresses[address] = lambda: change(before())
    folder = tmp_path / "inner"
    folder.mkdir()
    assert run(mirror, folder, "--uner-train", "early") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("ewt5: ") and what in told
    assert not (folder / "ewt5").exists()
    assert list(tmp_path.iterdir()) == [folder]  # nothing beside
    left = files(folder)
    assert not any("propbank" in name or name.endswith((".part", ".tar.gz")) for name in left)
    assert address != DEV or "downloads/uner/en_ewt-ud-dev.iob2" not in left


@needs_ewt
def test_pins_are_those_of_the_corpora() -> None:
    listed = dict(reversed(line.split()) for line in (CORPORA / "SHA256SUMS").read_text().splitlines() if line.strip())
    for pin in (*ewt5.FILES, ewt5.UNER_TRAIN["early"]):
        assert listed[f"ewt/{pin.name}"] == pin.sha256


def test_ontonotes5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = script("ontonotes5").main
    files, dep = small_corpus(tmp_path, documents=1)
    assert main([str(files), "--out", str(tmp_path / "ontonotes5"), "--dep", str(dep)]) == 0
    assert "train 2, dev 2, test 2 sentences" in capsys.readouterr().out
    corpus = load_corpus(tmp_path / "ontonotes5")
    assert corpus["dev"][0].layers() == ("pos", "ner", "dep", "con", "srl")
    assert set(corpus.info["sources"]) == {"sources", "dep"}
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "other")]) == 2
    assert "ontonotes5: " in capsys.readouterr().err
