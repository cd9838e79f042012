"""How a process of the sandbox confines itself before a program runs: its own small file system, few rights, limits.

Every measure is tried. Several protect the same thing on purpose, because containers, kernels and users differ in what
they allow. Standard library only: this runs inside the sandbox.
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
_LOCKED_FLAGS = 1 | 2 | 4 | 8 | 1024 | 2048  # a remount keeps ro, nosuid, nodev, noexec, noatime, nodiratime


class Isolation:
    """The measures taken so far, and those that the system refused."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.without = frozenset(without)
        self.protected: set[str] = set()
        self.refused: dict[str, str] = {}
        self.files_are_others = False  # no file outside the box is of the program's user, or within its reach

    def attempt(self, name: str, measure: Callable[..., None], *given: object, protects: Iterable[str] = ()) -> bool:
        """Try a measure; note its protection, or why it was refused."""
        if name in self.without:
            self.refused[name] = "switched off"
            return False
        try:
            measure(*given)
        except (OSError, ValueError, AttributeError) as error:  # the last: a function this system does not have
            self.refused[name] = getattr(error, "strerror", None) or str(error)
            return False
        self.protected.update(protects)
        return True

    def not_enforced(self) -> list[str]:
        """Return one line for each protection that no measure gave, with the system's messages."""
        why = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        return [f"{name}: {what} ({why})" for name, what in PROTECTIONS.items() if name not in self.protected]

    def enter_world(self, box: str) -> None:
        """Enter new namespaces with a file system of Python and an empty folder. One process does so, then forks."""
        outside = mount_namespace()
        if self.attempt("namespaces", namespaces, protects=("network", "signals")):
            self.files_are_others = self.attempt("own root", own_root, box, outside, protects=("files",))
        if "files" not in self.protected:
            os.chdir(box)

    def give_up_rights(self) -> None:
        """Become another user where this is root; give up capabilities, setuid programs, tracing by siblings."""
        if os.geteuid() == 0:
            changed = self.attempt("other user", other_user, "files" in self.protected, protects=("user", "signals"))
            self.files_are_others = self.files_are_others or changed
        elif "files" in self.protected:
            self.protected.add("user")  # nobody inside its namespace; outside it no file of yours is in reach
        self.attempt("no capabilities", no_capabilities)
        self.attempt("no new privileges", no_new_privileges)

    def limit(self, memory_mb: int, cpu_s: int) -> None:
        self.attempt("memory limit", set_limit, resource.RLIMIT_AS, memory_mb << 20, protects=("memory",))
        self.attempt("time limit", set_limit, resource.RLIMIT_CPU, cpu_s, cpu_s + 1, protects=("time",))
        self.attempt("output limit", set_limit, resource.RLIMIT_FSIZE, FILE_BYTES, protects=("output",))
        processes = ("processes",) if os.geteuid() else ()  # root is exempt
        self.attempt("process limit", set_limit, resource.RLIMIT_NPROC, 1, protects=processes)
        self.attempt("no core file", set_limit, resource.RLIMIT_CORE, 0)
        self.attempt("few open files", set_limit, resource.RLIMIT_NOFILE, 64)
        self.attempt("landlock", landlock, ".", protects=("files",))
        self.attempt("seccomp", install_filter, self.files_are_others, protects=("network", "processes", "signals"))


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it is gone; only Linux can."""
    with contextlib.suppress(OSError):
        call_c("prctl", 1, 9, 0, 0, 0)


def namespaces() -> None:
    """Enter new namespaces, through a user namespace where this is not root."""
    user, group = os.getuid(), os.getgid()
    try:
        call_c("unshare", _SPACES)
    except OSError:
        call_c("unshare", _SPACES | _NEWUSER)
        maps = {"setgroups": "deny", "uid_map": f"{NOBODY} {user} 1", "gid_map": f"{NOBODY} {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def mount_namespace() -> str:
    """Return the name of the mount namespace of this process; empty where the system does not say."""
    link = "/proc/self/ns/mnt"
    return os.readlink(link) if os.path.lexists(link) else ""


def own_root(box: str, outside: str) -> None:
    """Make ``box`` the root; never within the mount namespace ``outside``, where it would be the root of everybody."""
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
    """Return the folders that the program may read: Python and the libraries of its modules; none inside another."""
    wanted = {sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__)}
    wanted |= {"/usr", "/lib", "/lib64", "/nix/store"}
    present = sorted(folder for folder in wanted if os.path.isdir(folder) and folder != "/")
    return [folder for folder in present if not any(folder.startswith(other + "/") for other in present)]


def other_user(own_root: bool) -> None:
    """Switch to ``nobody``, if that user can read Python's modules."""
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
    """Give up every capability, also those of a user namespace."""
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    call_c("capset", header, ctypes.create_string_buffer(24))


def no_new_privileges() -> None:
    """Gain no rights from setuid programs, and let no process of the same user look into this one."""
    call_c("prctl", 38, 1, 0, 0, 0)
    call_c("prctl", 4, 0, 0, 0, 0)


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit of this process."""
    ceiling, hard = resource.getrlimit(kind)[1], soft if hard is None else hard
    hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
    resource.setrlimit(kind, (min(soft, hard), hard))


def landlock(folder: str) -> None:
    """Limit files by the kernel's allow-list: `visible_folders` to read, ``folder`` to change; needs no privilege."""
    version = call_c("syscall", 444, None, 0, 1)
    access = (1 << (13 + (version > 1) + (version > 2) + (version > 4))) - 1
    # files, TCP, signals and sockets outside
    attributes = struct.pack("QQQ", access, 3 if version > 3 else 0, 3 if version > 5 else 0)
    rules = call_c("syscall", 444, ctypes.create_string_buffer(attributes, 24), 24, 0)
    devices = [path for path in DEVICES if os.path.exists(path)]
    read_only, device = 1 << 2 | 1 << 3, 1 << 1 | 1 << 2
    allow = dict.fromkeys(visible_folders(), read_only) | dict.fromkeys(devices, device) | {folder: access}
    for path, allowed in allow.items():
        descriptor = os.open(path, os.O_PATH)
        call_c("syscall", 445, rules, 1, ctypes.create_string_buffer(struct.pack("=Qi", allowed, descriptor)), 0)
        os.close(descriptor)
    call_c("syscall", 446, rules, 0)
    os.close(rules)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system; raise OSError where the kernel refuses."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    call_c("mount", *texts[:3], flags, texts[3])


def call_c(name: str, *arguments: bytes | int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call a function of the C library; a whole number travels as a long. OSError where it fails."""
    if platform.system() != "Linux":
        raise OSError(errno.ENOSYS, f"not on {platform.system()}")
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    result = function(*(ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# The filter of system calls (seccomp)

# Numbers from the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
_SHARED = {"pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}
_SHARED |= {"open_tree": 428, "move_mount": 429, "fsopen": 430, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438}
_SHARED |= {"process_madvise": 440, "process_mrelease": 448}
_X86_64 = {"shmget": 29, "socket": 41, "connect": 42, "bind": 49, "socketpair": 53, "clone": 56, "fork": 57}
_X86_64 |= {"vfork": 58, "execve": 59, "kill": 62, "semget": 64, "msgget": 68, "ptrace": 101, "setpgid": 109}
_X86_64 |= {"setsid": 112, "rt_sigqueueinfo": 129, "chroot": 161, "mount": 165, "umount2": 166, "tkill": 200}
_X86_64 |= {"tgkill": 234, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272}
_X86_64 |= {"rt_tgsigqueueinfo": 297, "perf_event_open": 298, "setns": 308, "process_vm_readv": 310}
_X86_64 |= {"process_vm_writev": 311, "bpf": 321, "execveat": 322, "userfaultfd": 323, "setpriority": 141}
_X86_64 |= {"sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "mq_open": 240}
_X86_64 |= {"ioprio_set": 251, "migrate_pages": 256, "move_pages": 279, "kcmp": 312, "sched_setattr": 314}
_X86_64 |= {"syslog": 103}
_AARCH64 = {"umount2": 39, "mount": 40, "chroot": 51, "ptrace": 117, "kill": 129, "tkill": 130, "tgkill": 131}
_AARCH64 |= {"rt_sigqueueinfo": 138, "setpgid": 154, "setsid": 157, "msgget": 186, "semget": 190, "shmget": 194}
_AARCH64 |= {"socket": 198, "socketpair": 199, "bind": 200, "connect": 203, "add_key": 217, "request_key": 218}
_AARCH64 |= {"keyctl": 219, "clone": 220, "execve": 221, "unshare": 97, "rt_tgsigqueueinfo": 240}
_AARCH64 |= {"perf_event_open": 241, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280}
_AARCH64 |= {"execveat": 281, "userfaultfd": 282, "setpriority": 140, "sched_setparam": 118}
_AARCH64 |= {"sched_setscheduler": 119, "sched_setaffinity": 122, "mq_open": 180, "ioprio_set": 30}
_AARCH64 |= {"migrate_pages": 238, "move_pages": 239, "kcmp": 272, "sched_setattr": 274, "syslog": 116}
DENIED = {"x86_64": (0xC000003E, _X86_64 | _SHARED), "aarch64": (0xC00000B7, _AARCH64 | _SHARED)}
# Calls that change files by path and that Landlock lets through: denied where files of the same user are in reach.
_OF_FILES_X86_64 = {"chmod": 90, "chown": 92, "lchown": 94, "utime": 132, "setxattr": 188, "lsetxattr": 189}
_OF_FILES_X86_64 |= {"removexattr": 197, "lremovexattr": 198, "utimes": 235, "fchownat": 260, "futimesat": 261}
_OF_FILES_X86_64 |= {"fchmodat": 268, "utimensat": 280}
_OF_FILES_AARCH64 = {"setxattr": 5, "lsetxattr": 6, "removexattr": 14, "lremovexattr": 15, "fchmodat": 53}
_OF_FILES_AARCH64 |= {"fchownat": 54, "utimensat": 88}
_OF_FILES = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469}
OF_FILES = {"x86_64": _OF_FILES_X86_64 | _OF_FILES, "aarch64": _OF_FILES_AARCH64 | _OF_FILES}
# Calls that depend on an argument: its place, whether its values are those refused or those allowed, and the values.
_OWNER = (1, True, (8, 10, 15, 1026))  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_NOTIFY: a signal to any process
_TERMINAL = (1, True, (0x5412, 0x541C, 0x8901, 0x8902))  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
_ITSELF = (0, False, (0,))
GUARDED = {
    "x86_64": {16: _TERMINAL, 72: _OWNER, 302: _ITSELF},  # ioctl, fcntl, prlimit64
    "aarch64": {29: _TERMINAL, 25: _OWNER, 261: _ITSELF},
}

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_X32 = 0x40000000  # x86-64's third table of calls, numbered from here; nothing of ours uses it


def build_filter(machine: str, files_are_others: bool = True) -> bytes:
    """Return the filter of system calls for the kernel's virtual machine; ``files_are_others``: none can be changed."""
    if machine not in DENIED:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    architecture, denied = DENIED[machine]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for number in sorted([*denied.values(), *(() if files_are_others else OF_FILES[machine].values())]):
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for number, (place, refused, values) in GUARDED[machine].items():
        inner = [(_LOAD, 0, 0, 16 + 8 * place)]  # the lower half of the argument
        for value in values:
            inner += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE if refused else _ALLOW)]
        inner.append((_RETURN, 0, 0, _ALLOW if refused else _REFUSE))
        program += [(_EQUAL, 0, len(inner), number), *inner]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in program)


def install_filter(files_are_others: bool) -> None:
    """Take dangerous system calls away from this process for good, by seccomp; needs no privilege."""
    program = build_filter(platform.machine(), files_are_others)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    call_c("prctl", 22, 2, ctypes.addressof(header), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
