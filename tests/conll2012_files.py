"""A small corpus in the formats of OntoNotes 5: CoNLL-2012 files, and dependencies beside them."""

from pathlib import Path

# word, tag, parse bit, lemma, frameset, entity, arguments
NAMED = (
    "Ada   NNP   (TOP(S(NP*)  -    -   (PERSON)  (ARG0*)",
    "saw   VBD   (VP*         see  01  *         (V*)",
    "Rome  NNP   (NP*))       -    -   (GPE)     (ARG1*)",
    "/.    .     *))          -    -   *         *",
)
PLAIN = (
    "Yes    UH     (TOP(INTJ*       -  -  *",
    "-LRB-  -LRB-  (PRN*            -  -  *",
    "really RB     (ADVP*)          -  -  *",
    "-RRB-  -RRB-  *)))             -  -  *",
)


def document(name: str, *sentences: tuple[str, ...]) -> str:
    lines = [f"#begin document ({name}); part 000"]
    for rows in sentences:
        for number, row in enumerate(rows):
            word, tag, bit, lemma, frameset, entity, *arguments = row.split()
            cells = [name, "0", str(number), word, tag, bit, lemma, frameset, "-", "-", entity, *arguments, "-"]
            lines.append("   ".join(cells))
        lines.append("")
    return "\n".join([*lines, "#end document", ""])


def put(root: Path, folder: str, name: str, *sentences: tuple[str, ...], ending: str = "v4_gold_conll") -> Path:
    path = root / "data" / folder / "data/english/annotations" / f"{name}.{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document(name, *sentences), encoding="utf-8")
    return path


def small_corpus(root: Path, documents: int = 3) -> tuple[Path, Path]:
    """Train, dev and test with all five layers: the folder of CoNLL-2012 files, and one of dependencies in CoNLL-U."""
    names = {"train": "train", "development": "dev", "test": "test"}
    (root / "dep").mkdir(parents=True)
    for place, (folder, split) in enumerate(names.items()):
        for number in range(documents):
            put(root / "files", folder, f"nw/own/00/own_{place}{number:03}", NAMED, PLAIN)
        (root / "dep" / f"{split}.conllu").write_text((tree(NAMED) + tree(PLAIN)) * documents, encoding="utf-8")
    return root / "files", root / "dep"


def tree(rows: tuple[str, ...]) -> str:
    """In CoNLL-U, or CoNLL-X: everything hangs on the first word."""
    lines = []
    for number, row in enumerate(rows, 1):
        word, tag, *_ = row.split()
        head, relation = (0, "root") if number == 1 else (1, "dep")
        lines.append(f"{number}\t{word}\t_\t_\t{tag}\t_\t{head}\t{relation}\t_\t_")
    return "\n".join(lines) + "\n\n"
