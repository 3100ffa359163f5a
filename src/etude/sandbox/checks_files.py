"""Conformance: reading and writing the workspace from outside, and what `changes` reports.

Not here: commands (checks_commands.py).
"""

from collections.abc import Callable

from etude.sandbox.protocol import Change, Sandbox
from etude.sandbox.site import FILES, SECRET, Site, expect, output, shell


def _error(use: Callable[[], object]) -> str:
    """Name of the class of the OSError that it raises."""
    try:
        use()
    except OSError as error:
        return type(error).__name__
    return "no error"


def _kinds(sandbox: Sandbox) -> dict[str, str]:
    return {change.path: change.kind for change in sandbox.changes()}


def written_files_are_read_back_inside_and_outside(site: Site) -> None:
    data = bytes(range(256)) * 10
    with site.open() as sandbox:
        sandbox.write("new/folder/data.bin", data)
        expect("read", sandbox.read("new/folder/data.bin"), data)
        expect(
            "inside", output(shell(sandbox, "wc -c < /work/new/folder/data.bin; echo more >> new/folder/data.bin")).strip(), str(len(data))
        )
        expect("read", sandbox.read("/work/new/folder/data.bin"), data + b"more\n")
        sandbox.write("readme.txt", b"short")
        expect("inside", output(shell(sandbox, "cat readme.txt")), "short")


def the_workspace_itself_is_never_written(site: Site) -> None:
    before = site.listing()
    with site.open() as sandbox:
        sandbox.write("readme.txt", b"changed")
        output(shell(sandbox, "rm -r src; mv tests moved; chmod 600 empty; touch -d 2001-01-01 tool.sh; ln readme.txt hard"))
    expect("listing", site.listing(), before)


def wrong_paths_are_refused_when_reading(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "mkfifo pipe; ln -s /etc/passwd passwd; ln -s none dangling; ln -s /work/src inner; truncate -s 1T huge"))
        wanted = {
            "none.txt": "FileNotFoundError",
            "none/none.txt": "FileNotFoundError",
            "src": "IsADirectoryError",
            ".": "IsADirectoryError",
            "readme.txt/x": "NotADirectoryError",
            "link.txt": "PermissionError",
            "outside/secret.txt": "PermissionError",
            "inner/app.py": "PermissionError",
            "passwd": "PermissionError",
            "dangling": "PermissionError",
            "pipe": "PermissionError",
            "../etc/passwd": "PermissionError",
            "src/../../etc/passwd": "PermissionError",
            "/etc/passwd": "PermissionError",
            str(site.secret): "PermissionError",
            "huge": "OSError",
            "a\0b": "OSError",
            "\ud800": "OSError",
        }
        expect("errors", {path: _error(lambda path=path: sandbox.read(path)) for path in wanted}, wanted)  # type: ignore[misc]
        expect("after all that", sandbox.read("readme.txt"), b"hello\n")


def wrong_paths_are_refused_when_writing(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "mkfifo pipe; ln -s /tmp/target target; ln -s / root; mkdir folder"))
        wanted = {
            "link.txt": "PermissionError",
            "outside/secret.txt": "PermissionError",
            "target": "PermissionError",
            "root/tmp/x": "PermissionError",
            "pipe": "PermissionError",
            "../x": "PermissionError",
            "/etc/x": "PermissionError",
            "folder": "IsADirectoryError",
            "/work": "IsADirectoryError",
            "readme.txt/x": "NotADirectoryError",
        }
        expect("errors", {path: _error(lambda path=path: sandbox.write(path, b"bad")) for path in wanted}, wanted)  # type: ignore[misc]
        expect("nothing in /tmp", output(shell(sandbox, "ls /tmp; cat readme.txt")), "hello\n")
    expect("secret", site.secret.read_text(), SECRET)


def writing_more_than_the_disk_is_an_error(site: Site) -> None:
    with site.open(disk_mb=4) as sandbox:
        expect("error", _error(lambda: sandbox.write("big", b"x" * (8 << 20))), "OSError")
        output(shell(sandbox, "rm -f big"))
        sandbox.write("small", b"x")


def nothing_done_is_no_change(site: Site) -> None:
    with site.open() as sandbox:
        expect("changes", sandbox.changes(), [])
        output(shell(sandbox, "touch readme.txt; cat src/app.py > copy; cp copy src/app.py; rm copy; mkdir nothing; chmod 600 empty"))
        output(shell(sandbox, "mv tests t; mv t tests; echo x > /tmp/x; ls -R . > /dev/null; rm link.txt; ln -s readme.txt link.txt"))
        expect("changes", sandbox.changes(), [])


def each_kind_of_change_is_reported(site: Site) -> None:
    with site.open() as sandbox:
        output(
            shell(
                sandbox,
                "echo more >> readme.txt; chmod +x empty; rm src/app.py; mkdir -p a/b; echo n > a/b/new; ln -s /etc/passwd l; mkfifo p",
            )
        )
        wanted = [
            Change(path="a/b/new", kind="written", data=b"n\n"),
            Change(path="empty", kind="written", data=b"", executable=True),
            Change(path="l", kind="refused"),
            Change(path="p", kind="refused"),
            Change(path="readme.txt", kind="written", data=b"hello\nmore\n"),
            Change(path="src/app.py", kind="removed"),
        ]
        expect("changes", sandbox.changes(), wanted)
        expect("changes again", sandbox.changes(), wanted)


def removed_and_moved_folders_are_reported_by_file(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "rm -r src; mv tests moved"))
        wanted = {
            "moved/test_app.py": "written",
            "src/app.py": "removed",
            "src/deep/er/leaf.py": "removed",
            "tests/test_app.py": "removed",
        }
        expect("changes", _kinds(sandbox), wanted)
        output(shell(sandbox, "mkdir -p src/deep; echo 1 > src/deep/other"))
        expect("a folder made anew", _kinds(sandbox), {**wanted, "src/deep/other": "written"})
        output(shell(sandbox, "rm -r src moved; git --version; mkdir tests; echo 'def test(): pass' > tests/test_app.py"))
        expect("a file made anew", _kinds(sandbox), {"src/app.py": "removed", "src/deep/er/leaf.py": "removed"})


def folders_and_files_may_take_each_others_place(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "rm -r src readme.txt tests; echo file > src; mkdir readme.txt; echo 1 > readme.txt/inner; ln -s / tests"))
        wanted = {
            "readme.txt": "removed",
            "readme.txt/inner": "written",
            "src": "written",
            "src/app.py": "removed",
            "src/deep/er/leaf.py": "removed",
            "tests": "refused",
            "tests/test_app.py": "removed",
        }
        expect("changes", _kinds(sandbox), wanted)


def a_link_that_becomes_a_folder_is_not_looked_through(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "rm outside; mkdir outside; echo 1 > outside/new; cp readme.txt outside/secret.txt"))
        wanted = {"outside": "removed", "outside/new": "written", "outside/secret.txt": "written"}
        expect("changes", _kinds(sandbox), wanted)
        output(shell(sandbox, "rm -r src; ln -s outside src"))
        wanted |= {"src": "refused", "src/app.py": "removed", "src/deep/er/leaf.py": "removed"}
        expect("changes", _kinds(sandbox), wanted)


def endless_holes_are_reported_without_their_zeros(site: Site) -> None:
    script = "import os\nfor n in range(200):\n  os.truncate(os.open(f'hole{n:03}', os.O_CREAT | os.O_RDWR), 15 << 20)"
    with site.open() as sandbox:
        output(sandbox.run(["python3", "-c", script]))
        found = sandbox.changes()
        expect("files", len(found), 200)
        assert sum(len(change.data or b"") for change in found) <= 1 << 28, "a quarter of a gigabyte of zeros"


def folders_locked_by_a_command_stay_open_to_the_caller(site: Site) -> None:
    with site.open() as sandbox:
        output(shell(sandbox, "echo x > made; chmod 0 /work /tmp /dev/shm"))
        expect("content", sandbox.read("made"), b"x\n")
        sandbox.write("written", b"y")
        expect("changes", _kinds(sandbox), {"made": "written", "written": "written"})
        expect("status", sandbox.run(["true"]).status, "exited")
        expect("status", sandbox.run(["true"], cwd="/").code, 0)


def odd_names_and_sizes_are_reported(site: Site) -> None:
    script = "import os; open(b'/work/\\xff \\n', 'w').write('x'); os.truncate(os.open('huge', os.O_CREAT | os.O_RDWR), 1 << 40)"
    deep = "import os\nfor n in range(3000):\n  os.mkdir('d'); os.chdir('d')\nopen('f', 'w')"
    with site.open() as sandbox:
        output(sandbox.run(["python3", "-c", script]))
        expect("changes", _kinds(sandbox), {"\udcff \n": "written", "huge": "refused"})
        expect("content", sandbox.read("\udcff \n"), b"x")
        output(sandbox.run(["python3", "-c", deep]))
        expect("endless folders", sorted(_kinds(sandbox).values()), ["refused", "refused", "written"])


def permissions_do_not_keep_the_sandbox_from_its_files(site: Site) -> None:
    for path, mode in (("readme.txt", 0o600), ("src/app.py", 0o400), ("src/deep", 0o700), ("empty", 0o666)):
        (site.workspace / path).chmod(mode)
    site.workspace.chmod(0o700)
    site.environment.chmod(0o700)
    site.folder.chmod(0o700)
    with site.open() as sandbox:
        output(shell(sandbox, "for f in readme.txt empty src/deep/er/leaf.py; do echo x >> $f || exit 1; done; cat src/app.py"))
        output(shell(sandbox, "chmod u+w src/app.py && echo x >> src/app.py && test -O src/app.py && ls /env/sample_package"))
        output(shell(sandbox, "mkdir locked; echo x > locked/f; chmod 0 locked/f locked; chmod 0 src"))
        found = _kinds(sandbox)
        expect(
            "locked away", {path: found.get(path) for path in ("locked/f", "src/app.py")}, {"locked/f": "written", "src/app.py": "written"}
        )
        expect(
            "all there", {name: sandbox.read(name)[: len(text)] for name, text in FILES.items()}, {n: t.encode() for n, t in FILES.items()}
        )


CHECKS = (
    written_files_are_read_back_inside_and_outside,
    the_workspace_itself_is_never_written,
    wrong_paths_are_refused_when_reading,
    wrong_paths_are_refused_when_writing,
    writing_more_than_the_disk_is_an_error,
    nothing_done_is_no_change,
    each_kind_of_change_is_reported,
    removed_and_moved_folders_are_reported_by_file,
    folders_and_files_may_take_each_others_place,
    a_link_that_becomes_a_folder_is_not_looked_through,
    endless_holes_are_reported_without_their_zeros,
    folders_locked_by_a_command_stay_open_to_the_caller,
    odd_names_and_sizes_are_reported,
    permissions_do_not_keep_the_sandbox_from_its_files,
)
