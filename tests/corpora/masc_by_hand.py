"""MASC joined a second time by other means: trees as nested lists, rows by split(), names by the nearest equal letters.

``python tests/corpora/masc_by_hand.py FOLDER`` prints the table of data_scripts/README.md.
"""

import re
import sys
import tarfile
import xml.dom.minidom
from collections import Counter
from pathlib import Path

from mtlprune.corpora.masc import documents

UNTIED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
COLUMNS = ("documents", "sentences", "words", "constituents", "predicates", "with NER", "names")
Leaf = tuple[str, str]


def raw(folder: Path) -> dict[str, str]:
    """Text of the files in the archives of a folder, by the last two parts of their paths."""
    files = {}
    for path in folder.glob("*.tar.xz"):
        with tarfile.open(path) as tar:
            for member in (member for member in tar if member.isfile() and "/._" not in member.name):
                content = tar.extractfile(member)
                files["/".join(member.name.split("/")[-2:])] = content.read().decode() if content else ""
    return files


def leaves(tree: list) -> list[Leaf]:
    if len(tree) == 2 and all(isinstance(part, str) for part in tree):
        return [(tree[0], tree[1])] if tree[0] != "-NONE-" else []
    return [leaf for part in tree if isinstance(part, list) for leaf in leaves(part)]


def trees(text: str) -> list[list[Leaf]]:
    stack: list[list] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            stack[-2].append(stack.pop())
        else:
            stack[-1].append(token)
    return [own for tree in stack[0] if (own := leaves(tree))]


def no_word(leaf: Leaf) -> bool:
    return leaf[0] in {"CODE", "SU"} or (leaf[0] == "." and "/" in leaf[1]) or leaf[1].startswith("*PRO*")


def brackets(bits: list[str], gone: set[int]) -> int | None:
    """How many brackets hold a word, without the root; None where they do not balance."""
    begins, count = [], 0
    for place, bit in enumerate(bits):
        if not re.fullmatch(r"(\([^()*]+)*\*\)*", bit):
            return None
        begins += [place] * bit.count("(")
        for _ in range(bit.count(")")):
            begin = begins.pop()
            count += any(k not in gone for k in range(begin, place + 1))
    return None if begins else count - 1


def same(text: str) -> str:
    return re.sub("[“”]", '"', re.sub("[‘’]", "'", re.sub("[–—]", "-", text))).lower()


def letters(words: list[str], text: str) -> dict[int, int]:
    """Place of a letter among those of all words → its place in the text, as far as they run alike."""
    left = same("".join(words))
    right = [place for place, sign in enumerate(text) if not sign.isspace()]
    there, i, j, placed = same("".join(text.split())), 0, 0, {}
    while i < len(left) and j < len(there):
        if left[i] == there[j]:
            placed[i] = right[j]
            i, j = i + 1, j + 1
            continue
        jumps = [
            (skipped + to - j, skipped, to - j)
            for skipped in range(300)
            if (to := there.find(left[i + skipped : i + skipped + 12], j, j + 2000)) >= 0
        ]
        if not jumps:
            break
        i, j = i + min(jumps)[1], j + min(jumps)[2]
    return placed


def names(sentences: list[list[str]], text: str, entities: list[tuple[int, int]]) -> tuple[int, int]:
    """How many sentences have NER, and how many names in them that lie in no other."""
    words = [(word, number) for number, sentence in enumerate(sentences) for word in sentence]
    owner = [place for place, (word, _) in enumerate(words) for _ in word]  # of each letter
    letter_at = {place: letter for letter, place in letters([word for word, _ in words], text).items()}
    kept, unknown, wrong = set(), set(), 0
    for start, end in entities:
        own = [place for place in range(start, end) if not text[place].isspace()] or [start]
        first, last = (letter_at.get(own[side]) for side in (0, -1))
        if first is not None and last is not None:
            covered = words[owner[first] : owner[last] + 1]
            whole = owner[first - 1 : first] != [owner[first]] and owner[last + 1 : last + 2] != [owner[last]]
            joined = text[own[0] : own[-1] + 1].isalpha() and len(covered) > 1  # LarryThompson
            joined = joined or (own[0] > 0 and text[own[0] - 1 : own[0] + 1].isalpha())  # theTaliban
            if whole and not joined and covered[0][1] == covered[-1][1]:
                kept.add((own[0], own[-1], covered[0][1]))
                continue
        wrong += 1
        before = [place for place in letter_at if place <= own[0]]
        after = [place for place in letter_at if place >= own[-1]]
        low = words[owner[letter_at[max(before)]]][1] if before else 0
        high = words[owner[letter_at[min(after)]]][1] if after else len(sentences) - 1
        unknown |= set(range(low, high + 1))
    if wrong * 10 > len(entities):
        return 0, 0
    known = [name for name in kept if name[2] not in unknown]
    inner = [a for a in known if any(a != b and b[0] <= a[0] and a[1] <= b[1] for b in known)]
    return len(sentences) - len(unknown), len(known) - len(inner)


def counts(folder: Path) -> dict[str, Counter[str]]:
    files, table = raw(folder), dict[str, Counter[str]]()
    for genre, name, _ in documents():
        own = table.setdefault(genre, Counter[str]())
        short = name.replace("-ms98-a-trans", "")
        [tree] = [text for path, text in files.items() if re.match(rf"Penn_Treebank/{short}[.-]", path)]
        rows = re.split(r"\n\s*\n", files[f"00/{name}.gold_skel"].strip())
        blocks = [[line.split() for line in block.split("\n")] for block in rows]
        words = []
        for sentence, block in zip(trees(tree), blocks, strict=True):
            gone = {place for place, leaf in enumerate(sentence) if no_word(leaf)}
            if len(gone) < len(sentence):
                kept = (leaf[1].replace("\\/", "/") for leaf in sentence if not no_word(leaf))
                words.append([UNTIED.get(word, word) for word in kept])
                own["words"] += len(words[-1])
                if (number := brackets([row[5] for row in block], gone)) is not None:
                    own["constituents"] += number
                    own["predicates"] += sum(row[7] != "-" for row in block)
        entities = []
        for kind in ("person", "location", "organization", "date"):
            if content := files.get(f"ne-{kind}/{name}-NE.xml"):
                structs = xml.dom.minidom.parseString(content).getElementsByTagName("struct")
                entities += [(int(s.getAttribute("from")), int(s.getAttribute("to"))) for s in structs]
        with_ner, named = names(words, files[f"txtfiles/{name}.txt"], entities)
        own.update({"documents": 1, "sentences": len(words), "with NER": with_ner, "names": named})
    return table


if __name__ == "__main__":
    for genre, row in counts(Path(sys.argv[1])).items():
        print(f"| {genre} | {' | '.join(f'{row[column]:,}' for column in COLUMNS)} |")
