"""The data scripts, run against a server on this machine that serves the corpora under their pinned addresses, and how
they download: what is whole and verified arrives, anything else leaves nothing behind."""

import hashlib
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conll2012_files import small_corpus
from served import Server, script, serving, tar
from shared_corpora import CORPORA, EWT, needs

from mtlprune.corpora import CorpusError
from mtlprune.corpora.store import load_corpus
from mtlprune.io.files import file_sha256
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

downloads = script("pinned_downloads")
fetch, extract_tree = downloads.fetch, downloads.extract_tree
git_blob_id, git_tree_id = downloads.git_blob_id, downloads.git_tree_id

BODY = b"one line\nand another\n" * 5000
SHA256 = hashlib.sha256(BODY).hexdigest()
BLOB = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with serving() as made:
        made.addresses |= {
            "/good": lambda: BODY,
            "/moved": lambda: (302, {"Location": "/good", "Content-Length": 0}, b""),
            "/chunked": lambda: (200, {"Transfer-Encoding": "chunked"}, chunked),
            "/silent": lambda: time.sleep(2),
            "/half": lambda: BODY,
        }
        made.cut.add("/half")
        yield made


@pytest.mark.parametrize("address", ["good", "moved", "chunked"])
@pytest.mark.parametrize(("sha256", "blob"), [(SHA256, None), (SHA256.upper(), BLOB), (None, BLOB), (None, None)])
def test_whole_files_arrive(server: Server, tmp_path: Path, address: str, sha256: str | None, blob: str | None) -> None:
    out = tmp_path / "deep" / "er" / "file.txt"
    assert fetch(f"{server.url}/{address}", out, sha256, git_blob=blob) == out
    assert out.read_bytes() == BODY
    assert list(out.parent.iterdir()) == [out]


def test_a_verified_file_is_not_fetched_again_and_a_wrong_one_is_replaced(server: Server, tmp_path: Path) -> None:
    out, before = tmp_path / "file", len(server.asked)
    for asked, content in ((1, None), (1, BODY), (2, b"something else")):
        if content:
            out.write_bytes(content)
        fetch(f"{server.url}/good", out, SHA256)
        assert len(server.asked) == before + asked and out.read_bytes() == BODY


@pytest.mark.parametrize(
    ("address", "sha256", "blob", "what"),
    [
        ("/good", "0" * 64, None, f"expected sha256 {'0' * 64}, found {SHA256}"),
        ("/good", SHA256, "0" * 40, f"expected git blob {'0' * 40}, found {BLOB}"),
        ("/none", SHA256, None, "404"),
        ("/silent", None, None, "timed out"),
        ("/half", None, None, "cut off after"),
        ("http://127.0.0.1:9/file", SHA256, None, "could not be reached"),
        (Path(__file__).as_uri(), None, None, "http"),
    ],
)
@pytest.mark.parametrize("existing", [None, b"older"])
def test_failures_are_told_and_leave_nothing(server, tmp_path, address, sha256, blob, what, existing):
    out = tmp_path / "file"
    if existing:
        out.write_bytes(existing)
    url = server.url + address if address.startswith("/") else address
    with pytest.raises(CorpusError) as caught:
        fetch(url, out, sha256, git_blob=blob, timeout=0.3)
    assert what in str(caught.value) and url in str(caught.value)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([existing] if existing else [])


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
def test_git_ids_are_those_of_git(tmp_path: Path) -> None:
    # "a" sorts before "a.txt" as a file but, as a folder ("a/"), after it
    for name in ("a/one", "a.txt", "a0", "deep/er/two", "über"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 3)
    (tmp_path / "tree" / "empty" / "folder").mkdir(parents=True)

    def git(*arguments: str) -> str:
        command = ["git", f"--git-dir={tmp_path}/git", f"--work-tree={tmp_path}/tree", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path / "tree").stdout.strip()

    git("init", "-q")
    git("add", "-A")
    assert git_tree_id(tmp_path / "tree") == git("write-tree")
    assert git_blob_id(tmp_path / "tree" / "a0") == git("hash-object", "a0")
    assert file_sha256(tmp_path / "tree" / "a0") == hashlib.sha256(b"a0a0a0").hexdigest()


GOOD = {"top/part/a.txt": b"a", "top/part/in/b.txt": b"b", "top/part/c.bin": b"c", "top/other/d.txt": b"d"}


def archive(folder: Path, members: Mapping[str, bytes | tuple[bytes, str]]) -> Path:
    (folder / "few.tar.gz").write_bytes(tar(members))
    return folder / "few.tar.gz"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_of_a_folder_of_an_archive_are_those_expected(tmp_path: Path) -> None:
    path, out = archive(tmp_path, GOOD | {"../out.txt": b"not wanted"}), tmp_path / "out"
    wanted = {"a.txt": b"a", "in/b.txt": b"b"}
    for name, content in wanted.items():
        (tmp_path / "wanted" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "wanted" / name).write_bytes(content)
    tree = git_tree_id(tmp_path / "wanted")
    there = contents(tmp_path)
    for only, suffix, mark, said in [
        ("top/part", ".txt", "0" * 40, f"expected the files of git tree {'0' * 40}, found {tree}"),
        ("top/par", ".txt", tree, r"no file top/par/\.\.\.\.txt"),
    ]:
        with pytest.raises(CorpusError, match=said):
            extract_tree(path, out, only, suffix, mark)
        assert contents(tmp_path) == there
    extract_tree(path, out, "top/part", ".txt", tree)
    assert contents(out) == wanted and {entry.name for entry in tmp_path.iterdir()} == {path.name, "out", "wanted"}


@pytest.mark.parametrize(
    "bad",
    [
        {"top/part/../../../out.txt": b"x"},
        {"top/part/link": (tarfile.SYMTYPE, "/etc/passwd")},
        {"top/part/link": (tarfile.SYMTYPE, "a.txt")},
        {"top/part/null": (tarfile.CHRTYPE, "")},
        {"top/part/pipe": (tarfile.FIFOTYPE, "")},
        {"top/part/link": (tarfile.SYMTYPE, "../../../outside"), "top/part/link/x": b"x"},  # a file through a link
    ],
    ids=repr,
)
def test_archives_that_escape_are_refused_whole(tmp_path: Path, bad: dict[str, bytes | tuple[bytes, str]]) -> None:
    inner, outside = tmp_path / "inner", tmp_path / "outside"
    inner.mkdir()
    outside.mkdir()
    path = archive(inner, GOOD | bad)
    with pytest.raises(CorpusError, match="refused"):
        extract_tree(path, inner / "out", "top/part", "", "")
    assert sorted(tmp_path.rglob("*")) == [inner, path, outside]


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_damaged_archives_are_told(tmp_path: Path, keep: float) -> None:
    path = archive(tmp_path, GOOD | {"top/part/noise": hashlib.shake_256(b"").digest(100_000)})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(CorpusError, match=r"few\.tar\.gz: not a whole tar archive"):
        extract_tree(path, tmp_path / "out", "top/part", "", "")
    assert list(tmp_path.iterdir()) == [path]


ewt5 = script("ewt5")
COMMITTED = Path(__file__).parents[1] / "results/ewt5-minilm/records"


def release_archive() -> bytes:
    """PropBank's skeletons as the release's archive holds them, among files that are not wanted."""
    members = {f"{ewt5.PROPBANK}/README.md": b"...", f"{ewt5.PROPBANK}/data/google/ewt/answers/00/x.xml.prop": b"..."}
    with tarfile.open(EWT / "propbank" / "ewt_gold_skel.tar.gz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content:
                members[f"{ewt5.PROPBANK}/{member.name}"] = content.read()
    return tar(members)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A mirror of every pinned address, with the early version of UNER's train file (the release's is not at hand), and
    the folder of the corpus that was built from it once."""
    folder = tmp_path_factory.mktemp("built")
    with serving() as server:
        for pin in (*ewt5.FILES, ewt5.UNER_TRAIN["early"]):
            path = EWT / pin.name
            server.addresses[f"/{pin.repository}/{path.name}"] = path.read_bytes
        server.addresses[f"/{ewt5.PROPBANK_ARCHIVE}"] = release_archive
        assert run(server, folder, "--uner-train", "early") == 0
        yield server, folder


def run(mirror: Server, folder: Path, *more: str) -> int:
    bases = ["--raw-base-url", mirror.url, "--archive-base-url", mirror.url + "/"]
    places = ["--out", str(folder / "ewt5"), "--downloads", str(folder / "downloads")]
    return ewt5.main([*places, *bases, *more])


@needs("ewt")
def test_ewt5_from_a_mirror(built: tuple[Server, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """To the byte the corpus of the committed runs."""
    mirror, folder = built
    corpus = load_corpus(folder / "ewt5")
    committed = RunFolder(read_study(COMMITTED).paths("none-pos-1")[0]).read_manifest()["data"]
    assert corpus.fingerprint == committed["fingerprint"]
    assert [len(corpus[split]) for split in ("train", "dev", "test")] == [12_544, 2_001, 2_077]
    assert [corpus.info["splits"][split]["all_layers"] for split in corpus.splits] == [12_544, 1_973, 2_062]
    assert corpus.info["licence"] == "CC BY-SA 4.0"
    assert set(corpus.info["sources"]) >= {"ud/en_ewt-ud-train.conllu", "propbank/data/google/ewt"}
    downloads = folder / "downloads"
    there = [path.relative_to(downloads).as_posix() for path in downloads.rglob("*") if path.is_file()]
    assert sum(name.startswith("propbank/data/google/ewt/") for name in there) == 1145 == len(there) - 6
    # what is there is neither built over nor fetched again
    mirror.asked.clear()
    assert run(mirror, folder, "--uner-train", "early") == 2
    assert "--overwrite" in capsys.readouterr().err
    ewt5.download(downloads, "early", mirror.url, mirror.url)
    assert mirror.asked == []
    # nor is what somebody changed taken for the pinned files
    next((downloads / "propbank").rglob("*.gold_skel")).write_text("changed")
    with pytest.raises(ewt5.CorpusError, match=r"expected git tree 94b8c0f.*remove the folder"):
        ewt5.download(downloads, "early", mirror.url, mirror.url)


@needs("masc")
def test_masc_from_a_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the archives hold beside our documents is not taken, and nothing is fetched twice."""
    masc = script("masc")
    with serving() as mirror:
        for address, inside, name in (
            (f"/oanc/masc/tar.gz/{masc.MASC_COMMIT}", f"masc-{masc.MASC_COMMIT}/1", "masc_1"),
            (f"/{ewt5.PROPBANK_ARCHIVE}", f"{ewt5.PROPBANK}/data/oanc", "masc_gold_skel"),
        ):
            with tarfile.open(CORPORA / "masc" / f"{name}.tar.xz") as packed:
                streams = {member.name.removeprefix("./"): packed.extractfile(member) for member in packed}
                files = {f"{inside}/{path}": stream.read() for path, stream in streams.items() if stream}
            content = tar(files | {f"{inside}/txtfiles/wsj_1.txt": b"not wanted"})
            mirror.addresses[address] = lambda content=content: content
        options = ["--out", str(tmp_path / "masc"), "--downloads", str(tmp_path / "sources")]
        for _ in range(2):
            assert masc.main([*options, "--archive-base-url", mirror.url, "--overwrite"]) == 0
        assert len(mirror.asked) == 2
    assert "train 4265, dev 402, test 480 sentences" in capsys.readouterr().out
    assert not list((tmp_path / "sources").rglob("wsj*"))
    next((tmp_path / "sources" / "txtfiles").iterdir()).write_text("changed")
    assert masc.main([*options, "--overwrite"]) == 2 and "expected git tree" in capsys.readouterr().err


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
