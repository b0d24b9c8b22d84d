"""What reads settings and records runs where torch cannot be imported; only what computes with an encoder needs it."""

import os
import subprocess
import sys
from pathlib import Path

from report_runs import gold_sentences, write_study_run

from mtlprune.corpora.store import load_corpus, save_corpus

ROOT = Path(__file__).parents[2]
REFUSING = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "supar"):
            raise ImportError(f"{name} is blocked by this test")

sys.meta_path.insert(0, NoTorch())
from mtlprune.cli import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["mtlprune", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
"""


def test_commands_on_committed_records_need_no_torch(tmp_path):
    gold = gold_sentences()
    save_corpus({"test": gold}, tmp_path / "gold", name="x", licence="none", sources={})
    run = write_study_run(tmp_path / "run", ("pos",), 1, False, 0.9, gold)
    data = {"fingerprint": load_corpus(tmp_path / "gold").fingerprint, "name": "x"}
    run.write_json("manifest.json", run.read_manifest() | {"data": data})
    commands = f"""table results/fusion/records --split dev --resamples 20
claims results/ewt5-minilm/records:gates-pos-* --permutations 20
report results/fusion/records --resamples 20 --out {tmp_path}/page.html
sweep experiments/fusion/sweep.yaml --dry-run --out {tmp_path}/sweep
plan experiments/ewt5-minilm/sweep.yaml results/ewt5-minilm/records:none-???-?,none-mtl5-?
runs pack {run.path} --out {tmp_path}/study --corpus {tmp_path}/gold"""
    done = subprocess.run(
        [sys.executable, "-c", REFUSING],
        input=commands,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "fusion" in done.stdout and (tmp_path / "page.html").stat().st_size > 10_000
    assert (tmp_path / "study/study.json").is_file()
