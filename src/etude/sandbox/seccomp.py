"""The system-call filter of a sandbox: a program for the kernel's classic BPF machine, on x86-64 and aarch64.

Denied: tracing and reading other processes, keyrings, io_uring, bpf, performance events, user faults, kernel modules,
mounts and namespaces, clocks; memory that no limit sees (System V segments and queues, memfd); other instruction sets
(32-bit calls), a foreign personality; every socket family but UNIX and IP; typing into a terminal (TIOCSTI, TIOCLINUX).
A denied call returns an error number, so that programs with a second way take it.

Numbers are from Linux's syscall tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h); the
machine is described in seccomp(2).

Not here: who loads it: bubblewrap the program, by --seccomp; Docker the same rules by name, as a profile.
"""

import errno
import platform
import struct
from typing import Any

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*

# name: number on x86-64, on aarch64 (None: no such call)
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}
# As if the kernel had none of them: callers fall back. clone3 hides its flags behind a pointer.
_ABSENT: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "clone3": (435, 435),
}
_CLONE, _IOCTL, _PERSONALITY, _SOCKET, _SOCKETPAIR = (56, 220), (16, 29), (135, 92), (41, 198), (53, 199)

_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_PERSONALITIES = (0, 0xFFFFFFFF)  # PER_LINUX, "tell me"
_X32 = 0x40000000

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

_Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand


def program(machine: str | None = None) -> bytes:
    """The filter for one machine type, as struct sock_filter[]. Raises ValueError for an unknown machine."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system-call filter for machine type {machine!r}; there is one for {', '.join(_ARCHITECTURES)}")
    column = list(_ARCHITECTURES).index(machine)
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]), _fail(errno.EPERM), (_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        code += [(_IF_AT_LEAST, 0, 1, _X32), _fail(errno.EPERM)]
    for table, number in ((_DENIED, errno.EPERM), (_ABSENT, errno.ENOSYS)):
        for numbers in table.values():
            if (call := numbers[column]) is not None:
                code += [(_IF_EQUAL, 0, 1, call), _fail(number)]
    for call in (_SOCKET[column], _SOCKETPAIR[column]):
        code += _when(call, 0, _unless(_FAMILIES, errno.EAFNOSUPPORT))
    code += _when(_PERSONALITY[column], 0, _unless(_PERSONALITIES, errno.EPERM))
    code += _when(_CLONE[column], 0, [(_IF_ANY_BIT, 0, 1, _NAMESPACES), _fail(errno.EPERM), _allow()])
    code += _when(_IOCTL[column], 1, _if(_TERMINAL, errno.EPERM))
    code.append(_allow())
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def profile(machine: str | None = None) -> dict[str, Any]:
    """The same rules as Docker and podman read them. Calls of other instruction sets end the caller. Raises ValueError as `program`.

    One rule may look at an argument once, so each "none of these" is written as the ranges and bits around them.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system-call filter for machine type {machine!r}; there is one for {', '.join(_ARCHITECTURES)}")
    rules = [_rule([*_DENIED], errno.EPERM), _rule([*_ABSENT], errno.ENOSYS)]
    sockets = [("SCMP_CMP_LT", min(_FAMILIES)), ("SCMP_CMP_GT", max(_FAMILIES))]
    sockets += [("SCMP_CMP_EQ", family) for family in range(min(_FAMILIES), max(_FAMILIES)) if family not in _FAMILIES]
    rules += [_rule(["socket", "socketpair"], errno.EAFNOSUPPORT, 0, test, value) for test, value in sockets]
    masked = "SCMP_CMP_MASKED_EQ"
    bits = [1 << at for at in range(32)]
    # neither no bit nor every bit: somewhere, going round, a bit that is there is followed by one that is not
    rules += [
        _rule(["personality"], errno.EPERM, 0, masked, bit | after, bit) for bit, after in zip(bits, bits[1:] + bits[:1], strict=True)
    ]
    rules += [_rule(["clone"], errno.EPERM, 0, masked, bit, bit) for bit in bits if bit & _NAMESPACES]
    rules += [_rule(["ioctl"], errno.EPERM, 1, masked, 0xFFFFFFFF, request) for request in _TERMINAL]
    architecture = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[machine]
    return {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [architecture], "syscalls": rules}


def _rule(names: list[str], number: int, argument: int | None = None, test: str = "", value: int = 0, then: int = 0) -> dict[str, Any]:
    """`then`: for a masked test, what is left; `value` is the mask."""
    found: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return found if argument is None else {**found, "args": [{"index": argument, "value": value, "valueTwo": then, "op": test}]}


def _fail(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _allow() -> _Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _when(call: int, argument: int, then: list[_Instruction]) -> list[_Instruction]:
    """For one call: load the low half of an argument (the kernel reads no more of these) and go through `then`, which returns."""
    body = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *then]
    return [(_IF_EQUAL, 0, len(body), call), *body]


def _if(values: tuple[int, ...], number: int) -> list[_Instruction]:
    tests = [(_IF_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*tests, _allow(), _fail(number)]


def _unless(values: tuple[int, ...], number: int) -> list[_Instruction]:
    tests = [(_IF_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*tests, _fail(number), _allow()]
