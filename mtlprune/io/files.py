"""Reading and writing of files.

A file that ``replacing`` writes is either complete or as it was before, even after a power cut, and a line that
``append_line`` adds to a log is on disk when the function returns. If a file cannot be read, the context manager
``reading`` turns the exception into one sentence that names the file.
"""

import contextlib
import errno
import glob
import hashlib
import itertools
import json
import math
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mtlprune.errors import MtlpruneError
from mtlprune.io.strict import parse_json, parse_yaml, reason


class RunError(MtlpruneError):
    """A file or folder, such as a run folder, cannot be used as requested; the message says why and what to do."""


# -- writing -----------------------------------------------------------------------------------------------------------

_counter = itertools.count()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file in the same folder, and replace ``path`` by this file when the block ends.

    The file replaces ``path`` only when it is complete and on disk. When the context manager exits, the file and its
    directory entry survive a power cut. Every call has its own temporary file, so several processes and threads may
    write ``path`` at the same time; the file of the last one to finish remains, complete.

    Raises:
        RunError: the file could not be written; ``path`` is unchanged.
    """
    staging = path.with_name(f".{path.name}.{_process_tag()}-{next(_counter)}.part")
    try:
        make_folder(path.parent)
        _remove_abandoned(path)
        staging.touch()
        # Remember the permissions that a new file gets from the user's umask, and restore them after the block, because
        # safetensors makes its files readable for their owner only.
        mode = staging.stat().st_mode
        yield staging
        staging.chmod(mode)
        _sync(staging)
        staging.replace(path)
        _sync(path.parent)
    except OSError as error:
        culprit = f"{error.filename}: " if error.filename not in (None, str(path), str(staging)) else ""
        remains = "its earlier content is unchanged" if path.is_file() else "name another place"
        raise RunError(f"{path} could not be written ({culprit}{error.strerror or error}); {remains}") from error
    # A path from the command line contains lone surrogates (half characters) if it was decoded with an encoding other
    # than that of the file system.
    except UnicodeEncodeError as error:
        raise RunError(
            f"{path} could not be written: {error.object[error.start - 20 : error.end]!r} holds half a character; "
            "correct the name or path"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            staging.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``path``, and replace ``path`` by this folder when the block ends.

    The folder replaces ``path`` only when all of its files are complete and on disk; an earlier folder ``path`` is then
    removed. In the meantime, other processes find the earlier folder, the new one or, for a moment, none. If the block
    fails, ``path`` is unchanged.

    Raises:
        OSError: the folder could not be written.
    """
    staging, old = (path.with_name(f".{path.name}.{_process_tag()}-{next(_counter)}.{end}") for end in ("part", "old"))
    try:
        make_folder(path.parent)
        _remove_abandoned(path)
        staging.mkdir()
        yield staging
        for file in (path for path in staging.iterdir() if path.is_file()):
            # safetensors makes its files readable for their owner only.
            file.chmod(staging.stat().st_mode & 0o666)
        sync_tree(staging)
        while not _took_place(staging, path):
            # Another process may have put its folder there between the two renames; it is moved aside as well.
            shutil.rmtree(old, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):  # the other process has just moved it aside itself
                path.rename(old)
        _sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files and folders for ``path`` whose process, on this machine, no longer exists."""
    start = f".{path.name}.{platform.node()}-"
    for temporary_path in path.parent.glob(glob.escape(start) + "*"):
        process = temporary_path.name.removeprefix(start).partition("-")[0]
        if temporary_path.suffix in (".part", ".old") and process.isdecimal() and not _is_alive(int(process)):
            _remove_file_or_folder(temporary_path)


def _remove_file_or_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        # Signal 0 is not delivered; the call only checks whether the process exists.
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # the process exists, but belongs to another user
        pass
    return True


def _took_place(staging: Path, path: Path) -> bool:
    """Rename a folder to ``path``; return False if ``path`` exists and is not empty."""
    try:
        staging.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Lock a folder, so that only one process or thread at a time writes files that belong together; others wait.

    Raises:
        RunError: the folder cannot be made or written.
    """
    from filelock import FileLock

    lock = folder / ".writing"
    try:
        make_folder(folder)
        file_lock = FileLock(lock).acquire()
    except OSError as error:
        raise RunError(f"{folder} could not be written ({error.strerror or error})") from error
    with file_lock:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _process_tag() -> str:
    """Return a text that identifies this machine, process and thread in the names of temporary files."""
    return f"{platform.node()}-{os.getpid()}-{threading.get_ident()}"


def from_here(text: str) -> str:
    """Return an absolute path below the working directory as a relative path, so that results do not reveal the
    folders of a machine. Other paths and other text are returned unchanged."""
    below = Path(text).is_absolute() and Path(text).is_relative_to(Path.cwd())
    return os.path.relpath(text) if below else text


def _sync(path: Path) -> None:
    """Flush a file, or the directory entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush a folder and all files and folders below it to disk."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and flush their directory entries to disk.

    Raises:
        OSError: a folder could not be made.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def remove(*paths: Path) -> None:
    """Remove those of the files that exist, and flush the removal to disk."""
    existing = [path for path in paths if path.exists()]
    for path in existing:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in existing}:
        _sync(folder)


def remove_temporary_paths(folder: Path) -> None:
    """Remove the temporary files and folders of killed processes from a folder that only this process writes."""
    for path in temporary_paths(folder):
        _remove_file_or_folder(path)


def temporary_paths(folder: Path) -> list[Path]:
    """Return the temporary files and folders in a folder, which a process leaves behind when it is killed."""
    patterns = (".*.part", ".*.old", ".tmp??????")  # the last one matches temporary files of safetensors
    return [path for pattern in patterns for path in folder.glob(pattern)]


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 by means of ``replacing``.

    Raises:
        RunError: the file could not be written.
    """
    with replacing(path) as staging:
        staging.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a binary file by means of ``replacing``.

    Raises:
        RunError: the file could not be written.
    """
    with replacing(path) as staging:
        staging.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file in the form of ``json_text``.

    Raises:
        RunError: the file could not be written.
    """
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return the content of a JSON file for nested mappings and sequences, which may contain NumPy numbers and arrays.

    NaN and infinite numbers become null.
    """
    return json.dumps(plain(value), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def plain(value: Any, digits: int | None = None) -> Any:
    """Convert nested mappings, sequences, and NumPy numbers and arrays to types that JSON has.

    NaN and infinite numbers become None. ``digits``: number of significant digits to which numbers with decimals are
    rounded (not rounded, if not given).
    """
    if isinstance(value, Mapping):
        return {str(key): plain(part, digits) for key, part in value.items()}
    # NumPy arrays and numbers are recognised by this method, so that this module need not import NumPy.
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part, digits) for part in value]
    if isinstance(value, float):
        return None if not math.isfinite(value) else value if digits is None else float(f"{value:.{digits}g}")
    return value


def make_room(folder: Path) -> None:
    """Check, before results are computed, that they can be written into a folder. The check leaves no files or folders.

    Raises:
        RunError: the folder is a file, or cannot be made or written.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A file without a name tests whether the folder can be written, and leaves nothing behind if the process is
        # killed.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = "is a file" if folder.is_file() else f"cannot be written ({error.strerror})"
        raise RunError(f"--out: {folder} {problem}; name a folder that can be made or written") from None
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()


# -- reading -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path | str, error: type[MtlpruneError] = RunError, remedy: str = "") -> Iterator[None]:
    """Turn exceptions that occur while the block reads and parses a file into one sentence that names the file.

    Args:
        path: path of the file, or as a string the name of another source, such as an option.
        error: class of the exception that is raised.
        remedy: what the user should do, added to the message after a semicolon.
    """
    after = f"; {remedy}" if remedy else ""
    try:
        if isinstance(path, Path):
            refuse_stand_in(path, error)
        yield
    except MtlpruneError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"{path} is missing{after or '; check the path'}") from None
    except OSError as cause:
        raise error(f"{path} could not be read ({cause.strerror or cause}){after}") from None
    # Running out of memory says nothing about the file, so it is not reported as damage.
    except MemoryError:
        raise error(
            f"{path}: there is not enough free memory to read it; free some memory, or read it on a larger machine"
        ) from None
    except RecursionError:
        raise error(f"{path}: nested too deeply to be read{after}") from None
    except UnicodeDecodeError as cause:
        line = cause.object[: cause.start].count(b"\n") + 1
        byte = f"byte 0x{cause.object[cause.start]:02x} in line {line}"
        raise error(f"{path}: expected UTF-8 text, found {byte}{after or '; save it as UTF-8'}") from None
    except json.JSONDecodeError as cause:
        raise error(f"{path}, line {cause.lineno}: not readable as JSON ({cause.msg}){after}") from None
    except yaml.YAMLError as cause:
        raise error(f"{path}: not readable as YAML: {' '.join(str(cause).split())}{after}") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as cause:
        raise error(f"{path}: unexpected content: {reason(cause)}{after}") from None


_LFS_POINTER = b"version https://git-lfs"


def refuse_stand_in(path: Path, error: type[MtlpruneError]) -> None:
    """Raise ``error`` if a path is a pipe, a device or a socket, because reading it may never end, or if the file is
    only a pointer of Git LFS.

    Raises:
        OSError: the file could not be read.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise error(f"{path}: expected a file, found a pipe, a device or a socket; put a file in its place")
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise error(f"{path} is a pointer of Git LFS, not the file itself; run `git lfs pull` in its folder")


def path_inside(folder: Path, name: str, listing: Path) -> Path:
    """Return the path of a file or folder that a list of a folder's content names.

    Args:
        folder: the folder.
        name: the name in the list, which is not trusted, because the list may come from anyone.
        listing: path of the list, for the message.

    Raises:
        RunError: the name leads out of the folder, or is that of the folder itself.
    """
    if not name.strip("./") or name.startswith(("/", "~")) or ".." in name.split("/") or "\0" in name:
        raise RunError(f"{listing} names {name!r}, expected the name of a file in its folder; get an unaltered list")
    return folder / name


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: the file could not be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def verify_file(path: Path, sha256: str, remedy: str) -> None:
    """Refuse a file that differs from the one that was written. ``remedy``: what the user should do.

    Raises:
        RunError: the file is missing, or has another SHA-256.
    """
    with reading(path, RunError, remedy):
        actual = file_sha256(path)
    if actual != sha256:
        raise RunError(
            f"{path} was changed or damaged since it was written: expected SHA-256 {sha256}, found {actual}; {remedy}"
        )


SUMS = "SHA256SUMS"
"""Name of the list of a folder's checksums, in the format that `sha256sum -c` reads."""


def write_sums(folder: Path) -> None:
    """Write the SHA-256 of each file of a folder into the folder's file ``SHA256SUMS``.

    Raises:
        OSError: a file could not be read, or the list not be written.
    """
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    text = "".join(f"{file_sha256(path)}  {path.name}\n" for path in paths)
    (folder / SUMS).write_text(text, encoding="utf-8")


def verify_sums(folder: Path, remedy: str) -> None:
    """Refuse a folder whose files differ from its checksums. A folder without the file ``SHA256SUMS`` is accepted.

    Raises:
        RunError: a file is missing, or was changed or damaged, or the list of checksums is damaged.
    """
    if (sums := folder / SUMS).is_file():
        for number, line in enumerate(read_text(sums).splitlines(), 1):
            sha256, blanks, name = line.partition("  ")
            if not blanks:
                raise RunError(f"{sums}, line {number}: expected a SHA-256 and the name of a file; {remedy}")
            verify_file(path_inside(folder, name, sums), sha256, remedy)


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        RunError: the file could not be read.
    """
    with reading(path):
        return path.read_text(encoding="utf-8")


def read_json(path: Path, error: type[MtlpruneError] = RunError, remedy: str = "") -> Any:
    """Read the value of a JSON file with the checks of ``parse_json``.

    Raises:
        MtlpruneError: the file could not be read. The exception has the class ``error``.
    """
    with reading(path, error, remedy):
        return parse_json(path.read_text(encoding="utf-8"))


def read_yaml(path: Path, error: type[MtlpruneError] = RunError) -> Any:
    """Read the value of a YAML file with the checks of ``parse_yaml``.

    Raises:
        MtlpruneError: the file could not be read. The exception has the class ``error``.
    """
    with reading(path, error):
        return parse_yaml(path.read_text(encoding="utf-8"))


# -- logs, with one JSON object on each line ---------------------------------------------------------------------------


def append_line(path: Path, record: Mapping[str, Any]) -> str:
    """Append one JSON object to a log, flush it to disk, and return the written line.

    Raises:
        RunError: the log could not be written.
    """
    line = json.dumps(plain(record), allow_nan=False) + "\n"
    try:
        new = not path.exists()
        with path.open("a", encoding="utf-8") as handle:
            handle.write(line)
            handle.flush()
            os.fsync(handle.fileno())
        if new:
            _sync(path.parent)
    except OSError as error:
        raise RunError(f"{path} could not be written ({error.strerror})") from error
    return line


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number, counted from 1, and the value of each line of a file.

    A last line without a line feed is skipped, because a process is still writing it or was killed while writing it.

    Raises:
        RunError: the file could not be read, or a line is not JSON.
    """
    yield from json_lines(read_text(path), path)


def json_lines(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line in the text of a file, as ``read_json_lines`` does. ``path``: path of
    the file, for messages."""
    # Only line feeds end a line. str.splitlines would also split at separators such as U+2028, which words may contain.
    for number, line in enumerate(text.split("\n")[:-1], 1):
        yield number, parse_json_line(line, f"{path}, line {number}")


def parse_json_line(line: str, location: str, error: type[MtlpruneError] = RunError) -> Any:
    """Parse the JSON of one line. ``location``: file and number of the line, for messages.

    Raises:
        MtlpruneError: the line is not one whole JSON value. The exception has the class ``error``.
    """
    with reading(location, error):
        try:
            return parse_json(line)
        except json.JSONDecodeError as cause:
            raise error(f"{location}: not readable as JSON ({cause.msg}); a line holds one whole value") from None
