"""Two hosts: two network namespaces joined by a veth pair, torchrun on each; one host is killed and started again.

    python tests/ranks/hosts.py FOLDER        # as root, with iproute2

Prints one JSON object: the parameters' digests of a run that was left alone and of one whose second host was killed
in the middle (torchrun, its worker and all) and started anew, and what `verify` says of it.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dpsrm.runs import verify
from dpsrm.runs.ledger import read_ledger

NAMES = ("dpsrm-a", "dpsrm-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
"""Only inside the two namespaces."""
PORT = 29417
SECONDS = 900
DOWN = 25
"""Seconds for which the killed host is away: torchrun counts it as gone after 15."""


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def up():
    """Two namespaces, and a wire between them."""
    down()
    for name in NAMES:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("link", "add", "dpsrm0", "netns", NAMES[0], "type", "veth", "peer", "name", "dpsrm0", "netns", NAMES[1])
    for name, address in zip(NAMES, ADDRESSES, strict=True):
        ip("-n", name, "addr", "add", f"{address}/24", "dev", "dpsrm0")
        ip("-n", name, "link", "set", "dpsrm0", "up")


def down():
    """Take them away, if they are there."""
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def host(number, config, out, log):
    """torchrun on one of the hosts: one rank."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv-id", out.name]
    conf = ["--rdzv-conf", f"is_host={int(number == 0)},join_timeout=600", "--local-addr", ADDRESSES[number]]
    train = ["--max-restarts", "3", "-m", "dpsrm", "train", str(config), "--out", str(out)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "dpsrm0", "OMP_NUM_THREADS": "1"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # otherwise a host that comes back is never told where to
    return subprocess.Popen(
        ["ip", "netns", "exec", NAMES[number], *torchrun, *meet, *conf, *train],
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def charged(out):
    """How many releases the ledger charges by now."""
    try:
        return read_ledger(out / "ledger.jsonl", torn=True).spending.releases
    except Exception:
        return 0


def kill(process):
    """End a host: torchrun and its worker, which has a session of its own."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
    for pid in [*map(int, children.split()), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def train(config, out, log, *, after=None):
    """A training on both hosts; the second is killed once `after` releases are charged, and started again."""
    hosts = [host(number, config, out, log) for number in (0, 1)]
    end = time.monotonic() + SECONDS
    while any(each.poll() is None for each in hosts) and time.monotonic() < end:
        if after is not None and charged(out) >= after:
            kill(hosts[1])
            time.sleep(DOWN)
            hosts[1], after = host(1, config, out, log), None
        time.sleep(0.05)
    for each in hosts:
        if each.poll() is None:
            kill(each)
    return [each.returncode for each in hosts]


def main(folder):
    rows = [
        "age,job,ill",
        *(f"{18 + i % 70},{'nurse' if i % 3 else 'clerk'},{'yes' if i % 2 else 'no'}" for i in range(600)),
    ]
    (folder / "x.csv").write_text("\n".join(rows) + "\n")
    (folder / "c.toml").write_text(
        f'seed = 3\n[data]\npath = "{folder}/x.csv"\ntarget = "ill"\n[privacy]\nepsilon = 1.0\ndelta = 1e-4\n'
        "[training]\nsteps = 1200\nbatch = 30\n[performance]\ncheckpoint_steps = 50\n"
    )
    up()
    try:
        with (folder / "log").open("w") as log:
            codes = {
                "whole": train(folder / "c.toml", folder / "whole", log),
                "killed": train(folder / "c.toml", folder / "killed", log, after=300),
            }
    finally:
        down()
    digests = {name: hashlib.sha256((folder / name / "model.safetensors").read_bytes()).hexdigest() for name in codes}
    restarts = (folder / "log").read_text().count("restart")
    same = digests["whole"] == digests["killed"]
    told = {"same": same, "verified": verify(folder / "killed").ok, "codes": codes, "restarts": restarts}
    sys.stdout.write(json.dumps({**told, "digests": digests}) + "\n")
    sys.exit(not (same and told["verified"]))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]).resolve())
