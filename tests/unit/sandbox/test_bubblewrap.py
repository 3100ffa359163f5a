"""What the conformance suite cannot see from inside: who runs the processes, and how they end with their caller."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from etude.errors import SandboxError, UserError
from etude.sandbox import arguments, cgroup, checks_files, linux, remedy
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.protocol import Sandbox
from etude.sandbox.site import Site, output, probe, shell
from etude.types import Limits

SLEEPER = """
import sys
from pathlib import Path
from etude.sandbox.bubblewrap import Bubblewrap
sandbox = Bubblewrap().open(Path(sys.argv[1]))
sandbox.run(["sh", "-c", f"(setsid sleep {sys.argv[2]} &); sleep {sys.argv[2]}"], wall_s=200)
"""


@pytest.fixture
def site(backend: Bubblewrap, tmp_path: Path) -> Site:
    return Site.make(backend, tmp_path)


def processes_with(word: str) -> dict[int, int]:
    """Process id -> user id, of all processes on this machine that have this word in their command line."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found[int(folder.name)] = folder.stat().st_uid
        except OSError:
            continue  # it ended meanwhile
    return found


def wait_until(holds: Callable[[], bool]) -> bool:
    """Whether it holds within 20 s."""
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


@pytest.fixture
def word() -> str:
    """A number of seconds to sleep that no other process sleeps, to be found by."""
    return f"15{os.getpid()}.{time.monotonic_ns() % 10**9}"


def sleeping(stack: ExitStack, site: Site, word: str) -> int:
    """User id, on the host, of a command that runs in a new sandbox."""
    sandbox = stack.enter_context(site.open())
    thread = threading.Thread(target=sandbox.run, args=(["sleep", word],))
    thread.start()
    stack.callback(thread.join)
    stack.callback(sandbox.close)
    assert wait_until(lambda: bool(processes_with(word)))
    return max(processes_with(word).values())


def test_no_command_runs_as_root_and_every_sandbox_of_root_has_its_own_user(site: Site, word: str) -> None:
    with ExitStack() as stack:
        users = [sleeping(stack, site, word + digit) for digit in "12"]
    assert 0 not in users
    assert len(set(users)) == (2 if os.geteuid() == 0 else 1)


def test_commands_are_in_a_control_group_where_there_can_be_one(site: Site, word: str) -> None:
    parents = cgroup.find_parents()
    with ExitStack() as stack:
        sleeping(stack, site, word)
        names = re.findall(r"/(etude-\d+-\d+)$", Path(f"/proc/{max(processes_with(word))}/cgroup").read_text(), re.MULTILINE)
        folders = [Path(parent, name) for parent in parents.values() for name in set(names)]
        assert len(names) == len(parents)
        assert all(folder.is_dir() for folder in folders)
    assert wait_until(lambda: not any(folder.exists() for folder in folders))


def test_nothing_is_left_after_close(site: Site, word: str) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    with ExitStack() as stack:
        sleeping(stack, site, word)
    assert processes_with(word) == {}
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_killing_the_caller_ends_everything(site: Site, word: str) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    caller = subprocess.Popen([sys.executable, "-c", SLEEPER, str(site.workspace), word])
    assert wait_until(lambda: len(processes_with(word)) >= 3)  # the caller, and two that sleep
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert wait_until(lambda: not processes_with(word))
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_killing_the_keeper_loses_its_sandboxes_and_the_next_one_works(site: Site, word: str) -> None:
    backend = Bubblewrap()
    sandbox = backend.open(site.workspace)
    assert backend._keeper is not None
    backend._keeper.kill()
    backend._keeper.wait()
    with pytest.raises(SandboxError):
        sandbox.run(["sleep", "15"])
    sandbox.close()
    with backend.open(site.workspace) as sandbox:
        assert sandbox.run(["true"]).ok


def test_a_sandbox_outlives_the_thread_that_opened_it(site: Site) -> None:
    opened: list[Sandbox] = []
    thread = threading.Thread(target=lambda: opened.append(Bubblewrap().open(site.workspace)))
    thread.start()
    thread.join()
    with opened[0] as sandbox:
        assert sandbox.run(["true"]).ok


def test_an_interrupted_request_ends_the_sandbox(site: Site) -> None:
    script = """if True:
        import signal, sys
        from pathlib import Path
        from etude.errors import SandboxError
        from etude.sandbox.bubblewrap import Bubblewrap
        with Bubblewrap().open(Path(sys.argv[1])) as sandbox:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                sandbox.run(["sleep", "60"])
            except KeyboardInterrupt:
                print("interrupted")
            try:
                sandbox.run(["echo", "the answer to something else"])
            except SandboxError:
                print("lost")"""
    done = subprocess.run([sys.executable, "-c", script, str(site.workspace)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\nlost\n", done.stderr


def test_the_flags_that_contain_a_command_are_set() -> None:
    args = arguments.fixed(arguments.interpreter())
    for flag in ("--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent", "--clearenv"):
        assert flag in args
    assert args[args.index("--cap-drop") + 1] == "ALL"
    assert args[-4:] == ["--remount-ro", "/dev", "--remount-ro", "/"]
    assert "--share-net" not in args


def test_a_folder_of_the_workspace_cannot_be_renamed_but_moved(site: Site) -> None:
    script = """if True:
        import errno, json, os
        try:
            os.rename("src", "renamed")
            found = "renamed"
        except OSError as error:
            found = errno.errorcode[error.errno]
        os.mkdir("own")
        os.rename("own", "own2")
        print(json.dumps(found))"""
    with site.open() as sandbox:
        assert probe(sandbox, script) == "EXDEV"  # overlays in a user namespace have no redirects; git and mv copy instead
        output(shell(sandbox, "git init -q; git add -A; git mv src moved || (mkdir moved && git mv src/app.py moved/app.py)"))
        assert "moved/app.py" in {change.path for change in sandbox.changes()}


def test_a_removed_file_leaves_no_trace_inside(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "rm -r src readme.txt"))
        assert (
            output(shell(sandbox, "ls -A; find . -type c; ls src readme.txt 2>&1 | wc -l"))
            == "empty\nlink.txt\noutside\ntests\ntool.sh\n2\n"
        )


@pytest.mark.parametrize("check", checks_files.CHECKS, ids=lambda check: check.__name__)
def test_files_of_several_owners_work_the_same(check: Callable[[Site], None], site: Site) -> None:
    """Files whose owner is nobody in the sandbox's user namespace; only root can make such files."""
    if os.geteuid() == 0:
        os.chown(site.workspace / "src" / "deep", 12345, 12346)
        os.chown(site.workspace / "empty", 54321, 0)
        os.chown(site.workspace / "link.txt", 54321, 0, follow_symlinks=False)
    check(site)


def test_a_missing_program_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    for use in (Bubblewrap("no-such-bubblewrap").check, lambda: Bubblewrap("no-such-bubblewrap").open(tmp_path)):
        with pytest.raises(UserError, match="apt install bubblewrap") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_program_that_is_not_bubblewrap_is_an_error_and_runs_nothing_unconfined(site: Site) -> None:
    with Bubblewrap("env").open(site.workspace) as sandbox, pytest.raises(SandboxError):
        sandbox.run(["touch", "made"])
    with pytest.raises(UserError):
        Bubblewrap("false").check()


def test_a_missing_folder_is_named(backend: Bubblewrap, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none is not a folder"):
        backend.open(tmp_path / "none")
    with pytest.raises(UserError, match="none is not a folder"):
        backend.open(tmp_path, environment=tmp_path / "none")


@pytest.mark.parametrize("name", ["wall_s", "memory_mb", "processes", "disk_mb", "output_bytes"])
def test_a_limit_of_nothing_is_refused_and_not_taken_for_no_limit(backend: Bubblewrap, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"limits.{name} is 0"):
        backend.open(tmp_path, limits=Limits(**{name: 0}))


def test_a_sandbox_that_cannot_be_set_up_says_why(as_ordinary_user: Callable[..., "subprocess.Popen[str]"]) -> None:
    """Over a folder that this user may not look into."""
    script = """if True:
        from pathlib import Path
        from etude.errors import SandboxError
        from etude.sandbox.bubblewrap import Bubblewrap
        backend = Bubblewrap()
        for _ in range(10):
            try:
                backend.open(Path("/root"))
            except SandboxError as error:
                print(error)"""
    out, err = as_ordinary_user("-c", script).communicate(timeout=60)
    assert out == "the sandbox could not be set up: /root: Permission denied\n" * 10, err


def test_switched_off_user_namespaces_are_one_line_with_the_remedy() -> None:
    """In a user namespace of its own, where the setting can be tried without harm."""
    script = """if True:
        import os
        from etude.errors import UserError
        from etude.sandbox import linux
        from etude.sandbox.bubblewrap import Bubblewrap
        user = os.geteuid()
        linux.unshare(linux.CLONE_NEWUSER)
        open("/proc/self/uid_map", "w").write(f"0 {user} 1")
        open("/proc/sys/user/max_user_namespaces", "w").write("0")
        try:
            Bubblewrap().check()
        except UserError as error:
            print(error)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "sudo sysctl -w user.max_user_namespaces=" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("failure", "settings", "remedies"),
    [
        (
            "unshare: Operation not permitted",
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            "apparmor_restrict_unprivileged_userns=0",
        ),
        ("unshare: Operation not permitted", {"kernel.unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        ("unshare: No space left on device", {"user.max_user_namespaces": "0"}, "user.max_user_namespaces="),
        ("bwrap: Unknown option --disable-userns", {"user.max_user_namespaces": "9"}, "0.8"),
        ("mount overlay on /tmp/merged: Invalid argument", {}, "Linux 5.12"),
        ("mount proc on /proc: Operation not permitted", {}, "unmask /proc"),
        ("unshare: Operation not permitted", {}, "--privileged"),
    ],
)
def test_every_known_cause_has_its_remedy(failure: str, settings: dict[str, str], remedies: str) -> None:
    line = remedy.for_failure(failure, settings)
    assert remedies in line
    assert "\n" not in line


def test_errors_of_the_system_come_with_their_number() -> None:
    with pytest.raises(OSError, match="open_tree") as caught:
        linux.clone_mount("/no/such/folder")
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)


def test_limits_of_one_sandbox_do_not_count_for_another(backend: Bubblewrap, site: Site) -> None:
    limits = Limits(processes=6, disk_mb=8)
    with ExitStack() as stack:
        sandboxes = [stack.enter_context(backend.open(site.workspace, limits=limits)) for _ in range(4)]
        found: list[str] = []
        script = "head -c 6M /dev/zero > big; for i in 1 2 3 4 5; do sleep 0.3 & done; wait"
        threads = [threading.Thread(target=lambda s=sandbox: found.append(shell(s, script).status)) for sandbox in sandboxes]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["exited"] * 4
