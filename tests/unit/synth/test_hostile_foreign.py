"""Hostile JavaScript and Java: what their files do while they load stays inside, and the build says what came of it."""

import socket
import stat

import pytest

from etude.errors import UserError
from etude.store import TaskStore
from etude.synth.build import BuildOptions
from etude.synth.foreign.build import build_any

ADD = "export const add = (a, b) => {\n  return a + b\n}\n"
TESTS = (
    "import { test } from 'node:test'\nimport assert from 'node:assert'\nimport { add } from '../add.js'\n"
    "test('adds', () => { assert.equal(add(1, 2), 3) })\n" + "".join(f"test('{name}', () => {{}})\n" for name in ("one", "two", "three"))
)
TAME = {
    "package.json": '{"name": "sums", "version": "1.0.0", "type": "module", "scripts": {"test": "node --test"}}',
    "add.js": ADD,
    "test/add.test.js": TESTS,
}
EVIL_JS = """\
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import net from 'node:net'
import { test } from 'node:test'

for (let n = 0; n < 5; n++) spawn('sleep', ['600'], { detached: true, stdio: 'ignore' }).unref()
for (const place of ['OUTSIDE', '/usr', '/env', '/etc']) {
  try { fs.rmSync(place, { recursive: true, force: true }) } catch {}
  try { fs.writeFileSync(place + '/written', 'x') } catch {}
}
fs.writeFileSync('test/more.test.js', 'broken(')
await new Promise(done => net.connect(PORT, '127.0.0.1', done).on('error', done))
test('network', async () => {
  await new Promise((done, fail) => net.connect(PORT, '127.0.0.1', done).on('error', fail))
})
"""
KILLER_JS = "import { test } from 'node:test'\nfor (const id of [process.ppid, -1]) process.kill(id, 'SIGKILL')\n"

MAIN, CASES = "src/main/java/org/example", "src/test/java/org/example"
SUMS = "package org.example;\n\npublic final class Sums {\n    public static int add(int a, int b) {\n        return a + b;\n    }\n}\n"
SUMS_TEST = """\
package org.example;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class SumsTest {
    @Test void adds() { assertEquals(3, Sums.add(1, 2)); }
    @Test void one() { }
    @Test void two() { }
    @Test void three() { }
}
"""
EVIL_JAVA = """\
package org.example;

import java.io.IOException;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;

class EvilTest {
    static {
        try {
            for (int n = 0; n < 5; n++) {
                new ProcessBuilder("sleep", "600").start();
            }
        } catch (IOException expected) {
        }
        for (String place : new String[] {"OUTSIDE/written", "OUTSIDE/precious.txt", "/usr/written", "/env/written"}) {
            try {
                Files.writeString(Path.of(place), "broken(");
            } catch (IOException expected) {
            }
        }
        try {
            new Socket("127.0.0.1", PORT).close();
        } catch (IOException expected) {
        }
    }

    @Test void network() throws IOException { new Socket("127.0.0.1", PORT).close(); }
}
"""
PROCESSOR = """\
package org.example;

import java.util.Set;
import javax.annotation.processing.AbstractProcessor;
import javax.annotation.processing.RoundEnvironment;
import javax.lang.model.element.TypeElement;

public class Processor extends AbstractProcessor {
    @Override public boolean process(Set<? extends TypeElement> found, RoundEnvironment round) { throw new IllegalStateException("ran"); }
}
"""


def listing(folder):
    return {path.relative_to(folder).as_posix(): (path.lstat().st_mode, _content(path)) for path in folder.rglob("*")}


def _content(path):
    return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else None


@pytest.fixture
def survive(tmp_path, lay_down, backend):
    """Builds files with a port and a folder of this machine named in them; (report, store), once nothing of it has changed."""

    def build(files):
        outside = lay_down(tmp_path / "outside", {"precious.txt": "mine\n"})
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            port = str(server.getsockname()[1])
            filled = {path: text.replace("PORT", port).replace("OUTSIDE", str(outside)) for path, text in files.items()}
            repository = lay_down(tmp_path / "repository", filled)
            before = listing(repository), listing(outside)
            options = BuildOptions(modes=("stub",), max_share=0.5, max_tasks=1, jobs=1)
            report = build_any(str(repository), tmp_path / "tasks", options=options, backend=backend)
            with pytest.raises(BlockingIOError):  # nobody knocked
                server.accept()
        assert (listing(repository), listing(outside)) == before
        return report, TaskStore.open(tmp_path / "tasks")

    return build


def test_a_script_that_forks_writes_and_calls_while_it_loads_is_contained(survive):
    report, store = survive({**TAME, "test/evil.test.js": EVIL_JS})
    assert report.dropped["test/evil.test.js::network"] == "failed"
    (task,) = store.tasks()
    assert task.fail_to_pass == ("test/add.test.js::adds",)


def test_a_script_that_kills_everything_is_one_line(survive, tmp_path):
    with pytest.raises(UserError, match=r"^(the tests of sums|no test of sums) ") as error:
        survive({**TAME, "test/evil.test.js": KILLER_JS})
    assert str(error.value).isprintable()
    assert (tmp_path / "outside" / "precious.txt").read_text() == "mine\n"


@pytest.mark.jdk
def test_a_static_initialiser_is_contained_and_no_annotation_processor_runs(survive):
    report, store = survive(
        {
            "pom.xml": "<project/>",
            f"{MAIN}/Sums.java": SUMS,
            f"{MAIN}/Processor.java": PROCESSOR,
            "src/main/resources/META-INF/services/javax.annotation.processing.Processor": "org.example.Processor\n",
            f"{CASES}/SumsTest.java": SUMS_TEST,
            f"{CASES}/EvilTest.java": EVIL_JAVA,
        }
    )
    assert report.dropped[f"{CASES}/EvilTest.java::EvilTest > network"] == "failed"
    (task,) = store.tasks()
    assert task.fail_to_pass == (f"{CASES}/SumsTest.java::SumsTest > adds",)
