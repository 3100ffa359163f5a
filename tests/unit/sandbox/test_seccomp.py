"""The system-call filter, run by a small BPF machine: both architectures, also the one that this machine is not."""

import errno
import struct
from typing import Any

import pytest

from etude.sandbox import seccomp

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)
MACHINES = pytest.mark.parametrize(("machine", "architecture", "column"), [(*X86, 0), (*ARM, 1)], ids=["x86_64", "aarch64"])


def run_filter(program: bytes, architecture: int, call: int, *arguments: int) -> int:
    """What the kernel would return for a call. The machine of seccomp(2), as far as filters here use it."""
    values = [argument & (2**64 - 1) for argument in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", call, architecture, 0, *values)
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                at += if_true if accumulator == operand else if_false
            case 0x35:
                at += if_true if accumulator >= operand else if_false
            case 0x45:
                at += if_true if accumulator & operand else if_false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"instruction {operation:#x}")


@MACHINES
def test_everyday_calls_are_allowed(machine: str, architecture: int, column: int) -> None:
    program = seccomp.program(machine)
    everyday = {
        "read": (0, 63),
        "write": (1, 64),
        "execve": (59, 221),
        "openat": (257, 56),
        "mmap": (9, 222),
        "futex": (202, 98),
        "wait4": (61, 260),
    }
    for numbers in everyday.values():
        assert run_filter(program, architecture, numbers[column]) == ALLOW


@MACHINES
def test_listed_calls_are_denied(machine: str, architecture: int, column: int) -> None:
    program = seccomp.program(machine)
    denied = {
        "ptrace": (101, 117),
        "keyctl": (250, 219),
        "bpf": (321, 280),
        "io_uring_setup": (425, 425),
        "mount": (165, 40),
        "unshare": (272, 97),
    }
    for numbers in denied.values():
        assert run_filter(program, architecture, numbers[column]) == ERRNO | errno.EPERM
    absent = {"memfd_create": (319, 279), "clone3": (435, 435), "shmget": (29, 194)}
    for numbers in absent.values():
        assert run_filter(program, architecture, numbers[column]) == ERRNO | errno.ENOSYS


@MACHINES
def test_sockets_are_of_unix_and_ip_alone(machine: str, architecture: int, column: int) -> None:
    program = seccomp.program(machine)
    for call in ((41, 198)[column], (53, 199)[column]):
        assert {family for family in range(-1, 64) if run_filter(program, architecture, call, family) == ALLOW} == {1, 2, 10}


@MACHINES
def test_threads_may_be_made_and_namespaces_not(machine: str, architecture: int, column: int) -> None:
    program, clone = seccomp.program(machine), (56, 220)[column]
    thread = 0x3D0F00  # CLONE_VM | CLONE_FS | CLONE_FILES | ... as glibc makes one
    for flags in (17, thread, 0x01200011, 0x4111):
        assert run_filter(program, architecture, clone, flags) == ALLOW
    for namespace in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert run_filter(program, architecture, clone, namespace | 17) == ERRNO | errno.EPERM


@MACHINES
def test_terminal_injection_is_denied_whatever_the_upper_half(machine: str, architecture: int, column: int) -> None:
    program, ioctl = seccomp.program(machine), (16, 29)[column]
    for request in (0x5412, 0x541C, 0x5412 | 1 << 40, 0x541C | 1 << 63):
        assert run_filter(program, architecture, ioctl, 1, request) == ERRNO | errno.EPERM
    for request in (0x5401, 0x5413, 0x541B):  # TCGETS, TIOCGWINSZ, FIONREAD
        assert run_filter(program, architecture, ioctl, 1, request) == ALLOW


@MACHINES
def test_the_personality_may_be_asked_and_not_changed(machine: str, architecture: int, column: int) -> None:
    program, call = seccomp.program(machine), (135, 92)[column]
    assert run_filter(program, architecture, call, 0xFFFFFFFF) == run_filter(program, architecture, call, 0) == ALLOW
    for persona in (8, 0x0040000, 0x0400000):
        assert run_filter(program, architecture, call, persona) == ERRNO | errno.EPERM


def test_calls_of_another_architecture_are_denied() -> None:
    for machine, _ in (X86, ARM):
        for foreign in (0x40000003, 0x40000028, X86[1] if machine == "aarch64" else ARM[1]):  # i386, 32-bit ARM, the other one
            assert run_filter(seccomp.program(machine), foreign, 0) == ERRNO | errno.EPERM
    assert run_filter(seccomp.program("x86_64"), X86[1], 0x40000000) == ERRNO | errno.EPERM  # x32


def asked(profile: dict[str, Any], name: str, *arguments: int) -> int:
    """What Docker's engine makes of a profile for a call, as its documentation says."""
    for rule in (each for each in profile["syscalls"] if name in each["names"]):
        holds = all(
            {
                "SCMP_CMP_LT": arguments[test["index"]] < test["value"],
                "SCMP_CMP_GT": arguments[test["index"]] > test["value"],
                "SCMP_CMP_EQ": arguments[test["index"]] == test["value"],
                "SCMP_CMP_MASKED_EQ": arguments[test["index"]] & test["value"] == test["valueTwo"],
            }[test["op"]]
            for test in rule.get("args", [])
        )
        if holds:
            return ERRNO | int(rule["errnoRet"])
    return ALLOW


@MACHINES
def test_a_profile_for_docker_says_what_the_program_does(machine: str, architecture: int, column: int) -> None:
    program, profile = seccomp.program(machine), seccomp.profile(machine)
    assert profile["architectures"] == [{"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[machine]]
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert all(len(rule.get("args", [])) <= 1 for rule in profile["syscalls"])
    calls: dict[str, tuple[tuple[int, int], list[tuple[int, ...]]]] = {
        "socket": ((41, 198), [(family,) for family in range(70)]),
        "socketpair": ((53, 199), [(family,) for family in range(70)]),
        "personality": ((135, 92), [(0,), (0xFFFFFFFF,), (8,), (0x0040000,), (1,), (1 << 31,), (0xFFFFFFFE,), (0x7FFFFFFF,)]),
        "clone": ((56, 220), [(17,), (0x3D0F00,), (0x01200011,), *((1 << bit | 17,) for bit in range(8, 32))]),
        "ioctl": ((16, 29), [(1, 0x5412), (1, 0x541C), (1, 0x5412 | 1 << 40), (1, 0x5401), (1, 0x541B)]),
        "ptrace": ((101, 117), [()]), "memfd_create": ((319, 279), [()]), "clone3": ((435, 435), [()]), "openat": ((257, 56), [()]),
    }  # fmt: skip
    for name, (numbers, given) in calls.items():
        for arguments in given:
            wanted = run_filter(program, architecture, numbers[column], *arguments)
            assert asked(profile, name, *arguments) == wanted, (name, arguments)


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.profile("riscv64")
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")
