"""A tiny encoder and corpus, files of sweeps on them, and a Slurm of one node."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny import make_lab


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Path:
    """A configuration of seconds; do not write beside it."""
    return make_lab(tmp_path_factory.mktemp("base"), tiny_encoder("bert"), (16, 6, 6), threads=None, tasks=["pos"])


@pytest.fixture
def specification(base: Path, tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(f"base: {base}\n{text}")
        return path

    return write


CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From Debian's packages (slurm-wlm, munge), with its own key and folder; skipped where it cannot be started."""
    pytest.importorskip("submitit", reason="needs the extra slurm")
    monkeypatch.setenv("PATH", "/usr/sbin", prepend=os.pathsep)  # daemons are not on everybody's
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]:
        pytest.skip(f"{', '.join(missing)} missing; apt-get install slurm-wlm munge")
    folder, conf, key = tmp_path / "slurm", tmp_path / "slurm/slurm.conf", tmp_path / "slurm/munge.key-file"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host, user, cores = socket.gethostname().partition(".")[0], getpass.getuser(), os.cpu_count()
    conf.write_text(CONF.format(folder=folder, host=host, user=user, cores=cores))
    monkeypatch.setenv("SLURM_CONF", str(conf))

    def idle() -> bool:
        return b" State=IDLE " in subprocess.run(["scontrol", "-o", "show", "nodes"], capture_output=True).stdout

    with contextlib.ExitStack() as stack:

        def start(ready: Callable[[], bool], program: str, *arguments: str) -> None:
            out = stack.enter_context((folder / f"{program}.out").open("wb"))
            process = stack.enter_context(subprocess.Popen([program, *arguments], stdout=out, stderr=out))
            stack.callback(process.kill)
            until = time.monotonic() + 60
            while not ready():
                if time.monotonic() > until:
                    told = (folder / f"{program}.out").read_text(errors="replace")[-300:]
                    pytest.skip(f"Slurm cannot be started here: {program}: {told}")
                time.sleep(0.2)

        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        munge = [f"--{name}={folder / f'munge.{name}'}" for name in names]
        start((folder / "munge.socket").exists, "munged", "--foreground", "--force", *munge)
        start(lambda: True, "slurmctld", "-D", "-i")
        start(idle, "slurmd", "-D")
        yield
