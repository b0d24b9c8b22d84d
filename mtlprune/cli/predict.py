"""mtlprune predict: all layers for new sentences."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtlprune.sentence import Sentence

CONLLU_SUFFIXES = (".conllu", ".conll")


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(
            help="Plain text (- for standard input), one sentence a line, words apart by blanks; or CoNLL-U (.conllu, "
            ".conll).",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="A file to write to, not the terminal.", show_default=False)] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="jsonl, conllu or text; if not given, text on a terminal, conllu for a file .conllu, else jsonl.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device than the run's own.", show_default=False)] = None,
) -> None:
    """Annotate sentences with every task of a run."""
    from mtlprune.cli.console import console
    from mtlprune.config import build_config
    from mtlprune.runs import RunError, RunFolder, replacing

    terminal = console()
    kind = format_ or _usual_format(out, terminal.is_terminal)
    if kind not in ("jsonl", "conllu", "text"):
        raise RunError(f"--format: expected jsonl, conllu or text, found {kind!r}")
    folder = RunFolder.existing(run)
    config = build_config(folder.read_config(), str(folder.config_path))
    if kind == "conllu" and not {"pos", "dep"} & set(config.tasks):
        raise RunError(f"--format conllu holds pos and dep, but {run} predicts {', '.join(config.tasks)}; use jsonl")
    sentences = read_sentences(file)

    from mtlprune.model import MultiTaskModel
    from mtlprune.training import hardware

    wanted = hardware.choose_device(device or config.train.device)
    model = MultiTaskModel.load(folder.path, device=wanted)
    found = list(model.annotate(sentences, hardware.dtype(config.train.precision)))
    if kind == "text" and out is None:
        from mtlprune.cli.sentence_display import print_sentence

        for sentence in found:
            print_sentence(terminal, sentence, "predicted")
    elif out is None:
        typer.echo("".join(as_text(found, kind)), nl=False)
    else:
        with replacing(out) as beside:
            beside.write_text("".join(as_text(found, kind)), encoding="utf-8")
        terminal.print(f"{out}: {len(found)} sentences", soft_wrap=True)


def _usual_format(out: Path | None, terminal: bool) -> str:
    if out is None:
        return "text" if terminal else "jsonl"
    return "conllu" if out.suffix.lower() in CONLLU_SUFFIXES else "jsonl"


def read_sentences(file: Path) -> list[Sentence]:
    """Words only. CoNLL-U by its suffix, everything else is text: a sentence a line, empty lines skipped; - is stdin.

    Raises:
        CorpusError: no such file, not UTF-8, not CoNLL-U, or no sentence in it.
    """
    from mtlprune.corpora import CorpusError
    from mtlprune.corpora.conllu import read_conllu
    from mtlprune.corpora.lines import decode_lines, read_lines
    from mtlprune.sentence import Sentence

    if file.suffix.lower() in CONLLU_SUFFIXES:
        sentences = [sentence.bare() for sentence in read_conllu(file)]
    else:
        stdin = str(file) == "-"
        lines = decode_lines(sys.stdin.buffer.read(), "standard input") if stdin else read_lines(file)
        sentences = [
            Sentence(f"{'stdin' if stdin else file.stem}-{line.number}", tuple(line.text.split())).validate()
            for line in lines
            if line.text.strip()
        ]
    if not sentences:
        raise CorpusError(f"{file}: expected one sentence a line, found none; write some text into it")
    return sentences


def as_text(sentences: Iterable[Sentence], kind: str) -> Iterable[str]:
    """The sentences as JSON lines, CoNLL-U, or for eyes; each with its line ends."""
    from mtlprune.corpora.export import format_conllu
    from mtlprune.runs import to_json

    for sentence in sentences:
        if kind == "jsonl":
            yield json.dumps(to_json(sentence), ensure_ascii=False) + "\n"
        elif kind == "conllu":
            yield format_conllu(sentence)
        else:
            yield _for_eyes(sentence)


def _for_eyes(sentence: Sentence) -> str:
    from io import StringIO

    from mtlprune.cli.plain_console import PlainConsole
    from mtlprune.cli.sentence_display import print_sentence

    page = PlainConsole(file=StringIO(), width=120)
    print_sentence(page, sentence, "predicted")
    return page.file.getvalue()  # type: ignore[attr-defined]
