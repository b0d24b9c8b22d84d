"""A Slurm of one node, from Debian's packages (slurm-wlm, munge), with its own key, ports and folder."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
PATIENCE = 60.0

CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=60
KillWait=2
PluginDir={plugins}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class NoSlurm(Exception):
    """Why Slurm cannot be started here."""


def found(program: str) -> str | None:
    """Where a program is; daemons are not on everybody's path."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Path]:
    """Start it; gives its configuration, for SLURM_CONF. Raises NoSlurm."""
    missing = [program for program in PROGRAMS if not found(program)]
    if missing:
        raise NoSlurm(f"{', '.join(missing)} missing; apt-get install slurm-wlm munge")
    conf = _configure(folder)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    with contextlib.ExitStack() as daemons:
        munge = [f"--{name}={folder / f'munge.{name}'}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        key = f"--key-file={folder / 'munge.key'}"
        daemons.enter_context(_daemon(folder, "munged", ["--foreground", "--force", key, *munge], environment))
        _until((folder / "munge.socket").exists, "munged does not answer", folder / "munged.out")
        daemons.enter_context(_daemon(folder, "slurmctld", ["-D", "-i", "-f", str(conf)], environment))
        daemons.enter_context(_daemon(folder, "slurmd", ["-D", "-f", str(conf)], environment))
        _until(lambda: _idle(environment), "the node does not become idle", folder / "slurmd.out")
        yield conf


def _configure(folder: Path) -> Path:
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    plugins = next(Path("/usr/lib").glob("*/slurm-wlm"), Path("/usr/lib/slurm"))
    conf = folder / "slurm.conf"
    host, cores = socket.gethostname().partition(".")[0], os.cpu_count()
    known = {"folder": folder, "host": host, "user": getpass.getuser(), "ports": ports, "cores": cores}
    conf.write_text(CONF.format(plugins=plugins, **known))
    return conf


@contextlib.contextmanager
def _daemon(folder: Path, program: str, arguments: list[str], environment: dict[str, str]) -> Iterator[None]:
    with (folder / f"{program}.out").open("wb") as out:
        process = subprocess.Popen([str(found(program)), *arguments], env=environment, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _idle(environment: dict[str, str]) -> bool:
    shown = subprocess.run(
        [str(found("scontrol")), "-o", "show", "nodes"], env=environment, capture_output=True, text=True
    )
    return " State=IDLE " in shown.stdout


def _until(true: object, otherwise: str, log: Path) -> None:
    assert callable(true)
    until = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > until:
            raise NoSlurm(f"{otherwise}: {log.read_text(errors='replace')[-300:]}")
        time.sleep(0.2)
