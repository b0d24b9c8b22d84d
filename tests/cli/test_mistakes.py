"""Users' mistakes: exit code 2, one sentence, nothing written, whichever modules are loaded when they are made."""

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import ROOT as COMMANDS
from probe_results import write_probes
from run_folders import write_run

from mtlprune.cli.console import exit_code, sentence
from mtlprune.corpora.store import load_corpus, save_corpus
from mtlprune.errors import MtlpruneError
from mtlprune.runs.folder import RunFolder

ROOT = Path(__file__).parents[2]


def test_every_kind_of_mistake_has_its_code_and_does_not_steer_the_terminal():
    assert exit_code(MtlpruneError("x")) == 2 and exit_code(OSError(2, "not there", "f")) == 2
    mapped = "unable to mmap 9 bytes from file <x>: Cannot allocate memory (12)"
    for error in (MemoryError(), RuntimeError(mapped), ImportError("x.so: failed to map segment from shared object")):
        assert exit_code(error) == 2 and "memory ran out" in sentence(error)
    assert exit_code(RuntimeError("a defect")) is None
    assert sentence(MtlpruneError("label \x1b[31m red\x07, ä")) == "label \\x1b[31m red\\x07, ä"


REFUSALS = [
    (errno.ENOSPC, "free some disk space", "Error while serializing: I/O error: No space left on device (os error 28)"),
    (errno.EFBIG, "ulimit -f", "File too large (os error 27)"),
    (errno.EMFILE, "ulimit -n", 'on an `Err` value: Os { code: 24, kind: Uncategorized, message: "Too many" }'),
    (errno.EMFILE, "ulimit -n", "Failed to retrieve conversion result: oneshot canceled"),
    (errno.EAGAIN, "ulimit -u", "can't start new thread"),
    (errno.EIO, "Input/output", "unable to mmap 9 bytes from file <some/file (5)>: Input/output error (5)"),
    (errno.EACCES, "change the permissions", "Permission denied (os error 13)"),
]


class Panic(BaseException):
    """As Rust's are for Python."""


@pytest.mark.parametrize(("number", "advice", "text"), REFUSALS)
def test_what_the_system_refuses_is_a_sentence_in_every_command(mtlprune, monkeypatch, number, advice, text):
    """However libraries put it, or what they wrap it in; a defect that follows from handling it stays one."""
    whole = OSError(number, os.strerror(number), "some/file")
    for error in (whole, RuntimeError(text), Panic(text)):
        for wrapped in (error, KeyError("x")):
            wrapped.__cause__ = None if wrapped is error else error

            def refused(*_: Any, wrapped: BaseException = wrapped, **__: Any) -> None:
                raise wrapped

            monkeypatch.setattr("mtlprune.cli.CommandGroup.get_command", refused)
            answer = mtlprune("table")
            answer.refuses(os.strerror(number))
            assert advice in answer.err and ("some/file: " in answer.err) == (error is whole)
    defect = KeyError("x")
    defect.__context__ = whole
    assert exit_code(defect) is exit_code(RuntimeError("expected: a shape (2)")) is None


def test_the_help_names_every_command_and_all_can_be_loaded(mtlprune):
    shown = mtlprune("--help").out
    assert shown.index("Data:") < shown.index("bench") < shown.index("Publish:") < shown.index("mtlprune quickstart")
    further = mtlprune("analyze", "--help").out
    assert further.index("probes") < further.index("dissection")
    described = mtlprune("analyze", "smoothing", "--help").done().out
    mtlprune("analyze", "smoothing").refuses("found none; `mtlprune analyze smoothing --help` describes the analysis")
    assert "smoothing-layers.parquet: " in described
    assert "closing=64" in described and "--claims" in described and "--sentences" in described
    assert "--sentences" not in mtlprune("analyze", "probes", "--help").done().out
    helps = [mtlprune(*words, "--help").done().out for words in (("analyze",), ("evaluate",), ("report",))]
    assert all("--corpus DIR" in text and "--data" not in text for text in helps)
    for name in COMMANDS.list_commands(None):
        assert name in shown and COMMANDS.get_command(None, name).name == name
    assert "Did you mean 'table'?" in mtlprune("tabel").err
    command = [sys.executable, "-m", "mtlprune", "analyze", "head", "minilm", "layer=0", "head=1"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 2 and "greater than or equal to 1" in answer.stderr and answer.stderr.count("\n") == 1


BEFORE_TORCH = [
    ("table RUN --majority WRONG", {}, "WRONG"),
    ("analyze smoothing minilm --corpus WRONG --out WRONG/out", {}, "WRONG"),
    ("evaluate RUN --split dev", {}, "WRONG"),
    ("export RUN --remove --out NEW", {}, "RUN"),  # without gates
    ("export RUN --remove --out NEW", {"weights": "removed"}, "RUN"),
]


@pytest.mark.parametrize(("command", "manifest", "named"), BEFORE_TORCH)
def test_a_path_that_is_wrong_or_no_use_is_said_before_torch_is_there(command, manifest, named, apart, tmp_path):
    paths = {"RUN": tmp_path / "run", "WRONG": tmp_path / "nowhere", "NEW": tmp_path / "new"}
    run = RunFolder(paths["RUN"])
    run.write_config({"data": {"path": str(paths["WRONG"])}, "tasks": ["pos"]})
    run.write_json("manifest.json", {"data": {"fingerprint": ""}} | manifest)
    for name, path in paths.items():
        command = command.replace(name, str(path))
    code, out, error, loaded = apart(*command.split())
    assert (code, out, error.count("\n")) == (2, "", 1) and str(paths[named]) in error
    assert not {"torch", "transformers", "datasets"} & loaded


@pytest.mark.parametrize("size", ["2", "x"])
def test_a_launcher_of_several_processes_is_refused(mtlprune, lab, tmp_path, monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    refused = mtlprune("train", lab.config, "--out", tmp_path / "run")
    refused.refuses(f"WORLD_SIZE: expected 1, found '{size}': mtlprune")
    assert not (tmp_path / "run" / "config.yaml").exists()
    (tmp_path / "s.yaml").write_text(f"base: {lab.config}\ngrid: {{tasks: [pos]}}\n")
    for command in (("sweep", tmp_path / "s.yaml"), ("quickstart", "--jobs", 1)):
        mtlprune(*command, "--out", tmp_path / "new").refuses("WORLD_SIZE: expected 1")
        assert not (tmp_path / "new").exists()


PLAN = "train tiny.yaml --dry-run"
STABLE = f"{PLAN} pruning.method=stable pruning.keep=2"
HEAD = "analyze head encoder layer=1 head=1 'text=a b c'"
ANALYSES = ("smoothing", "degeneration", "dissection", "syntax", "gradients")
MISTAKES: list[tuple[str, str]] = [
    ("claims gates --out thesis.txt --permutations 0", "is a file; name a folder"),
    ("claims gates --out new --format gif", "--format: expected some of png, svg, pdf, found 'gif'"),
    ("analyze heads nowhere --out new", "nowhere"),
    ("analyze breaks x", "expected show or one of probes, "),
    ("analyze treatments run --corpus corpus", "--corpus has no effect"),
    ("analyze smoothing encoder clos=3 --corpus corpus", "unknown key clos (did you mean 'closing'?)"),
    ("analyze smoothing encoder", "expected --corpus DIR"),
    ("analyze cross --corpus corpus --out new", "found none; `mtlprune analyze cross --help` describes"),
    ("train minilm-ewt5 --out new", "or build the corpus with python data_scripts/ewt5.py --out data/ewt5"),
    ("compare nowhere", "or build the corpus with mtlprune data build FILES --out nowhere"),
    ("quickstart --seeds 1,2", "quickstart has one seed; `mtlprune compare quickstart/corpus --seeds 1,2,3`"),
    ("analyze probe encoder", "found 'probe' (did you mean 'probes'?)"),
    ("analyze probes encoder layers=pos,chess --corpus corpus --out new", "found 'chess'"),
    ("evaluate run --data nowhere", "nowhere: expected a corpus"),
    ("analyze smoothing encoder --corpus corpus --corpus corpus", "expected corpora of different names, found "),
    ("analyze syntax encoder --corpus corpus --corpus corpus", "analyze syntax: expected one --corpus, found 2"),
    ("analyze show probes five", "expected one folder"),
    (HEAD.replace("layer=1", "layer=3"), "has 2 layers of 4 heads, so there is no head 1 in layer 3"),
    (HEAD.replace("layer=1 head=1", "head=3-1"), "has 2 layers of 4 heads, so there is no head 1 in layer 3"),
    ("analyze head encoder head=1-0", "head: input should be greater than or equal to 1"),
    ("analyze head encoder head=1-2 --out new", "nothing to show of head 1-2. No sentences: name a corpus"),
    (f"{HEAD} probes=five", "2 × 5 heads"),
    ("analyze exchange pos --corpus corpus --split dev", "--split has no effect on this analysis; leave it out"),
    ("analyze exchange pos --corpus corpus --sentences 9", "--sentences has no effect on this analysis; leave it out"),
    (f"{HEAD} probes=tuned", "holds no results of pretrained, seed 0 (there: DEP (seed 3))"),
    (HEAD.replace("encoder", "own"), "expected gates_of=pos or ner, found none"),
    ("analyze probes none --corpus corpus --out new", "none is also not a run"),
    ("analyze probes encoder roberta --corpus corpus --out new", "heads of different encoders do not correspond"),
    ("analyze probes roberta pos --corpus corpus --out new", "heads of different encoders do not correspond"),
    ("analyze show run --out new", "run holds no result"),
    ("train small.yaml syntax.strength=1 syntax.heads=3-1 --out new", "no head 3-1"),
    ("report pretraining --out new", "damaged: pretraining/config.yaml"),
    ("train small.yaml model.positions=8 --out new", "fits into 8 tokens"),
    ("train small.yaml model.layer=2 --out new", "unknown key model.layer (did you mean 'layers'?); expected one of "),
    (f"{PLAN} syntax.release=5", "release has no effect with strength: 0"),
    ("evaluate run --split tset", "expected one of the splits train, dev, test, found 'tset'"),
    ("evaluate run --split test --best sentiment", "expected a task with a best epoch, found 'sentiment'"),
    ("predict run empty.txt", "empty.txt: expected sentences, found none"),
    ("predict run good.conllu --out good.conllu", "expected another file than the one that is read"),
    ("export masked --remove --out new --keep 9", "--keep 9: expected at most 8 heads"),
    ("export masked --remove --out new --task pos", "found one gate set that all tasks share; leave --task out"),
    ("export masked --remove --out corpus", "is not empty; name a new folder"),
    ("export own --remove --out new", "give --task with one of pos, ner"),
    ("export pos --remove --out new", "is a run without gates"),
    ("report run --analyses . --out new", "holds no result"),
    ("export pos --keep 3 --out new", "--keep has an effect only with --remove"),
    ("table 'ru?' 'nor*' --split dev", "no run is found at nor*"),
    *(
        (f"{words} few.txt --split dev", "few.txt: expected a run folder, found a file; name the folder of the run")
        for words in ("table", "evaluate", "analyze treatments", "analyze scarcity")
    ),
    ("analyze head few.txt layer=1 head=1", "the encoder 'few.txt' is a file; give a folder with config.json"),
    ("analyze head hollow layer=1 head=1", "the encoder 'hollow' is a folder without config.json; give"),
    (f"{PLAN} encoder.name=hollow", "the encoder 'hollow' is a folder without config.json; give a folder with"),
    ("train nowhere.yaml", "expected a file or a preset, found neither"),
    ("train tiny.yaml data.path=nowhere train.epoch=3 --out new", "unknown key train.epoch (did you mean 'epochs'?)"),
    ("bench tiny.yaml data.path=nowhere train.epochs=no", "train.epochs"),
    ("table run --majority bare", "give --majority the corpus of the runs"),
    ("sweep sweep.yaml --out new --only nine", "has no cell nine"),
    ("train tiny.yaml train.device=cuda:77", "the device cuda:77 (train.device, --device) cannot"),
    ("train tiny.yaml --out thesis.yaml", "thesis.yaml"),
    ("train tiny.yaml train.seed=1 --seeds 1 --out new", "give only one of the two"),
    ("train tiny.yaml pruning.method=random pruning.keep=9 --out new", "at most the encoder's 8 heads (2 layers × 4)"),
    (f"{PLAN} encoder.name=family encoder.random=true pruning=gates", "'convbert'"),
    (f"{PLAN} train.freeze=decoders", "give a finished run as train.start"),
    ("train tiny.yaml train.start=unfinished --out new", "train.start: expected a finished run"),
    (f"{PLAN} train.start=weightless", "train.start: the weights of"),
    (f"{PLAN} train.start=start-roberta", "train.start: expected a run with encoder.name"),
    (f"{PLAN} train.start=wide", "dep has other settings in wide: arc_size 99 there, 16 here"),
    (f"{PLAN} train.start=labels", "has tags of pos that labels never learnt: "),
    (f"{PLAN} pruning.method=importance pruning.keep=2", "importance_of: expected a run folder whose loss"),
    (f"{STABLE[:-1]}4 pruning.importance_of=run", "which is half of 4 or more; keep 1 to 3 heads"),
    (f"{STABLE} pruning.importance_of=run pruning.importance_sentences=1", "expected two training sentences or more"),
    (f"{STABLE} pruning.importance_of=run pruning.halves=7", "multiple of 2"),
    (f"{PLAN} pruning.method=random pruning.keep=2 pruning.layers_like=own", "both set the number of heads"),
    ("train tiny.yaml train.start=new --out new", "train.start: expected another run than the one to be trained"),
    ("data build corpus corpus --out new", "found corpus, corpus; name each corpus once"),
    ("data build corpus . --out new", "expected a corpus made by 'mtlprune data build'"),
    ("data build grammar --out corpus", "expected a new or empty folder, found a folder with"),
    ("data build grammar --out few.txt", "expected a new or empty folder, found a file"),
    ("data build t.conllu --out new", "t.conllu, line 1"),
    ("data check few.txt", "found a file"),
    ("data build grammar --out gates --overwrite", "because only corpora are overwritten"),
    ("data show corpus nobody", "expected the id or position of a sentence, found 'nobody'; ids look like"),
    ("data show corpus test:999", "and positions are train:1 to train:"),
    ("table corpus", "corpus: expected a run folder, found a corpus; name a run trained on this corpus"),
    ("claims seeds --out new", "no run with gates.jsonl is found at seeds"),
    ("analyze show nowhere", "nowhere: expected a folder of results, found no such folder; check the path"),
    ("train tiny.yaml encoder_rate=1e-4 --out new", "unknown key encoder_rate (did you mean train.encoder_rate?)"),
    ("data build conllu --out new", "expected files, found none; name files with --train, --dev and --test"),
    ("data build conllu good.conllu --train good.conllu --out new", "good.conllu together with --train; put"),
    ("data build conllu --train good.conllu --pos tag --out new", "from the column xpos or upos, or from a feature"),
    ("data build conllu --train good.conllu --dev empty.txt --out new", "empty.txt: expected sentences, found none"),
    ("data build few.txt --pos xpos --out new", "--pos has no effect with the format columns; leave it out"),
    ("data build jsonl --train empty.jsonl --out new", "empty.jsonl, line 2: sentence 't', words: word 1 is ''"),
    *((f"analyze {name} encoder --split nowhere --corpus corpus --out new", "found 'nowhere'") for name in ANALYSES),
    *((f"analyze {name} none --corpus corpus --out new", "none is also not a run") for name in ANALYSES),
    ("analyze dissection encoder tasks=pos,chess --corpus corpus --out new", "found chess"),
    ("analyze dissection encoder pos tasks=mlm --corpus corpus --out new", "without a head that predicts masked words"),
    ("analyze dissection encoder tasks=none epochs=3 --corpus corpus --out new", "epochs has no effect with"),
    ("analyze dissection encoder tasks=mlm hidden=9 --corpus corpus --out new", "hidden has no effect with"),
    ("analyze syntax encoder --corpus bare --out new", "sentences has one; give a corpus with the layer dep"),
    ("analyze cross pos --split nowhere --corpus corpus --out new", "--claims"),
    ("analyze show {root}/results/syntax/gates --width 2 --out new", "give a larger width"),
    *(
        (words, "study/tiny is a run of a study, without weights")
        for words in (
            *("evaluate study/tiny --split test", "predict study/tiny t.conllu"),
            "export study/tiny --remove --out new",
            *("analyze head study/tiny layer=1 head=1", "analyze probes study/tiny --corpus corpus --out new"),
            "analyze smoothing study/tiny --corpus corpus --out new",
            "train tiny.yaml train.start=study/tiny --out new",
            "train tiny.yaml pruning.method=importance pruning.keep=2 pruning.importance_of=study/tiny --out new",
            "train tiny.yaml --out study/tiny",
        )
    ),
]  # fmt: skip
FILES = {
    "thesis.txt": "years of work",
    "thesis.yaml": "name: [",
    "t.conllu": "The dog sees a man .\n",
    "good.conllu": "1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n",
    "empty.txt": " \n\n",
    "pretraining/config.yaml": "name: x\n",
    "pretraining/curves.jsonl": "[]\n",
    "few.txt": "a O\n",
    "empty.jsonl": '{"id": "s", "words": ["a"]}\n{"id": "t", "words": ["a", ""]}\n',
}


def changed(source: Path, out: Path, file: str, change: Callable[[Any], object]) -> None:
    shutil.copytree(source, out)
    tree = (yaml.safe_load if file.endswith("yaml") else json.loads)((out / file).read_text())
    change(tree)
    (out / file).write_text(json.dumps(tree))


@pytest.fixture(scope="module")
def workplace(mtlprune, lab, trained, single, masked, own_gates, pretraining, tiny_encoder, tmp_path_factory):
    """A folder with everything that commands ask for, right and wrong."""
    root = tmp_path_factory.mktemp("mistakes")
    (root / "hollow").mkdir()
    (root / "seeds").mkdir()
    (root / "seeds" / "seed-1").symlink_to(trained)
    links = {"tiny.yaml": lab.config, "corpus": lab.corpus, "run": trained, "pos": single, "masked": masked}
    links |= {"own": own_gates, "encoder": tiny_encoder("bert"), "small.yaml": pretraining}
    links |= {"roberta": tiny_encoder("roberta")}
    for name, target in links.items():
        (root / name).symlink_to(target)
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "sweep.yaml").write_text(f"base: {lab.config}\ngrid: {{seed: [1]}}\n")
    write_run(root / "gates", ["pos"], [[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]])
    pretrained = (("pretrained", 0),)
    write_probes(root / "five", pretrained, {"dep": ("det",)}, (2, 5))
    write_probes(root / "tuned", (("DEP", 3),), {"dep": ("det",)}, (2, 4))
    write_probes(root / "probes", pretrained, {"ner": ("PERSON", "ORG")}, (2, 4))
    corpus = load_corpus(lab.corpus)
    content = {name: [sentence.bare() for sentence in corpus[name]] for name in ("train", "dev", "test")}
    save_corpus(content, root / "bare", name="bare", licence="Apache-2.0", sources={})
    roberta = str(tiny_encoder("roberta"))
    changed(trained, root / "unfinished", "manifest.json", lambda tree: tree.pop("finished"))
    changed(trained, root / "start-roberta", "config.yaml", lambda tree: tree["encoder"].update(name=roberta))
    changed(trained, root / "wide", "config.yaml", lambda tree: tree["decoders"]["dep"].update(arc_size=99))
    changed(trained, root / "labels", "vocabulary.json", lambda tree: tree["pos"]["tags"].pop())
    changed(tiny_encoder("bert"), root / "family", "config.json", lambda tree: tree.update(model_type="convbert"))
    shutil.copytree(trained, root / "weightless", ignore=lambda *_: ["weights"])
    mtlprune("runs", "pack", trained, "--out", root / "study").done()
    return root


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda text: text[:60])
def test_a_mistake_is_one_sentence_and_nothing_is_written(words, message, mtlprune, workplace, monkeypatch):
    def standing() -> dict[str, int]:
        walked = os.walk(workplace, followlinks=True)
        return {f"{at}/{name}": Path(at, name).stat().st_size for at, _, names in walked for name in names}

    monkeypatch.chdir(workplace)
    before = standing()
    answer = mtlprune(*shlex.split(words.format(root=ROOT)))
    assert (answer.code, message in answer.err, "Traceback" in answer.err) == (2, True, False), answer
    assert answer.out == "" or "train" in words.split()[0], answer.out  # training says first what it is about to do
    *notes, last = answer.err.splitlines()
    assert not message or (last.startswith("mtlprune: ") and len(notes) < 3 and len(last) < 1500), answer
    assert standing() == before
