"""The method cards name every setting there is, with its default, and nothing else; the index names every card."""

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from command_line import ROOT as COMMAND_LINE
from command_line import every_command, parsed

from mtlprune.analyses.analysis import usable
from mtlprune.analyses.probes import CHANCE, MODES, OFFSET, RANDOM, SHUFFLED
from mtlprune.cli import COMMANDS
from mtlprune.config import PRESETS
from mtlprune.config.config import Config, load_config
from mtlprune.io.block import explanations
from mtlprune.pretraining.config import (
    ModelConfig,
    PretrainConfig,
    SourceConfig,
    StepsConfig,
    WatchConfig,
    load_pretraining,
)
from mtlprune.tasks import TASKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PATHS = {page.name: page for page in PAGES}
BLOCKS = {name: one.annotation for name, one in Config.model_fields.items() if hasattr(one.annotation, "model_fields")}
PRETRAINING = SourceConfig, ModelConfig, StepsConfig, WatchConfig, PretrainConfig
GENERATOR = runpy.run_path(str(DOCS / "generate.py"))
OWN = {"depth.yaml", "DIR/config.yaml"}
"""Files that a reader makes."""

CARD_OF = {
    "encoder.pooling": "settings.md",
    "encoder.fusion": "smoothing.md#the-remedy-fusion",
    "train.embedding_rows": "settings.md",
    "train.freeze": "regimes.md#what-is-frozen",
    "train.mixing": "training.md",
    "train.balance": "training.md",
    "train.precision": "settings.md",
    "train.schedule": "settings.md",
    "pruning.method": "regimes.md",
    "pruning.sets": "regimes.md#one-gate-set-for-all-tasks-or-one-for-each-task",
    "pruning.closed": "gates.md#what-a-closed-head-contributes",
    "pruning.penalty": "gates.md",
    "pruning.init": "gates.md#where-gates-start",
    "syntax.variant": "pretraining.md#the-penalty",
    "syntax.scale": "pretraining.md#in-multi-task-training",
}
"""Where the values of a setting that has only so many are explained."""


def sections(page: str) -> dict[str, str]:
    """Anchor → text up to the next heading, of all headings of a page; "" is what stands before the first."""
    parts = re.split(r"^#+ (.*)$", PATHS[page].read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": parts[0], **{anchor(title): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}}


def anchor(heading: str) -> str:
    """What GitHub calls a heading in links."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def leaves(model: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, type and field of every setting, blocks unfolded, decoders left out."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        if not hasattr(kind, "model_fields"):
            yield prefix + name, kind, field
        elif name != "decoders":
            yield from leaves(kind, f"{prefix}{name}.")


def blocks(text: str) -> list[Any]:
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_of_a_decoder_is_on_its_card(name: str) -> None:
    card = PATHS["tasks.md"].read_text(encoding="utf-8").split(f"\n## `{name}`:")[1].split("\n## ")[0]
    assert (blocks(card) or [{}]) == [TASKS[name].Options().model_dump()]


def test_every_setting_of_pretraining_is_on_its_card() -> None:
    """Those of other runs are on a page that is made from the code."""
    [shown] = blocks(sections("pretraining.md")["settings"])
    config = PretrainConfig(data=SourceConfig(corpora=("",)))
    expected = config.model_dump(mode="json", exclude={"syntax"})
    assert shown == expected | {"data": expected["data"] | {"corpora": None}}


def test_every_training_command_is_a_run_that_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that begin from a file of the reader's own; runs that are begun with are made by others."""
    monkeypatch.chdir(ROOT)
    own, runs, made, named = set(), [], set(), set()
    for page in PAGES:
        for line in re.findall(r"^    mtlprune train (.*)$", page.read_text("utf-8"), re.MULTILINE):
            config, *words = shlex.split(line)
            made |= set(re.findall(r"--out (\S+)", line))
            named |= set(re.findall(r"(?:start|importance_of|layers_like)=(runs/\S+)", line))
            if (PRESETS / f"{config}.yaml").is_file() or Path(config).is_file():
                pretrains = {"syntax", "two-stages", "degeneration"} & {*Path(config).parts}
                load: Any = load_pretraining if pretrains else load_config
                runs.append(load(config, [word for word in words[: words.index("--out")] if "[" not in word]))
            else:
                own.add(config)
    assert len(runs) > 10 and own == OWN and named and named <= made


def commands(text: str) -> Iterator[list[str]]:
    """Words of each command in a code block that is whole, up to what a shell does with it."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    fenced = "".join(block for kind, block in blocks if kind in ("", "sh"))
    for line in [
        *re.findall(r"^mtlprune (.*)$", fenced, re.MULTILINE),
        *re.findall(r"^ {4}mtlprune (.*)$", text, re.MULTILINE),
    ]:
        if not re.search(r"\.\.\.|\[|\$\(|\\$", line):
            words = shlex.split(line, comments=True)
            yield words[: next((place for place, word in enumerate(words) if re.match("[>|&]|2>", word)), None)]


def test_every_command_of_a_page_can_be_parsed() -> None:
    each = [(page, words) for page in LINKED for words in commands(page.read_text("utf-8"))]
    assert len(each) > 100
    wrong = []
    for page, words in each:
        try:
            parsed(words)
        except Exception as error:  # of the click within typer
            wrong.append(f"{page}: {shlex.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_command_that_is_named_is_one() -> None:
    """On pages, and in what the package prints and says of itself."""
    known = set(COMMAND_LINE.list_commands(None))
    sources = [*(ROOT / "mtlprune").rglob("*.py"), *(ROOT / "mtlprune").rglob("*.html"), *LINKED]
    for path in (path for path in sources if path.name != "CHANGELOG.md" and path.parent.name != "log"):
        named = set(re.findall(r"[`>]mtlprune ([a-z]+)", path.read_text("utf-8")))
        assert named <= known, f"{path}: {named - known}"


def test_the_site_leads_to_every_page() -> None:
    """Once each; `mkdocs build --strict` finds what the navigation names and is not there."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"\S+\.md$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted({*listed}) and {str(page.relative_to(DOCS)) for page in PAGES} <= {*listed}


@pytest.mark.parametrize("page", GENERATOR["PAGES"])
def test_generated_pages_are_current(page: str) -> None:
    assert GENERATOR["PAGES"][page]() == (DOCS / page).read_text(encoding="utf-8"), "run: python docs/generate.py"


CHOICES = [(key, get_args(kind), field.default) for key, kind, field in leaves(Config) if get_origin(kind) is Literal]


@pytest.mark.parametrize(("key", "values", "default"), CHOICES)
def test_every_value_of_a_setting_is_on_its_card(key: str, values: tuple[str, ...], default: Any) -> None:
    page, _, place = CARD_OF[key].partition("#")
    text = sections(page)[place] if place else PATHS[page].read_text(encoding="utf-8")
    leaf = key.rpartition(".")[2]
    for value in values:
        said = rf"`(?:{leaf}: )?{value}`|^ *{leaf}: .*\b{value}\b"
        assert value == default or re.search(said, text, re.MULTILINE), value


@pytest.mark.parametrize(("values", "place"), [(MODES, "two-modes"), ((RANDOM, SHUFFLED, OFFSET, CHANCE), "controls")])
def test_every_mode_and_control_of_the_probes_is_on_its_card(values: tuple[str, ...], place: str) -> None:
    rows = re.findall(r"^\| `([\w-]+)`(?: \(default\))? \|(?!.*\n\|-)", sections("probes.md")[place], re.MULTILINE)
    assert rows == list(values)


METHODS = [
    (page.name, place)
    for page in PAGES
    for place, text in sections(page.name).items()
    if "**Idea.**" in text and "**Limitations.**" in text and page.name != "tasks.md"  # whose cards are shorter
]


@pytest.mark.parametrize(("page", "place"), METHODS)
def test_every_card_of_a_method_has_its_parts(page: str, place: str) -> None:
    text = sections(page)[place]
    for part in ("Idea", "Equation", "Source", "Limitations"):
        assert text.count(f"**{part}.**") == 1 or (part == "Equation" and "equation" in text), part


FOLDERS = ("experiments", "data_scripts", "results")
LINKED = [
    *ROOT.glob("*.md"),
    *(ROOT / ".github").glob("*.md"),
    *PAGES,
    *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md")),
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for path, place in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        if "://" not in path and not path.startswith("../../actions/"):  # badges, which GitHub makes
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), path
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if place else [place]
            assert place in map(anchor, titles), f"{path}#{place}"


def test_help_texts_are_sentences_about_something() -> None:
    """No text begins with a preposition whose noun is missing; software prints and reports, it does not say or tell.

    No text shows a constant's name in braces, which a string does that should be an f-string and is none.
    """
    texts = [(called, command.help or "") for called, command in every_command()]
    texts += [(called, getattr(part, "help", None) or "") for called, one in every_command() for part in one.params]
    texts += [(record.name, text) for record in usable() for text in explanations(record.options).values()]
    texts += [(name, text) for name, block in BLOCKS.items() for text in explanations(block).values()]
    texts += [("pretraining", text) for block in PRETRAINING for text in explanations(block).values()]
    texts += [("command", line) for lines in COMMANDS.values() for line in lines.values()]
    assert len(texts) > 300
    fault = r"(Of|For|Whose)\b|.*\b(says?|tells?|goes on|go on with)\b|.*\{[A-Z_]+(:[^ }]*)?\}"
    wrong = [text for text in texts if re.match(fault, text[1])]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "reference"], ids=lambda page: page.name
)
def test_a_page_is_no_longer_than_one_reads(page: Path) -> None:
    """1,500 words outside of code."""
    assert len(re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S).split()) <= 1500


def test_options_and_files_that_pages_name_are_there() -> None:
    """Each `--option` belongs to some command, and each path below a folder of the repository exists."""
    parts = [part for _, command in every_command() for part in command.params]
    options = {name for part in parts for name in (*part.opts, *part.secondary_opts)}
    for page in PAGES:
        text = re.sub(r"^```.*?^```$|^ {4}.*$", "", page.read_text("utf-8"), flags=re.M | re.S)
        spans = re.findall(r"`([^`\n]+)`", text)
        shown = [span for span in spans if span.startswith(("--", "mtlprune"))]
        named = {word for span in shown for word in re.findall(r"--[a-z-]+", span)}
        assert named <= options | FOREIGN_OPTIONS, f"{page}: {named - options - FOREIGN_OPTIONS}"
        paths = {path for path in spans if FILES.fullmatch(path)}
        assert not (lost := {path for path in paths if not (ROOT / path).exists()}), f"{page}: {lost}"


FILES = re.compile(r"(mtlprune|tests|experiments|data_scripts|results)/[a-z\d_./-]+")
"""A path in the repository; capitals stand for a name of the reader's."""
FOREIGN_OPTIONS = {"--strict", "--help", "--headless", "--converter"}
"""Options of other programs, and of scripts."""


def test_there_are_no_more_commands_and_options_than_these() -> None:
    """The command line stays small. Arguments are no options, and --a/--no-a is one."""
    each = [command for _, command in every_command()]
    options = [part for command in each for part in command.params if part.param_type_name == "option"]
    commands = [command for command in each if not hasattr(command, "list_commands")]
    assert len(COMMAND_LINE.list_commands(None)) <= 16 and len(commands) <= 19
    assert len(options) <= 105, sorted(str(part.opts) for part in options)
