"""Downloads and archives: what is whole and verified arrives, anything else leaves nothing behind."""

import hashlib
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Server, script, serving, tar

from mtlprune.corpora import CorpusError
from mtlprune.files import file_sha256

downloads = script("pinned_downloads")
fetch, extract_tar = downloads.fetch, downloads.extract_tar
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


def archive(folder: Path, members: dict[str, bytes | tuple[bytes, str]]) -> Path:
    (folder / "few.tar.gz").write_bytes(tar(members))
    return folder / "few.tar.gz"


GOOD = {"top/part/a.txt": b"a", "top/part/in/b.txt": b"b", "top/part/c.bin": b"c", "top/other/d.txt": b"d"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_members_below_a_prefix(tmp_path: Path) -> None:
    path = archive(tmp_path, GOOD | {"top/link": (tarfile.SYMTYPE, "part/a.txt")})
    assert contents(extract_tar(path, tmp_path / "all")) == GOOD | {"top/link": b"a"}
    below = {"a.txt": b"a", "in/b.txt": b"b", "c.bin": b"c"}
    assert contents(extract_tar(path, tmp_path / "part", only="top/part")) == below
    (tmp_path / "text").mkdir()  # an empty folder may be there
    assert set(contents(extract_tar(path, tmp_path / "text", only="top/part/", suffix=".txt"))) == {"a.txt", "in/b.txt"}
    with pytest.raises(CorpusError, match="already there"):
        extract_tar(path, tmp_path / "text")
    with pytest.raises(CorpusError, match="no file top/par/"):
        extract_tar(path, tmp_path / "none", only="top/par")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["all", "few.tar.gz", "part", "text"]


@pytest.mark.parametrize(
    "bad",
    [
        {"../out.txt": b"x"},
        {"top/part/../../../out.txt": b"x"},
        {"/tmp/mtlprune-out.txt": b"x"},
        {"C:\\out.txt": b"x"},
        {"top/part/link": (tarfile.SYMTYPE, "/etc/passwd")},
        {"top/part/link": (tarfile.SYMTYPE, "../other/d.txt")},  # inside the archive, but not in what is unpacked
        {"top/part/link": (tarfile.LNKTYPE, "/etc/passwd")},
        {"top/part/null": (tarfile.CHRTYPE, "")},
        {"top/other/pipe": (tarfile.FIFOTYPE, "")},
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
        extract_tar(path, inner / "out", only="top/part")
    assert sorted(tmp_path.rglob("*")) == [inner, path, outside]


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_damaged_archives_are_told(tmp_path: Path, keep: float) -> None:
    path = archive(tmp_path, GOOD | {"top/part/noise": hashlib.shake_256(b"").digest(100_000)})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(CorpusError, match=r"few\.tar\.gz"):
        extract_tar(path, tmp_path / "out", only="top/part")
    assert list(tmp_path.iterdir()) == [path]
