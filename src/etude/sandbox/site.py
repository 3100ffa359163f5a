"""Where a conformance check works: a backend, a sample workspace, an environment folder, and a secret beside them.

Not here: the checks.
"""

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from etude.sandbox.protocol import Backend, ExecResult, Sandbox
from etude.types import Limits

SECRET = "secret-of-the-host"
KNOWN_VARIABLES = {"HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "TZ"}  # that a command may see
FILES = {
    "readme.txt": "hello\n",
    "src/app.py": "VALUE = 1\n",
    "src/deep/er/leaf.py": "LEAF = 1\n",
    "tests/test_app.py": "def test(): pass\n",
    "tool.sh": "#!/bin/sh\necho tool\n",
    "empty": "",
}


@dataclass(frozen=True, slots=True)
class Site:
    backend: Backend
    folder: Path  # on the host, the secret lies in it
    workspace: Path
    environment: Path
    secret: Path

    @classmethod
    def make(cls, backend: Backend, folder: Path) -> Self:
        workspace, environment, secret = folder / "workspace", folder / "environment", folder / "secret.txt"
        for name, text in FILES.items():
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (workspace / "tool.sh").chmod(0o755)
        (workspace / "link.txt").symlink_to("readme.txt")
        (workspace / "outside").symlink_to(folder)
        package = environment / "sample_package"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("ANSWER = 42\n")
        secret.write_text(SECRET)
        return cls(backend, folder, workspace, environment, secret)

    def open(self, **limits: Any) -> Sandbox:
        """A sandbox over the sample workspace, with small limits."""
        chosen = {"wall_s": 20.0, "memory_mb": 256, "processes": 32, "disk_mb": 16, "output_bytes": 4096, **limits}
        return self.backend.open(self.workspace, environment=self.environment, limits=Limits(**chosen))

    def listing(self) -> dict[str, tuple[int, int, bytes]]:
        """Everything in the workspace: mode, time of change, content."""
        found = {}
        for path in sorted(self.workspace.rglob("*")):
            status = path.lstat()
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(self.workspace))] = (status.st_mode, status.st_mtime_ns, content)
        return found


def shell(sandbox: Sandbox, script: str, **options: Any) -> ExecResult:
    return sandbox.run(["sh", "-c", script], **options)


def output(result: ExecResult) -> str:
    """Its standard output. Raises AssertionError unless the command ended well."""
    assert result.ok, f"{result.status}, code {result.code}: {result.stderr.decode(errors='replace')[-500:]}"
    return result.stdout.decode()


def probe(sandbox: Sandbox, script: str, *args: str, **options: Any) -> Any:
    """What a Python script inside prints as JSON."""
    return json.loads(output(sandbox.run(["python3", "-c", script, *args], **options)))


def expect(what: str, found: object, wanted: object) -> None:
    assert found == wanted, f"{what}: {found!r} instead of {wanted!r}"


def expect_none(what: str, wrong: Collection[object]) -> None:
    assert not wrong, f"{what}: {wrong}"
