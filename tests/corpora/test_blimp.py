"""BLiMP: the reader, and the script that downloads, verifies and lays out."""

import json
from pathlib import Path

import pytest
from served import script
from shared_corpora import CORPORA, needs

from mtlprune.corpora import CorpusError
from mtlprune.corpora.blimp import MinimalPair, read_blimp

blimp = script("blimp")


def line(number: int, name: str = "p", **more: object) -> str:
    entry = {"sentence_good": f"good {number}", "sentence_bad": f"bad {number}", "UID": name}
    return json.dumps(entry | {"linguistics_term": "binding", "field": "syntax"} | more) + "\n"


def write(folder: Path, name: str, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize("inner", ["", "data"])
def test_paradigms_come_by_file_name_and_pairs_in_order(tmp_path: Path, inner: str) -> None:
    write(tmp_path / inner, "b", line(1, "q", linguistics_term="s-selection"))
    write(tmp_path / inner, "a", line(1), line(2), line(3))
    found = read_blimp(tmp_path)
    about = [(p.name, p.phenomenon, len(p.pairs)) for p in found]
    assert about == [("p", "binding", 3), ("q", "argument_structure", 1)]
    assert found[0].pairs[1] == MinimalPair("good 2", "bad 2")
    assert [p.pairs for p in read_blimp(tmp_path, 2)] == [found[0].pairs[:2], found[1].pairs]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, r"found none; make the folder with python data_scripts/blimp\.py"),
        ({"a": ""}, "expected minimal pairs, found none"),
        ({"a": "no json\n"}, "a.jsonl, line 1: not readable as JSON"),
        ({"a": "9" * 5000}, "a.jsonl, line 1: unexpected content: .*digits"),
        ({"a": line(1) + "[]\n"}, "line 2: expected a pair with sentence_good"),
        ({"a": line(1, sentence_bad=" ")}, "line 1: expected a pair with sentence_bad"),
        ({"a": line(1) + line(2, "q")}, "line 2: expected the paradigm p as before, found q"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_line(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    with pytest.raises(CorpusError, match=words):
        read_blimp(tmp_path)


@needs("blimp")
def test_the_real_archive_is_laid_out_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "blimp"
    arguments = ["--out", str(out), "--sources", str(CORPORA / "blimp/blimp_data.tar.gz")]
    assert blimp.main(arguments) == 0
    assert "67 paradigms, 67,000 pairs" in capsys.readouterr().out
    found = read_blimp(out)
    assert {len(p.pairs) for p in found} == {1000} and len({p.phenomenon for p in found}) == 12
    assert blimp.main(arguments) == 2
    assert "--overwrite replaces it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [out]
