"""Wrong paths of corpora and runs are refused at once, before torch and all that needs it are loaded."""

from pathlib import Path

from mtlprune.corpora.store import read_info


def check_corpora(*paths: Path | None) -> None:
    """Raises CorpusError where no corpus lies at a path that is given."""
    for path in paths:
        if path is not None:
            read_info(path)


def check_run(run: Path, data: Path | None = None) -> None:
    """The same of a run's own corpus, or of ``data`` instead. Raises RunError too: no run, or a damaged one."""
    from mtlprune.runs.folder import RunFolder

    folder = RunFolder.with_weights(run)
    read_info(data or folder.corpus_path())
