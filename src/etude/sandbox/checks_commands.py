"""Conformance: commands, their output and exit codes, their environment, and their end.

Not here: limits (checks_limits.py), what they must not reach (checks_containment.py).
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from etude.errors import SandboxError
from etude.sandbox.protocol import ExecResult
from etude.sandbox.site import KNOWN_VARIABLES, Site, expect, expect_none, output, probe, shell


def output_errors_and_exit_code_come_back(site: Site) -> None:
    with site.open() as sandbox:
        result = shell(sandbox, "echo out; echo err >&2; exit 3")
        expect("result", (result.status, result.code, result.stdout, result.stderr), ("exited", 3, b"out\n", b"err\n"))
        expect("truncated", result.truncated, False)


def standard_input_arrives_and_ends(site: Site) -> None:
    data = bytes(range(256)) * 4096
    with site.open(output_bytes=1 << 21) as sandbox:
        assert sandbox.run(["cat"], stdin=data).stdout == data, "a megabyte of input came back changed"
        expect("without input", sandbox.run(["cat"]).stdout, b"")


def arguments_arrive_unchanged(site: Site) -> None:
    odd = ["a b", "'\"$HOME`", "new\nline", "", "--", "-x", "é", os.fsdecode(b"\xff")]
    script = "import json, os, sys; print(json.dumps([os.fsencode(a).hex() for a in sys.argv[1:]]))"
    with site.open() as sandbox:
        expect("arguments", probe(sandbox, script, *odd), [os.fsencode(arg).hex() for arg in odd])


def what_cannot_be_started_is_a_result(site: Site) -> None:
    with site.open() as sandbox:
        expect("a missing command", (code := sandbox.run(["no-such-command"])).code, 127)
        assert b"no-such-command" in code.stderr, "the message does not name the command"
        expect("a file that is no program", sandbox.run(["./readme.txt"]).code, 126)
        expect("a missing folder", sandbox.run(["true"], cwd="/work/none").code, 126)
        expect("an endless argument", sandbox.run(["echo", "x" * (1 << 20)]).code, 126)
        expect("a zero byte", sandbox.run(["echo", "a\0b"]).code, 126)
        expect("half a character", sandbox.run(["echo", "\ud800"]).code, 126)
        expect("after all that", output(shell(sandbox, "echo fine")), "fine\n")


def a_signal_is_128_and_its_number(site: Site) -> None:
    with site.open() as sandbox:
        result = shell(sandbox, "kill -9 $$")
        expect("result", (result.status, result.code), ("exited", 137))


def commands_start_in_the_workspace_or_where_told(site: Site) -> None:
    with site.open() as sandbox:
        expect("folder", output(shell(sandbox, "pwd")), "/work\n")
        expect("folder", output(shell(sandbox, "pwd", cwd="/work/src")), "/work/src\n")


def the_environment_is_clean_and_can_be_added_to(site: Site) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    with site.open() as sandbox:
        found = probe(sandbox, script, env={"ADDED": "1", "HOME": "/work"})
        expect("variables", set(found) - KNOWN_VARIABLES, {"ADDED"})
        expect("values", (found["ADDED"], found["HOME"]), ("1", "/work"))
        expect("home", output(shell(sandbox, "echo $HOME")), "/tmp\n")


def the_usual_tools_work(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "git init -q . && git add readme.txt && git -c user.name=a -c user.email=a@b commit -qm x && git status -s"))
        expect("grep", output(shell(sandbox, "grep -rn VALUE src")), "src/app.py:1:VALUE = 1\n")
        expect("ls", output(shell(sandbox, "ls tests")), "test_app.py\n")
        expect("a script", output(sandbox.run(["./tool.sh"])), "tool\n")
        expect("python", output(shell(sandbox, "python -c 'print(1)'; python3 -c 'print(2)'")), "1\n2\n")
        modules = "bz2, ctypes, hashlib, json, lzma, multiprocessing, sqlite3, threading, zlib"
        output(sandbox.run(["python3", "-c", f"import {modules}; multiprocessing.Lock(); threading.Thread(target=print).start()"]))


def python_sees_the_environment_and_no_package_of_the_host(site: Site) -> None:
    script = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if u.find_spec(n)]))"
    with site.open() as sandbox:
        expect("packages", probe(sandbox, script, "etude", "torch", "pytest", "pip", "sample_package"), [])
        expect("packages", probe(sandbox, script, "etude", "sample_package", env={"PYTHONPATH": "/env"}), ["sample_package"])
        wheels = "find /usr/share/python-wheels /usr/lib/python3*/ensurepip /python/base/lib/python3*/ensurepip -name '*.whl' 2>/dev/null"
        expect("wheels", output(shell(sandbox, f"{wheels} || true")), "")
        expect(
            "answer", output(shell(sandbox, "python3 -c 'import sample_package as s; print(s.ANSWER)'", env={"PYTHONPATH": "/env"})), "42\n"
        )


def files_stay_between_commands_and_processes_do_not(site: Site) -> None:
    daemon = (
        "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nopen('alive', 'w').close()\ntime.sleep(60)"
    )
    count = "import json, os; print(json.dumps(sum(n.isdecimal() for n in os.listdir('/proc'))))"
    with site.open() as sandbox:
        before = probe(sandbox, count)
        output(shell(sandbox, "echo 1 > made; echo 2 > /tmp/made; (sleep 60 &) ; sleep 60 > /dev/null 2>&1 &"))
        output(sandbox.run(["python3", "-c", daemon]))
        expect("files", output(shell(sandbox, "cat made /tmp/made")), "1\n2\n")
        expect("processes", probe(sandbox, count), before)


def a_command_run_twice_gives_the_same_bytes(site: Site) -> None:
    script = "id; hostname; pwd; env | sort; echo $$; ls -a / /work /env /etc /dev /tmp; umask; ulimit -a; ls /proc/self/fd"
    with site.open() as first, site.open() as second:
        once = output(shell(first, script))
        expect("again", output(shell(first, script)), once)
        expect("in another sandbox", output(shell(second, script)), once)


def many_sandboxes_work_at_once(site: Site) -> None:
    def one(number: int) -> bool:
        with site.open() as sandbox:
            return output(shell(sandbox, f"echo {number} > n; cat n; cat /tmp/shared 2>&1; echo x > /tmp/shared")).startswith(
                f"{number}\ncat:"
            )

    with ThreadPoolExecutor(16) as pool:
        expect_none("mixed up", [number for number, good in enumerate(pool.map(one, range(32))) if not good])


def closing_ends_a_running_command(site: Site) -> None:
    found: list[ExecResult] = []
    sandbox = site.open()
    thread = threading.Thread(target=lambda: found.append(shell(sandbox, "touch started; exec sleep 60")))
    thread.start()
    closer = threading.Timer(0.3, sandbox.close)
    closer.start()
    thread.join(15)
    closer.join(15)
    assert not thread.is_alive(), "the command goes on after close"
    expect("status", (found[0].status, found[0].code), ("killed", None))


def a_closed_sandbox_says_so(site: Site) -> None:
    sandbox = site.open()
    sandbox.close()
    sandbox.close()
    for use in (lambda: sandbox.run(["true"]), lambda: sandbox.read("readme.txt"), sandbox.changes):
        try:
            use()
        except SandboxError:
            continue
        raise AssertionError("a closed sandbox can be used")


CHECKS = (
    output_errors_and_exit_code_come_back,
    standard_input_arrives_and_ends,
    arguments_arrive_unchanged,
    what_cannot_be_started_is_a_result,
    a_signal_is_128_and_its_number,
    commands_start_in_the_workspace_or_where_told,
    the_environment_is_clean_and_can_be_added_to,
    the_usual_tools_work,
    python_sees_the_environment_and_no_package_of_the_host,
    files_stay_between_commands_and_processes_do_not,
    a_command_run_twice_gives_the_same_bytes,
    many_sandboxes_work_at_once,
    closing_ends_a_running_command,
    a_closed_sandbox_says_so,
)
