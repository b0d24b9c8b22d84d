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
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
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
ReturnToService=2
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

    def idle() -> bool:
        command = [str(found("scontrol")), "-o", "show", "nodes"]
        return " State=IDLE " in subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    with contextlib.ExitStack() as stack:

        def start(ready: Callable[[], bool], program: str, *arguments: str) -> None:
            out = stack.enter_context((folder / f"{program}.out").open("wb"))
            command = [str(found(program)), *arguments]
            process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            stack.callback(process.kill)
            until = time.monotonic() + 60
            while not ready():
                if time.monotonic() > until:
                    raise NoSlurm(f"{program}: {(folder / f'{program}.out').read_text(errors='replace')[-300:]}")
                time.sleep(0.2)

        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        munge = [f"--{name}={folder / f'munge.{name}'}" for name in names]
        start((folder / "munge.socket").exists, "munged", "--foreground", "--force", *munge)
        start(lambda: True, "slurmctld", "-D", "-i", "-f", str(conf))
        start(idle, "slurmd", "-D", "-f", str(conf))
        yield conf


def _configure(folder: Path) -> Path:
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge.key-file").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key-file").chmod(0o400)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    known = {"folder": folder, "host": socket.gethostname().partition(".")[0], "user": getpass.getuser()}
    plugins = next(Path("/usr/lib").glob("*/slurm-wlm"), Path("/usr/lib/slurm"))
    (folder / "slurm.conf").write_text(CONF.format(plugins=plugins, ports=ports, cores=os.cpu_count(), **known))
    return folder / "slurm.conf"
