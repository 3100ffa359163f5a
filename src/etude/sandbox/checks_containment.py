"""Conformance: what a command must not reach: the host's files, network, processes, terminal, kernel settings; other sandboxes.

Each check is a probe that runs inside and tries; system calls are made by number, past any library.

Not here: limits (checks_limits.py).
"""

import json
import os
import socket
import tempfile
from pathlib import Path

from etude.sandbox.site import KNOWN_VARIABLES, SECRET, Site, expect, expect_none, output, probe, shell

# (number on x86-64, number on aarch64, arguments); every argument is an integer
_CALLS = {
    "ptrace": (101, 117, (0, 0, 0, 0)),
    "process_vm_readv": (310, 270, (1, 0, 0, 0, 0, 0)),
    "pidfd_getfd": (438, 438, (0, 0, 0)),
    "kcmp": (312, 272, (1, 1, 0, 0, 0)),
    "add_key": (248, 217, (0, 0, 0, 0, -3)),
    "request_key": (249, 218, (0, 0, 0, 0)),
    "keyctl": (250, 219, (0, -3, 1)),
    "io_uring_setup": (425, 425, (1, 0)),
    "io_uring_enter": (426, 426, (0, 0, 0, 0, 0, 0)),
    "io_uring_register": (427, 427, (0, 0, 0, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "userfaultfd": (323, 282, (1,)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "umount2": (166, 39, (0, 0)),
    "pivot_root": (155, 41, (0, 0)),
    "chroot": (161, 51, (0,)),
    "open_tree": (428, 428, (-100, 0, 1)),
    "fsopen": (430, 430, (0, 0)),
    "mount_setattr": (442, 442, (-100, 0, 0, 0, 0)),
    "unshare user": (272, 97, (0x10000000,)),
    "unshare mount": (272, 97, (0x00020000,)),
    "unshare net": (272, 97, (0x40000000,)),
    "setns": (308, 268, (0, 0)),
    "clone with a user namespace": (56, 220, (0x10000011, 0, 0, 0, 0)),
    "clone with a pid namespace": (56, 220, (0x20000011, 0, 0, 0, 0)),
    "personality 32-bit": (135, 92, (8,)),
    "personality without randomisation": (135, 92, (0x0040000,)),
    "open_by_handle_at": (304, 265, (-100, 0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, 0)),
    "init_module": (175, 105, (0, 0, 0)),
    "syslog": (103, 116, (3, 0, 0)),
    "clock_settime": (227, 112, (0, 0)),
    "reboot": (169, 142, (0, 0, 0, 0)),
    "AF_NETLINK": (41, 198, (16, 3, 0)),
    "AF_VSOCK": (41, 198, (40, 1, 0)),
    "AF_PACKET": (41, 198, (17, 3, 0)),
    "AF_ALG": (41, 198, (38, 5, 0)),
    "raw IP": (41, 198, (2, 3, 1)),
}
_TRY_CALLS = """if True:
    import ctypes, errno, json, platform, sys
    calls, libc = json.loads(sys.stdin.read()), ctypes.CDLL(None, use_errno=True)
    column, allowed = ["x86_64", "aarch64"].index(platform.machine()), {}
    for name, (x86, arm, arguments) in calls.items():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long((x86, arm)[column]), *map(ctypes.c_long, arguments))
        if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT, errno.EACCES):
            allowed[name] = [result, ctypes.get_errno()]
        if result == 0 and "clone" in name:
            import os; os._exit(0)
    print(json.dumps(allowed))"""


def dangerous_system_calls_are_denied(site: Site) -> None:
    with site.open() as sandbox:
        expect("calls that got through", probe(sandbox, _TRY_CALLS, stdin=json.dumps(_CALLS).encode()), {})


def calls_of_other_instruction_sets_are_denied(site: Site) -> None:
    script = """if True:
        import ctypes, json, mmap, platform
        found = {}
        if platform.machine() == "x86_64":
            libc = ctypes.CDLL(None, use_errno=True)
            found["x32"] = libc.syscall(ctypes.c_long(0x40000000 + 39))  # getpid
            code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            code.write(bytes.fromhex("53b814000000cd805bc3"))  # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
            found["int 0x80"] = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        print(json.dumps([name for name, result in found.items() if result >= 0]))"""
    with site.open() as sandbox:
        result = sandbox.run(["python3", "-c", script])
        assert result.code in (139, 159) or output(result) == "[]\n", f"got through: {result.stdout!r}"  # or ended by a signal


def nobody_types_into_a_terminal(site: Site) -> None:
    script = """if True:
        import ctypes, errno, fcntl, json, os, sys, termios
        if os.fork():  # a child can make a session of its own
            sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
        os.setsid()
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        ioctl, found = ctypes.CDLL(None, use_errno=True).ioctl, {}
        for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C), ("masked", 0x5412 | 1 << 40)):
            ctypes.set_errno(0)
            found[name] = errno.errorcode[ctypes.get_errno()] if ioctl(slave, ctypes.c_ulong(request), b"x") else "done"
        print(json.dumps(found))"""
    with site.open() as sandbox:
        expect("errors", probe(sandbox, script), {"TIOCSTI": "EPERM", "TIOCLINUX": "EPERM", "masked": "EPERM"})


def there_is_no_terminal_of_the_caller(site: Site) -> None:
    script = """if True:
        import json, os
        try:
            os.open("/dev/tty", os.O_RDWR)
            terminal = True
        except OSError:
            terminal = False
        print(json.dumps([terminal, any(os.isatty(fd) for fd in (0, 1, 2)), os.getsid(0) != 0]))"""
    with site.open() as sandbox:
        expect("terminal, a tty, own session", probe(sandbox, script), [False, False, True])


def kernel_settings_cannot_be_opened_for_writing(site: Site) -> None:
    script = """if True:
        import json, os
        opened = []
        names = [os.path.join(top, name) for top, _, names in os.walk("/proc/sys") for name in names]
        for path in [*names, "/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/sys/kernel/uevent_helper"]:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                opened.append(path)
            except OSError:
                pass
        print(json.dumps([len(names) > 100 and "/proc/sys/kernel/core_pattern" in names, opened]))"""
    with site.open() as sandbox:
        expect("settings are there, opened", probe(sandbox, script), [True, []])


def nothing_of_the_caller_is_in_proc(site: Site) -> None:
    script = """if True:
        import json, os
        text, fds = b"", {}
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            for name in ("environ", "cmdline"):
                try:
                    text += open(f"/proc/{pid}/{name}", "rb").read()
                except OSError:
                    pass
        own = sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}"))
        print(json.dumps([text.decode(errors="replace"), own, len(list(filter(str.isdecimal, os.listdir("/proc"))))]))"""
    secrets = [f"{name}=" for name in os.environ if name not in KNOWN_VARIABLES]
    with site.open() as sandbox:
        text, fds, num_processes = probe(sandbox, script)
        expect_none("variables of the caller", [secret for secret in secrets if f"\0{secret}" in text or text.startswith(secret)])
        assert str(site.folder) not in text, "a path of the host is in a command line"
        expect("open descriptors", fds, [0, 1, 2])
        assert num_processes <= 3, f"{num_processes} processes are visible"


def files_of_the_host_are_out_of_reach(site: Site) -> None:
    script = """if True:
        import json, os, sys
        print(json.dumps({path: os.listdir(path) if os.path.isdir(path) else [path] for path in sys.argv[1:] if os.path.exists(path)}))"""
    host = [str(Path.home()), tempfile.gettempdir(), str(site.secret), str(site.folder), "/etc/shadow", "/etc/hostname"]
    empty = ["/root", "/home", "/var", "/sys", "/boot", "/run", "/mnt", "/opt", "/srv", "/media"]
    with site.open() as sandbox:
        found = probe(sandbox, script, *host, *empty)
        expect("found", {path: names for path, names in found.items() if names}, {})
        search = f"grep -rs {SECRET} / --include=secret.txt --exclude-dir=proc --exclude-dir=usr --exclude-dir=python; true"
        expect("the secret", output(shell(sandbox, search)), "")
        expect("a link out of the workspace", shell(sandbox, "cat outside/secret.txt").code, 1)
        expect("accounts", output(shell(sandbox, "cut -d: -f1 /etc/passwd")), "root\nuser\nnobody\n")


def the_base_cannot_be_written(site: Site) -> None:
    script = """if True:
        import json, os, sys
        written = []
        folders = ["/", "/usr", "/usr/bin", "/usr/lib", "/bin", "/etc", "/dev", "/proc", "/env", "/env/sample_package", "/python"]
        for folder in [*folders, sys.base_prefix]:
            for path in (f"{folder}/x", f"{folder}/x/"):
                try:
                    os.mkdir(path) if path.endswith("/") else os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
                    written.append(path)
                except OSError:
                    pass
        for path in ["/etc/passwd", "/env/sample_package/__init__.py", os.path.realpath(sys.executable), "/usr/bin/env", json.__file__]:
            for change in (lambda: os.close(os.open(path, os.O_WRONLY)), lambda: os.chmod(path, 0o777), lambda: os.remove(path)):
                try:
                    change()
                    written.append(path)
                except OSError:
                    pass
        print(json.dumps(written))"""
    with site.open() as sandbox:
        expect("written", probe(sandbox, script), [])
    expect("environment", (site.environment / "sample_package" / "__init__.py").read_text(), "ANSWER = 42\n")


def every_writable_file_system_has_a_size(site: Site) -> None:
    script = """if True:
        import json, os
        loose = []
        for line in open("/proc/self/mounts"):
            source, target, kind, options = line.split()[:4]
            options = options.split(",")
            sized = any(option.startswith("size=") for option in options)
            if "rw" in options and kind not in ("proc", "devpts", "overlay") and os.path.isdir(target) and not sized:
                loose.append(line)
            if "nosuid" not in options or (kind in ("tmpfs", "overlay") and "nodev" not in options):
                loose.append(line)
        size = {path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize >> 20 for path in ("/tmp", "/work", "/dev/shm")}
        print(json.dumps([loose, size]))"""
    with site.open(disk_mb=16) as sandbox:
        loose, size = probe(sandbox, script)
        expect_none("mounts without a size, or with set-uid files or devices", loose)
        expect("megabytes", size, {"/tmp": 16, "/work": 16, "/dev/shm": 16})


def the_user_inside_has_no_privilege(site: Site) -> None:
    script = """if True:
        import json, os
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        sets = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
        maps = [int(line.split()[2]) for line in open("/proc/self/uid_map")]
        print(json.dumps([os.getuid(), os.getgid(), sets, status["NoNewPrivs"], status["Seccomp"], maps]))"""
    with site.open() as sandbox:
        expect(
            "user, group, capabilities, no new privileges, filter, ids", probe(sandbox, script), [1000, 1000, [0, 0, 0, 0], "1", "2", [1]]
        )
        for trial in ("chown 0 readme.txt", "mknod null c 1 3", "chroot / true", "nsenter -t 1 -m true", "unshare -Ur true"):
            assert not shell(sandbox, f"exec 2>&1; {trial}").ok, f"{trial} worked"


def there_is_no_network_but_the_loopback(site: Site) -> None:
    script = """if True:
        import json, socket, sys, threading
        found = {"devices": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:])}
        for address in ("1.1.1.1", "10.0.0.1", "169.254.169.254"):
            try:
                socket.create_connection((address, 80), timeout=1)
                found[address] = "reached"
            except OSError as error:
                found[address] = error.errno in (101, 113)  # unreachable, at once
        try:
            socket.getaddrinfo("example.com", 80)
            found["names"] = "resolved"
        except OSError:
            found["names"] = "none"
        server = socket.create_server(("localhost", 0))
        threading.Thread(target=lambda: server.accept()[0].sendall(b"hi"), daemon=True).start()
        found["own server"] = socket.create_connection(("localhost", server.getsockname()[1]), timeout=5).recv(9).decode()
        found["port of the host"] = socket.socket().connect_ex(("localhost", int(sys.argv[1]))) == 0
        found["socket of the host"] = socket.socket(socket.AF_UNIX).connect_ex("\\0" + sys.argv[2]) == 0
        print(json.dumps(found))"""
    name = f"conformance-{os.getpid()}"
    wanted = {"devices": ["lo"], "names": "none", "own server": "hi", "port of the host": False, "socket of the host": False}
    wanted |= dict.fromkeys(("1.1.1.1", "10.0.0.1", "169.254.169.254"), True)
    with site.open() as sandbox, socket.create_server(("localhost", 0)) as port, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0" + name)
        local.listen()
        expect("network", probe(sandbox, script, str(port.getsockname()[1]), name), wanted)


def sandboxes_do_not_see_each_other(site: Site) -> None:
    with site.open() as first, site.open() as second:
        output(shell(first, "touch /tmp/x /dev/shm/y made"))
        expect("files", (output(shell(second, "ls /tmp /dev/shm")), second.changes()), ("/dev/shm:\n\n/tmp:\n", []))
        expect("signals", shell(second, "kill -9 -1").status, "exited")
        expect("files", output(shell(first, "ls /tmp /dev/shm")), "/dev/shm:\ny\n\n/tmp:\nx\n")


def only_harmless_devices_exist(site: Site) -> None:
    wanted = {
        "console",
        "core",
        "fd",
        "full",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
    }
    with site.open() as sandbox:
        expect_none("devices", set(output(shell(sandbox, "ls /dev")).split()) - wanted)


CHECKS = (
    dangerous_system_calls_are_denied,
    calls_of_other_instruction_sets_are_denied,
    nobody_types_into_a_terminal,
    there_is_no_terminal_of_the_caller,
    kernel_settings_cannot_be_opened_for_writing,
    nothing_of_the_caller_is_in_proc,
    files_of_the_host_are_out_of_reach,
    the_base_cannot_be_written,
    every_writable_file_system_has_a_size,
    the_user_inside_has_no_privilege,
    there_is_no_network_but_the_loopback,
    sandboxes_do_not_see_each_other,
    only_harmless_devices_exist,
)
