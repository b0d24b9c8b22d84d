"""Preparation of a training: build the model, load the data, write the first files, and refuse unusable settings.

Errors of settings and data are raised here, before the first update.
"""

import datetime
import hashlib
import importlib.metadata
import importlib.util
import logging
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtlprune import __version__
from mtlprune.config.config import Config, ConfigError, validated
from mtlprune.corpora.store import Corpus
from mtlprune.encoder.model import Encoder
from mtlprune.errors import command
from mtlprune.io.block import Block
from mtlprune.io.files import remove, replacing_folder
from mtlprune.model import MultiTaskModel
from mtlprune.runs.folder import TREATED, RunError, RunFolder
from mtlprune.runs.settings import changes
from mtlprune.sentence import Sentence
from mtlprune.training.arcs import check_syntax, check_uas
from mtlprune.training.cosreg import check_cosreg
from mtlprune.training.data import load_data, read_splits
from mtlprune.training.hardware import configure_process
from mtlprune.training.pruning import check_pruning, check_rankings
from mtlprune.training.run import NewRun, Run
from mtlprune.training.start import collect_labels, origins, read_labels, start_from
from mtlprune.training.treatments import attach_treatments

log = logging.getLogger(__name__)

_PACKAGES = ("torch", "transformers", "datasets", "supar", "numpy", "safetensors", "tokenizers")


def _check_tensorboard(run: NewRun) -> None:
    """Raise ConfigError if ``train.tensorboard`` is set but TensorBoard is not installed."""
    if run.config.train.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "train.tensorboard: the package tensorboard is not installed; in a clone of mtlprune, run: "
            'pip install -e ".[tensorboard]"; or train with train.tensorboard=false'
        )


_CHECKS: tuple[Callable[[NewRun], None], ...] = (
    _check_tensorboard,
    check_pruning,
    check_syntax,
    check_rankings,
    check_uas,
    check_cosreg,
)
"""The checks of a new run, in order. They change nothing, and raise ConfigError, EncoderError or RunError."""


def prepare(config: Config, folder: RunFolder, corpus: Corpus) -> Run:
    """Build the model, load the data, and write the first files of the folder if it has none.

    Args:
        config: a configuration with the device, precision and threads of this machine (see `hardware.resolve_auto`).

    Raises:
        ConfigError, EncoderError, RunError: as in `build_model`; or the files cannot be written.
    """
    configure_process(config.train.threads)
    train, dev = read_splits(config, corpus)
    model, vocabularies = build_model(config, train, dev, folder)
    model.to(config.train.device)
    if not folder.has("config.yaml"):
        _write_beginning(config, folder, corpus, model, vocabularies)
    log.info("precision %s on %s, threads: %d", config.train.precision, config.train.device, config.train.threads)
    return load_data(config, model, train, dev)


def build_model(
    config: Config, train: Sequence[Sentence], dev: Sequence[Sentence], folder: RunFolder | None = None
) -> tuple[MultiTaskModel, dict[str, dict[str, list[str]]]]:
    """Build the model of a run before its first update, on the CPU, and raise all errors that settings can cause.

    Args:
        folder: the folder of the run, if it has one. If it holds a checkpoint, the checkpoint will replace the weights,
            so that other runs and the source of the encoder are not read again.

    Returns:
        The model, and the vocabularies: task → kind of label → labels.

    Raises:
        ConfigError: settings, labels or other runs do not fit together.
        EncoderError: the encoder cannot be loaded, or its heads are unknown although a setting needs them.
        RunError: another run on which this run depends cannot be read.
    """
    start = config.train.start
    resumes = folder is not None and folder.checkpoint_path.exists()
    source = folder.encoder_path if folder is not None and resumes else None
    if start is None:
        vocabularies = collect_labels(config, train)
    elif folder is not None and resumes:
        vocabularies = folder.read_vocabularies()
    else:
        vocabularies, source = read_labels(config, train, folder), RunFolder(start).encoder_path
    model = MultiTaskModel.build(_pinned(config, folder), vocabularies, str(source) if source else None)
    new_run = NewRun(config, model, vocabularies, train, dev, folder, resumes)
    for check in _CHECKS:
        check(new_run)
    attach_treatments(new_run)
    if start is not None and not resumes:
        start_from(start, model)
    for part in config.train.freeze:
        (model.encoder if part == "encoder" else model.tasks).requires_grad_(False)
    if config.pruning.closed == "optimal" and model.encoder.head_constants is not None:
        # The constants are trained even if the encoder is frozen, because they are not part of the pretrained model.
        model.encoder.head_constants.requires_grad_(True)
    return model, vocabularies


def _pinned(config: Config, folder: RunFolder | None) -> Config:
    """Fix the revision of the encoder to the commit with which a resumed run began, since branches can move."""
    is_resumed = folder is not None and folder.has("config.yaml")
    commit = folder.read_manifest().get("encoder", {}).get("revision") if folder is not None and is_resumed else None
    return config.model_copy(
        update={"encoder": config.encoder.model_copy(update={"revision": commit or config.encoder.revision})}
    )


FREE = {"name", "train.checkpoint_minutes", "train.log_uas", "train.tensorboard", "data.path", "data.corpora"}
FREE |= {"train.log_train_loss", "encoder.checkpointing"}  # activation checkpointing does not change gradients
"""Settings that may change when a run is resumed; the paths of the data may change, but not their content."""


def check_same(config: Block, folder: RunFolder, fingerprint: str) -> None:
    """Raise RunError if a run cannot be resumed with this configuration and data.

    The settings (except `FREE`) and the data must be the same, and the run must not come from the removal of heads.

    Args:
        config: the configuration of a training or a pretraining.
        fingerprint: the fingerprint of the data.
    """
    manifest = folder.read_manifest()
    if "pruned" in manifest:
        raise RunError(
            f"{folder.path} was made by `mtlprune export --remove` and cannot be trained further; to tune its encoder, "
            f"start a new run: {command('train', folder.config_path, f'train.start={folder.path}', '--out', 'ANOTHER')}"
        )
    begun_config = validated(type(config), folder.read_config(), str(folder.config_path))
    if changes_found := changes(begun_config.model_dump(mode="json"), config.model_dump(mode="json"), FREE):
        raise RunError(
            f"{folder.path}: expected a run with the same settings, found other settings: {'; '.join(changes_found)}. "
            "Choose another --out"
        )
    if manifest["data"]["fingerprint"] != fingerprint:
        raise RunError(
            f"{folder.path} was begun on data with fingerprint {manifest['data']['fingerprint']}, but the "
            f"data named now have {fingerprint}. Choose another --out, or restore that corpus"
        )


def check_whole(config: Config, folder: RunFolder) -> None:
    """Raise RunError if files of a resumed run have changed, or without a checkpoint, the files that it begins from."""
    folder.verify()
    if folder.checkpoint_path.exists():
        return
    recorded_origins = folder.read_manifest().get("begun_from", {})
    for key, current in origins(config).items():
        recorded = recorded_origins.get(key, current)
        if recorded["sha256"] != current["sha256"]:
            raise RunError(
                f"{folder.path} has no checkpoint and would begin again from what {key} names, which was changed: "
                f"expected {recorded['file']} with SHA-256 {recorded['sha256']}, found {current['file']} "
                f"with {current['sha256']}; restore it, or choose another --out"
            )


def _write_beginning(
    config: Config, folder: RunFolder, corpus: Corpus, model: MultiTaskModel, vocabularies: dict[str, Any]
) -> None:
    """Write the files of a run that exist before its first update."""
    folder.write_json("vocabulary.json", vocabularies)
    if model.treated:
        folder.write_json(TREATED, model.treated)
    else:
        # This file may remain from an interrupted beginning with other settings.
        remove(folder.path / TREATED)
    data = {"path": config.data.path, "fingerprint": corpus.fingerprint, "name": corpus.info.get("name")}
    gates = {"gates": sum(p.numel() for p in model.gates.parameters())} if model.gates else {}
    commit = {"encoder": {"revision": model.encoder.commit}} if model.encoder.commit else {}
    facts = {
        "data": data | folder.started(),
        "begun_from": origins(config),
        **commit,
        **({"remarks": remarks} if (remarks := model.encoder.remarks()) else {}),
        "parameters": {**model.sizes(), **gates},
    }
    begin_folder(config, folder, model.encoder, facts)


def begin_folder(config: Any, folder: RunFolder, encoder: Encoder, facts: Mapping[str, Any]) -> None:
    """Write the encoder files, the manifest and the configuration of a training or a pretraining.

    config.yaml is written last, so that its presence means that all other files exist.

    Args:
        facts: further entries of the manifest.
    """
    _save_encoder_files(encoder, folder.encoder_path)
    manifest = _provenance(config.train.seed)
    folder.write_json("manifest.json", {**manifest, "files": folder.hashes(), **facts})
    folder.write_config(config.model_dump(mode="json"))


def _provenance(seed: int) -> dict[str, Any]:
    """Return entries of the manifest about the time, code, packages and machine of the beginning of a run."""
    return {
        "begun": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "mtlprune": __version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "git": _git_commit(),
        "code": code_hash(),
        "command": sys.argv,
        "seed": seed,
    }


def _save_encoder_files(encoder: Encoder, path: Path) -> None:
    """Write the configuration and tokenizer of the encoder, so that a run can be loaded without the encoder's source.

    Raises RunError if they cannot be written.
    """
    try:
        with replacing_folder(path) as staging:
            encoder.config.save_pretrained(staging)
            encoder.tokenizer.save_pretrained(staging)
            if encoder.head_map is not None:
                encoder.head_map.write(staging)
    # `tokenizers` reports a full disk by a bare Exception.
    except Exception as error:
        raise RunError(f"{path}: tokenizer.json and its like could not be written ({error})") from error


def _processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def code_hash() -> str:
    """Return the SHA-256 of the names and contents of the package's modules.

    It identifies the code outside a Git repository, and distinguishes uncommitted versions.
    """
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _git_commit() -> str | None:
    """Return the Git commit of the code, with + appended if there are uncommitted changes; None outside a checkout."""
    repository = Path(__file__).parents[2]
    # An installed package may be inside the checkout of another project, whose commit would be meaningless.
    if not (repository / ".git").exists():
        return None
    try:
        commit, uncommitted = (
            subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if uncommitted else "")
