"""What a process of the sandbox does to itself before a program runs: a small world of its own, and limits.

Every measure is tried; what one protects is noted when it held, and why not when the system refused it. Several
measures protect the same thing on purpose, because containers, kernels and users differ in what they allow.
Standard library only: this runs inside the sandbox, before `sinkscope` could be seen from there.
"""

import contextlib
import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Iterable

from sinkscope.evaluation.sandbox.syscall_filter import install_filter

NOBODY = 65534
FILE_BYTES = 1 << 20  # of one file, the program's output among them
FOLDER_SIZE = "16m"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

PROTECTIONS = {
    "files": "the program can read, and perhaps write, files outside its own folder",
    "network": "the program can open sockets",
    "processes": "the program can start other processes",
    "signals": "the program can send signals to other processes",
    "user": "the program runs with your own user's rights",
    "memory": "the program's memory is not limited",
    "time": "the program's CPU time is not limited, only its time by the clock",
    "output": "the size of the program's output is not limited",
}

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_SPACES = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_LOCKED_FLAGS = 1 | 2 | 4 | 8 | 1024 | 2048  # what a remount must not take away: ro, nosuid, nodev, noexec, noatime, nodiratime


class Isolation:
    """What has been enforced so far, and what was refused."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.without = frozenset(without)
        self.protected: set[str] = set()
        self.refused: dict[str, str] = {}

    def attempt(self, name: str, measure: Callable[..., None], *arguments: object, protects: Iterable[str] = ()) -> bool:
        """Tries a measure and notes what came of it."""
        try:
            if name in self.without:
                raise OSError(errno.ECANCELED, "switched off")
            measure(*arguments)
        except (OSError, ValueError, AttributeError) as error:  # the last: a function this system does not have
            self.refused[name] = getattr(error, "strerror", None) or str(error)
            return False
        self.protected.update(protects)
        return True

    def not_enforced(self) -> list[str]:
        """One line for each protection that no measure gave, with what the system said."""
        why = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        return [f"{name}: {what} ({why})" for name, what in PROTECTIONS.items() if name not in self.protected]

    def enter_world(self, box: str) -> None:
        """Own namespaces and, in them, a file system that holds Python and an empty folder; for one process, before it forks."""
        outside = mount_namespace()
        if self.attempt("namespaces", namespaces, protects=("network", "signals")):
            self.attempt("own root", own_root, box, outside, protects=("files",))
        if "files" not in self.protected:
            os.chdir(box)

    def give_up_rights(self) -> None:
        """Another user where this is root, no capabilities, nothing to gain from setuid programs, no peeking from siblings."""
        if os.geteuid() == 0:
            self.attempt("other user", other_user, "files" in self.protected, protects=("user", "signals"))
        elif "files" in self.protected:
            self.protected.add("user")  # nobody inside its namespace; outside it no file of yours is in reach
        self.attempt("no capabilities", no_capabilities)
        self.attempt("no new privileges", no_new_privileges)

    def limit(self, memory_mb: int, cpu_s: int) -> None:
        """Limits for the one process that runs the program; there is no way back from them."""
        self.attempt("memory limit", set_limit, resource.RLIMIT_AS, memory_mb << 20, protects=("memory",))
        self.attempt("time limit", set_limit, resource.RLIMIT_CPU, cpu_s, cpu_s + 1, protects=("time",))
        self.attempt("output limit", set_limit, resource.RLIMIT_FSIZE, FILE_BYTES, protects=("output",))
        # Root is exempt from the limit on processes.
        self.attempt("process limit", set_limit, resource.RLIMIT_NPROC, 1, protects=("processes",) if os.geteuid() else ())
        self.attempt("no core file", set_limit, resource.RLIMIT_CORE, 0)
        self.attempt("few open files", set_limit, resource.RLIMIT_NOFILE, 64)
        self.attempt("landlock", landlock, ".", protects=("files",))
        self.attempt("seccomp", install_filter, call_c, protects=("network", "processes", "signals"))


def die_with_parent() -> None:
    """The kernel kills this process when the one that started it is gone; only Linux can do so."""
    with contextlib.suppress(OSError):
        call_c("prctl", 1, 9, 0, 0, 0)


def namespaces() -> None:
    """Network, processes, IPC and mounts of one's own; through a user namespace where one is not root."""
    user, group = os.getuid(), os.getgid()
    try:
        call_c("unshare", _SPACES)
    except OSError:
        call_c("unshare", _SPACES | _NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def mount_namespace() -> str:
    """Which mounts this process sees; empty where the system does not say."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def own_root(box: str, outside: str) -> None:
    """A root of its own over ``box``: Python and the system's libraries to read, /tmp to write, nothing else.

    Raises:
        OSError: the system refuses, or this would change the root of everybody in the mount namespace ``outside``.
    """
    if mount_namespace() in ("", outside):
        raise OSError(errno.EPERM, "the mounts are still those of the system")
    mount(None, "/", None, _REC | _PRIVATE)
    mount("tmpfs", box, "tmpfs", _NOSUID | _NODEV, f"size={FOLDER_SIZE},mode=755")
    for folder in visible_folders():
        if os.path.islink(folder):
            os.symlink(os.readlink(folder), box + folder)
            continue
        os.makedirs(box + folder, exist_ok=True)
        try:
            mount(folder, box + folder, None, _BIND)
        except OSError:
            mount(folder, box + folder, None, _BIND | _REC)
        kept = os.statvfs(folder).f_flag & _LOCKED_FLAGS
        mount(None, box + folder, None, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV | kept)
    os.makedirs(f"{box}/dev")
    for device in DEVICES:
        with open(box + device, "w"):
            pass
        mount(device, box + device, None, _BIND)
    os.mkdir(f"{box}/tmp")
    mount("tmpfs", f"{box}/tmp", "tmpfs", _NOSUID | _NODEV, f"size={FOLDER_SIZE},mode=1777")
    mount(None, box, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(box)
    call_c("pivot_root", b".", b".")
    call_c("umount2", b".", 2)  # MNT_DETACH: the old root, which lies over the new one
    os.chdir("/tmp")


def visible_folders() -> list[str]:
    """What the program may read: this Python and the libraries its modules load; no folder lies inside another."""
    wanted = {sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__), "/usr", "/lib", "/lib64", "/nix/store"}
    present = sorted(folder for folder in wanted if os.path.isdir(folder) and folder != "/")
    return [folder for folder in present if not any(folder.startswith(other + "/") for other in present)]


def other_user(own_root: bool) -> None:
    """Root becomes nobody, unless nobody could not read Python's own modules."""
    if not own_root:
        folder = os.path.dirname(os.path.realpath(os.__file__))
        while folder != "/":
            if not os.stat(folder).st_mode & 1:
                raise OSError(errno.EACCES, f"{folder} is closed to other users, and Python lies in it")
            folder = os.path.dirname(folder)
        os.chown(".", NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def no_capabilities() -> None:
    """Every capability goes, also those of a user namespace."""
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    call_c("capset", header, ctypes.create_string_buffer(24))


def no_new_privileges() -> None:
    """No rights from setuid programs, and no look into this process for others of the same user."""
    call_c("prctl", 38, 1, 0, 0, 0)
    call_c("prctl", 4, 0, 0, 0, 0)


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """A resource limit, or the one already in force where that is lower."""
    ceiling = resource.getrlimit(kind)[1]
    hard = soft if hard is None else hard
    hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
    resource.setrlimit(kind, (min(soft, hard), hard))


def landlock(folder: str) -> None:
    """Files by the kernel's own allow-list: `visible_folders` to read, ``folder`` to change; needs no privilege."""
    version = call_c("syscall", 444, None, 0, 1)
    access = (1 << (13 + (version > 1) + (version > 2) + (version > 4))) - 1
    attributes = struct.pack("QQQ", access, 3 if version > 3 else 0, 3 if version > 5 else 0)  # files, TCP, signals and sockets outside
    rules = call_c("syscall", 444, ctypes.create_string_buffer(attributes, 24), 24, 0)
    devices = [path for path in DEVICES if os.path.exists(path)]
    read_only, device = 1 << 2 | 1 << 3, 1 << 1 | 1 << 2
    for path, allowed in [(folder, access), *((path, read_only) for path in visible_folders()), *((path, device) for path in devices)]:
        descriptor = os.open(path, os.O_PATH)
        call_c("syscall", 445, rules, 1, ctypes.create_string_buffer(struct.pack("=Qi", allowed, descriptor)), 0)
        os.close(descriptor)
    call_c("syscall", 446, rules, 0)
    os.close(rules)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """A mount, or a change of one."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    call_c("mount", *texts[:3], flags, texts[3])


def call_c(name: str, *arguments: bytes | int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Calls a function of the C library; a whole number travels as a long.

    Raises:
        OSError: it failed, or there is none of that name.
    """
    if platform.system() != "Linux":
        raise OSError(errno.ENOSYS, f"not on {platform.system()}")
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError as error:
        raise OSError(errno.ENOSYS, f"the C library has no {name}") from error
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    result = function(*(ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
