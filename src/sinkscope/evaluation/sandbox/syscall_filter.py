"""A seccomp filter that takes dangerous system calls away from this process for good; Linux on x86-64 and ARM64.

It is the layer that needs no privilege and works inside containers: no sockets, no new processes or programs, no
signals, no tracing, no mounts, no namespaces, and none of the calls that would go around the others (io_uring).
Standard library only: this runs inside the sandbox.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Callable

# Numbers from the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
_SHARED = {"pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428}
_SHARED |= {"move_mount": 429, "fsopen": 430, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438}
_X86_64 = {"shmget": 29, "socket": 41, "connect": 42, "bind": 49, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59}
_X86_64 |= {"kill": 62, "semget": 64, "msgget": 68, "ptrace": 101, "setpgid": 109, "setsid": 112, "rt_sigqueueinfo": 129, "chroot": 161}
_X86_64 |= {"mount": 165, "umount2": 166, "tkill": 200, "tgkill": 234, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272}
_X86_64 |= {"rt_tgsigqueueinfo": 297, "perf_event_open": 298, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311}
_X86_64 |= {"bpf": 321, "execveat": 322, "userfaultfd": 323}
_AARCH64 = {"umount2": 39, "mount": 40, "chroot": 51, "ptrace": 117, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138}
_AARCH64 |= {"setpgid": 154, "setsid": 157, "msgget": 186, "semget": 190, "shmget": 194, "socket": 198, "socketpair": 199, "bind": 200}
_AARCH64 |= {"connect": 203, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "execve": 221, "unshare": 97}
_AARCH64 |= {"rt_tgsigqueueinfo": 240, "perf_event_open": 241, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271}
_AARCH64 |= {"bpf": 280, "execveat": 281, "userfaultfd": 282}
DENIED = {"x86_64": (0xC000003E, _X86_64 | _SHARED), "aarch64": (0xC00000B7, _AARCH64 | _SHARED)}

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_X32 = 0x40000000  # x86-64's third table of calls, numbered from here; nothing of ours uses it


def build_filter(machine: str) -> bytes:
    """The filter as a program for the kernel's virtual machine.

    Raises:
        OSError: a machine whose numbers are not known here.
    """
    if machine not in DENIED:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    architecture, denied = DENIED[machine]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for number in sorted(denied.values()):
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in program)


def install_filter(call_c: Callable[..., int]) -> None:
    """Installs it through ``call_c``, which calls the C library; from here on a denied call is not permitted.

    Raises:
        OSError: the system refuses.
    """
    program = build_filter(platform.machine())
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    call_c("prctl", 22, 2, ctypes.addressof(header), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
