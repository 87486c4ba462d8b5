"""Python environments of the clients: one for each file in requirements/, beside the one that has torch, outside of the checkout."""
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig

REQUIREMENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements")
CLIENTS = sorted(name.removesuffix(".txt") for name in os.listdir(REQUIREMENTS))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "shoal")


class NotInstalled(Exception):
    """pip could not install a client, with the end of its output."""


def _make(folder, requirements):
    """The new environment also has the packages of this one, with torch. The requirements are complete, so pip installs no other torch."""
    shutil.rmtree(folder, ignore_errors=True)
    python = os.path.join(folder, "bin/python")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    there = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True,
                           check=True).stdout.strip()
    with open(os.path.join(there, "torch.pth"), "w", encoding="utf-8") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", requirements]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise NotInstalled(done.stdout[-2000:])


def python_of(client):
    """The Python that has this client. Makes its environment again if the requirements or this environment have changed."""
    requirements = os.path.join(REQUIREMENTS, client + ".txt")
    folder = os.path.join(CACHE, "venv-client-" + client)
    with open(requirements, "rb") as file:
        wanted = hashlib.sha256(file.read() + sys.prefix.encode()).hexdigest()
    os.makedirs(CACHE, exist_ok=True)
    stamp = os.path.join(folder, "made-from")
    with open(folder + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two calls at once
        if not os.path.exists(stamp) or open(stamp, encoding="ascii").read() != wanted:
            _make(folder, requirements)
            with open(stamp, "w", encoding="ascii") as file:
                file.write(wanted)
    return os.path.join(folder, "bin/python")
