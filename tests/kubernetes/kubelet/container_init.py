"""Start one container's command in separate namespaces. Run as a script: `python -IS container_init.py SPEC.json`.

Place: container.py starts it. It enters the pod's network namespace, makes mount, process and host-name namespaces,
mounts the overlay and the volumes, and starts the command as process 1 of the container.
Invariant: the command gets each SIGTERM that this process gets; it is killed if this process ends; this process
exits with the command's status, 128 + n for signal n.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(result, f"mount {source} {target}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Bind a file or folder; the place is made in the overlay."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            open(target, "a").close()
    mount(source, target, "", MS_BIND | MS_REC)
    if read_only:
        mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY)


def make_root(spec: dict[str, Any]) -> None:
    """The container's view of the files: this machine's, below an overlay, with its volumes."""
    mount("", "/", "", MS_REC | MS_PRIVATE)
    root = spec["root"]
    for volume in spec["binds"]:
        volume["target"] = os.path.realpath(volume["target"])  # /var/run is a link to /run, here and below the overlay
    mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={spec['upper']},workdir={spec['work']}")
    for folder in spec["open_folders"]:  # so that other accounts reach the virtual environment
        os.chmod(root + folder, 0o755)
    for folder in spec["masked"]:
        mount("tmpfs", root + folder, "tmpfs", MS_NOSUID, "mode=1777")
    mount("/dev", f"{root}/dev", "", MS_BIND | MS_REC)
    for volume in spec["binds"]:
        bind(volume["source"], root + volume["target"], read_only=volume["read_only"])
    mount("proc", f"{root}/proc", "proc", 0)
    os.makedirs(root + spec["folder"], exist_ok=True)  # an image has its working folder
    if spec["read_only_root"]:
        for folder in ("", *spec["masked"]):
            if folder not in {volume["target"] for volume in spec["binds"]}:
                mount("", root + folder, "", MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chroot(root)
    os.chdir(spec["folder"])


def drop_rights(spec: dict[str, Any]) -> None:
    """Change to the container's user; with the capabilities of that user."""
    os.setgroups(spec["groups"])
    os.setgid(spec["gid"])
    os.setuid(spec["uid"])
    if spec["no_new_privileges"]:
        _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def main() -> int:
    """The exit status of the command; 128 if it cannot be started."""
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))  # until the command runs
    with open(spec["network"]) as network:
        _checked(_libc.setns(network.fileno(), CLONE_NEWNET), "setns")
    _checked(_libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID), "unshare")
    _checked(_libc.sethostname(spec["host"].encode(), len(spec["host"])), "sethostname")
    child = os.fork()
    if child == 0:
        try:
            make_root(spec)
            drop_rights(spec)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if not stopped:
                os.execvpe(spec["command"][0], spec["command"], spec["environment"])
        except OSError as error:
            print(f"cannot start the container: {error}", file=sys.stderr, flush=True)
        os._exit(128)
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    if stopped:
        os.kill(child, signal.SIGTERM)
    with open(spec["pid_file"], "w") as file:
        file.write(str(child))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
