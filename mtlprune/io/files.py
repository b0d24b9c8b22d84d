"""Reading and writing: files that are whole or not there and survive a power cut, and logs.

Whatever is wrong with a file that is read becomes one sentence that names it, in ``reading`` and nowhere else.
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
    """A run folder that cannot be used as asked; the message says why and what to do."""


# -- writing -----------------------------------------------------------------------------------------------------------

_counter = itertools.count()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; it takes the place of ``path`` only when it is complete and on disk.
    Raises RunError: the disk refused; ``path`` is as it was.

    Every call has a name of its own, so several processes and threads may write ``path`` at the same moment: the last
    one to end wins, whole. When this returns, file and directory entry survive a power cut.
    """
    staging = path.with_name(f".{path.name}.{_process_tag()}-{next(_counter)}.part")
    try:
        make_folder(path.parent)
        _remove_abandoned(path)
        staging.touch()
        # The mode that any file of this user has; safetensors would make its files readable for their owner only.
        mode = staging.stat().st_mode
        yield staging
        staging.chmod(mode)
        sync(staging)
        staging.replace(path)
        sync(path.parent)
    except OSError as error:
        culprit = f"{error.filename}: " if error.filename not in (None, str(path), str(staging)) else ""
        raise RunError(
            f"{path} could not be written ({culprit}{error.strerror or error}); its earlier content is unchanged"
        ) from error
    # The command line may have been decoded by another encoding than the file system's.
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
    """Give a folder beside ``path`` to fill; it takes that place only when all in it is complete and on disk.

    What was there before is removed; who looks meanwhile finds it, the new one or, for a moment, none. If anything goes
    wrong, ``path`` is as it was. Raises OSError.
    """
    staging, old = (path.with_name(f".{path.name}.{_process_tag()}-{next(_counter)}.{end}") for end in ("part", "old"))
    try:
        make_folder(path.parent)
        _remove_abandoned(path)
        staging.mkdir()
        yield staging
        for file in (path for path in staging.iterdir() if path.is_file()):
            file.chmod(staging.stat().st_mode & 0o666)  # safetensors gives its own to their owner alone
        sync_tree(staging)
        while not _took_place(staging, path):
            # Another process may have put its folder there between the two renames; it is moved aside as well.
            shutil.rmtree(old, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):  # which moved it aside just now
                path.rename(old)
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_abandoned(path: Path) -> None:
    """Remove the files and folders that processes of this machine, dead by now, were filling to replace ``path``."""
    start = f".{path.name}.{platform.node()}-"
    for partial_path in path.parent.glob(glob.escape(start) + "*"):
        process = partial_path.name.removeprefix(start).partition("-")[0]
        if partial_path.suffix in (".part", ".old") and process.isdecimal() and not _is_alive(int(process)):
            _remove_half(partial_path)


def _remove_half(partial_path: Path) -> None:
    shutil.rmtree(partial_path, ignore_errors=True) if partial_path.is_dir() else partial_path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        # Signal 0 is delivered to nobody: the call only asks whether the process exists.
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


def _took_place(staging: Path, path: Path) -> bool:
    try:
        staging.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Let one process or thread at a time write the files of a folder that belong together; the others wait. Raises
    RunError: the folder cannot be made or written."""
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
    return f"{platform.node()}-{os.getpid()}-{threading.get_ident()}"


def from_here(text: str) -> str:
    """A path below the working directory as seen from there, so that results do not tell how a machine is laid out;
    other text, and a path that leads elsewhere, as it is."""
    below = Path(text).is_absolute() and Path(text).is_relative_to(Path.cwd())
    return os.path.relpath(text) if below else text


def sync(path: Path) -> None:
    """Have a file, or the entries of a folder, on disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Have every file and folder below a folder, and itself, on disk before this returns."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(root, name))
        sync(Path(root))


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each entry on disk before this returns. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def remove(*paths: Path) -> None:
    """Remove files, where they exist; they are gone from the disk before this returns."""
    existing = [path for path in paths if path.exists()]
    for path in existing:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in existing}:
        sync(folder)


def remove_halves(folder: Path) -> None:
    """Remove what killed processes left half written in a folder that only this process writes."""
    for partial_path in halves(folder):
        _remove_half(partial_path)


def halves(folder: Path) -> list[Path]:
    """The files and folders that a process which writes into a folder leaves there when it is killed."""
    patterns = (".*.part", ".*.old", ".tmp??????")  # the last one is a name that safetensors gives
    return [path for pattern in patterns for path in folder.glob(pattern)]


def write_text(path: Path, text: str) -> None:
    """Write a whole file, as ``replacing`` does."""
    with replacing(path) as staging:
        staging.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """The same of bytes."""
    with replacing(path) as staging:
        staging.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole, as ``json_text`` has it."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """A JSON file of a tree of mappings, sequences and numpy's numbers and arrays.

    A number that is not defined or infinite becomes null.
    """
    return json.dumps(plain(value), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def plain(value: Any, digits: int | None = None) -> Any:
    """JSON's own types; None for what is no finite number. ``digits``: significant ones of each number (all)."""
    if isinstance(value, Mapping):
        return {str(key): plain(part, digits) for key, part in value.items()}
    # Arrays and numbers of numpy are recognised by this method, so that numpy need not be imported.
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part, digits) for part in value]
    if isinstance(value, float):
        return None if not math.isfinite(value) else value if digits is None else float(f"{value:.{digits}g}")
    return value


def make_room(folder: Path) -> None:
    """Make sure that results can be written into a folder, before they are computed; leaves nothing behind. Raises
    RunError: it is a file, or cannot be made or written."""
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
    """Turn whatever goes wrong while a file is read and understood into one sentence that names it. ``path``: of the
    file, or what else is read (an option); ``remedy``: what to do, after a semicolon."""
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
        raise error(f"{path}: expected UTF-8 text, found {byte}{after}") from None
    except json.JSONDecodeError as cause:
        raise error(f"{path}, line {cause.lineno}: not readable as JSON ({cause.msg}){after}") from None
    except yaml.YAMLError as cause:
        raise error(f"{path}: not readable as YAML: {' '.join(str(cause).split())}{after}") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as cause:
        raise error(f"{path}: unexpected content: {reason(cause)}{after}") from None


_LFS_POINTER = b"version https://git-lfs"


def refuse_stand_in(path: Path, error: type[MtlpruneError]) -> None:
    """Raise ``error`` where something stands in the place of a file: a pipe, a device or a socket, because reading it
    may never end, or a pointer that Git LFS left. Raises OSError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise error(f"{path}: expected a file, found a pipe, a device or a socket; put a file in its place")
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise error(f"{path} is a pointer of Git LFS, not the file itself; run `git lfs pull` in its folder")


def path_inside(folder: Path, name: str, listing: Path) -> Path:
    """The path of a file or folder that a list of a folder's contents names, which may come from anybody. Raises
    RunError: the name leads out of the folder. ``listed``: the list, for the message."""
    if not name.strip("./") or name.startswith(("/", "~")) or ".." in name.split("/") or "\0" in name:
        raise RunError(f"{listing} names {name!r}, expected the name of a file in its folder; get an unaltered list")
    return folder / name


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def verify_file(path: Path, sha256: str, remedy: str) -> None:
    """Refuse a file that is not the one that was written. Raises RunError: it is missing, or has another SHA-256.
    ``remedy``: what to do."""
    with reading(path, RunError, remedy):
        actual = file_sha256(path)
    if actual != sha256:
        raise RunError(
            f"{path} was changed or damaged since it was written: expected SHA-256 {sha256}, found {actual}; {remedy}"
        )


SUMS = "SHA256SUMS"
"""The list of the files of a folder that `sha256sum -c` reads."""


def write_sums(folder: Path) -> None:
    """Note the SHA-256 of each file of a folder in it. Raises OSError."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    text = "".join(f"{file_sha256(path)}  {path.name}\n" for path in paths)
    (folder / SUMS).write_text(text, encoding="utf-8")


def verify_sums(folder: Path, remedy: str) -> None:
    """Refuse a folder whose files are not those that were written; one without sums is taken as it is. Raises RunError:
    a file is missing, or was changed or damaged."""
    if (sums := folder / SUMS).is_file():
        for number, line in enumerate(read_text(sums).splitlines(), 1):
            sha256, blanks, name = line.partition("  ")
            if not blanks:
                raise RunError(f"{sums}, line {number}: expected a SHA-256 and the name of a file; {remedy}")
            verify_file(path_inside(folder, name, sums), sha256, remedy)


def read_text(path: Path) -> str:
    """The whole of a text file in UTF-8."""
    with reading(path):
        return path.read_text(encoding="utf-8")


def read_json(path: Path, error: type[MtlpruneError] = RunError, remedy: str = "") -> Any:
    """The value of a JSON file; its numbers are finite, its text is text."""
    with reading(path, error, remedy):
        return parse_json(path.read_text(encoding="utf-8"))


def read_yaml(path: Path, error: type[MtlpruneError] = RunError) -> Any:
    """The value of a YAML file."""
    with reading(path, error):
        return parse_yaml(path.read_text(encoding="utf-8"))


# -- logs: one JSON object a line --------------------------------------------------------------------------------------


def append_line(path: Path, record: Mapping[str, Any]) -> str:
    """Add one JSON object to a log, on disk before this returns; the line. Raises RunError when the disk refuses."""
    line = json.dumps(plain(record), allow_nan=False) + "\n"
    try:
        new = not path.exists()
        with path.open("a", encoding="utf-8") as handle:
            handle.write(line)
            handle.flush()
            os.fsync(handle.fileno())
        if new:
            sync(path.parent)
    except OSError as error:
        raise RunError(f"{path} could not be written ({error.strerror})") from error
    return line


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and value of each line; a last line without its end is one that a process is writing, or was killed over.

    Only line feeds end a line here: words may hold other separators, such as U+2028, which str.splitlines heeds.
    """
    yield from json_lines(read_text(path), path)


def json_lines(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The same of the text of a file."""
    for number, line in enumerate(text.split("\n")[:-1], 1):
        yield number, parse_json_line(line, f"{path}, line {number}")


def parse_json_line(line: str, location: str, error: type[MtlpruneError] = RunError) -> Any:
    """The JSON of one line, which stands ``location``."""
    with reading(location, error):
        try:
            return parse_json(line)
        except json.JSONDecodeError as cause:
            raise error(f"{location}: not readable as JSON ({cause.msg}); a line holds one whole value") from None
