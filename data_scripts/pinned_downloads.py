"""Download pinned files and folders. Each is written under a temporary name, verified, and then renamed."""

import hashlib
import http.client
import logging
import ssl
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path

from mtlprune.corpora import CorpusError
from mtlprune.io.files import RunError, file_sha256, replacing, replacing_folder

log = logging.getLogger(__name__)
_CHUNK = 1 << 20  # bytes


def fetch(url: str, out: Path, sha256: str | None, *, git_blob: str | None = None, timeout: float = 60.0) -> Path:
    """Download ``url`` to ``out`` and return ``out``, or keep ``out`` if it is already the expected file.

    Args:
        url: an address with http or https.
        out: the file to write; missing parent folders are made. An existing file is replaced only by a complete and
            verified one.
        sha256: the expected SHA-256 in hexadecimal. None if only ``git_blob`` is known, or if the caller verifies the
            content (an existing ``out`` is then downloaded again).
        git_blob: the expected git blob id, as ``git hash-object FILE`` prints it.
        timeout: how many seconds the server may send nothing.

    Raises:
        CorpusError: the address is not http(s), the host cannot be reached, the server reports an error, the download
            is incomplete or cannot be written, or a checksum is wrong. No new file is left then.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise CorpusError(f"{url}: expected an address that starts with http:// or https://")
    if out.is_file() and (sha256 or git_blob) and _mismatch(out, sha256, git_blob) is None:
        log.info("%s is already there and verified", out)
        return out
    try:
        with replacing(out) as part:
            _stream(url, part, timeout)
            if wrong := _mismatch(part, sha256, git_blob):
                raise CorpusError(
                    f"{url}: {wrong}; the file was not kept. The address serves something else than the pinned file: "
                    "try again, and if the checksum stays wrong, do not use this source"
                )
    except RunError as error:
        raise CorpusError(str(error)) from None
    return out


def _stream(url: str, part: Path, timeout: float) -> None:
    """Write the response of ``url`` to ``part``. Raises CorpusError for every error of the network or the disk."""
    received, expected = 0, None
    request = urllib.request.Request(url, headers={"User-Agent": "mtlprune", "Accept-Encoding": "identity"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            length = answer.headers.get("Content-Length")
            expected = int(length) if length and length.isdigit() else None
            with part.open("wb") as file:
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    received += len(chunk)
    except urllib.error.HTTPError as error:
        error.close()
        raise CorpusError(
            f"{url}: the server answered {error.code} {error.reason}; expected 200 OK. Check the address"
        ) from None
    except urllib.error.URLError as error:
        raise CorpusError(f"{url}: the host could not be reached ({error.reason}); check the network") from None
    except http.client.IncompleteRead as error:
        raise _cut_off(url, received + len(error.partial), expected) from None
    except (ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException) as error:
        raise _cut_off(url, received, expected, f" ({error or type(error).__name__})") from None
    except OSError as error:
        raise CorpusError(f"{url}: the download could not be written to {part.parent}: {error}") from None
    if expected is not None and received != expected:
        raise _cut_off(url, received, expected)


def _cut_off(url: str, received: int, expected: int | None, why: str = "") -> CorpusError:
    of = "" if expected is None else f" of {expected:,}"
    return CorpusError(f"{url}: the download was cut off after {received:,}{of} bytes{why}; start it again")


def _mismatch(path: Path, sha256: str | None, git_blob: str | None) -> str | None:
    """Return what is wrong with the checksums of ``path``, or None."""
    if sha256 is not None and (found := file_sha256(path)) != sha256.lower():
        return f"expected sha256 {sha256}, found {found} ({path.stat().st_size:,} bytes)"
    if git_blob is not None and (found := git_blob_id(path)) != git_blob.lower():
        return f"expected git blob {git_blob}, found {found} ({path.stat().st_size:,} bytes)"
    return None


def git_blob_id(path: Path) -> str:
    """Return the git blob id of a file: the SHA-1 of ``blob SIZE``, a zero byte and the content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def git_tree_id(folder: Path) -> str:
    """Return the git tree id of a folder of plain files (mode 100644). As in git, empty folders do not count."""
    return _tree_digest(folder).hex()


def _tree_digest(folder: Path) -> bytes:
    entries: list[tuple[bytes, bytes]] = []  # (sort key, entry)
    for path in folder.iterdir():
        name = path.name.encode()
        if path.is_dir():
            if any(inner.is_file() for inner in path.rglob("*")):
                # Git sorts a folder as if its name ended in a slash.
                entries.append((name + b"/", b"40000 " + name + b"\0" + _tree_digest(path)))
        else:
            entries.append((name, b"100644 " + name + b"\0" + bytes.fromhex(git_blob_id(path))))
    content = b"".join(entry for _, entry in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(content) + content, usedforsecurity=False).digest()


def fetch_tree(url: str, out: Path, only: str, suffix: str, tree: str) -> Path:
    """Download an archive, extract one of its folders as :func:`extract_tree` does, and return the folder ``out``.

    The archive is removed afterwards. Its checksum cannot be pinned, because servers make archives on demand, so the
    extracted files are verified instead.

    Raises:
        CorpusError: for the reasons given in :func:`fetch` and :func:`extract_tree`.
    """
    archive = out.with_name(f".{out.name}.tar.gz")
    try:
        return extract_tree(fetch(url, archive, None), out, only, suffix, tree)
    finally:
        archive.unlink(missing_ok=True)


def extract_tree(archive: Path, out: Path, only: str, suffix: str | tuple[str, ...], tree: str) -> Path:
    """Extract the files of one folder of an archive into ``out``, and return ``out``.

    An existing ``out`` is replaced only when the new folder is complete and verified.

    Args:
        archive: a tar archive.
        only: the folder in the archive.
        suffix: the end, or one of several ends, of the paths of the files to extract.
        tree: the expected git tree id of these files.

    Raises:
        CorpusError: the archive is missing or damaged; it contains no such files, or not the expected ones; or one of
            them is a link, a device or a pipe, or would be written outside of the folder.
    """
    prefix = only.rstrip("/") + "/"
    try:
        with replacing_folder(out) as staging, tarfile.open(archive) as tar:
            found = [m for m in tar if m.name.startswith(prefix) and m.name.endswith(suffix) and not m.isdir()]
            if not found:
                ending = suffix if isinstance(suffix, str) else suffix[0]
                raise CorpusError(f"{archive}: holds no file {only}/...{ending}; is it the right archive?")
            for member in found:
                if not member.isfile():
                    finding = "a link, a device or a pipe, expected files and folders"
                    raise CorpusError(f"{archive}: refused: {member.name!r} is {finding}; nothing was unpacked")
                member.name = member.name.removeprefix(prefix)
            tar.extractall(staging, members=found, filter="data")  # the filter refuses paths outside of the folder
            if (actual := git_tree_id(staging)) != tree:
                raise CorpusError(
                    f"{archive}: expected the files of git tree {tree}, found {actual}; nothing of it was kept. This "
                    "is something else than the pinned commit: do not use this source"
                )
    except tarfile.FilterError as error:
        raise CorpusError(f"{archive}: refused: {error}; nothing was unpacked") from None
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise CorpusError(
            f"{archive}: not a whole tar archive, or it could not be unpacked into {out} ({error}); nothing was "
            "unpacked. Download it again"
        ) from None
    return out
