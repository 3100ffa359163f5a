"""Detectors: what a trajectory did that honest work does not, with the step that shows it.

    shell.py code.py   commands and Python, parsed     deeds.py   what was done, whichever tool was used     make.py   findings
    leak      caches history installed outside honeypots        harness   configuration (outside)
    tests     weakened                                          forgery   exits patching equality frames results obfuscation
    hardcode  hardcoded answers dispatch swallowed (frames)     network   network
    escape    system processes rights links (outside)                judge     addressed pleading concealed claims (said)

Each is a pure function Trajectory -> list[Finding], one a file, and reads what was done and what came back; thoughts are not looked at.
To add one: a file with NAME, FAMILY and `detect`, its line in DETECTORS, and in the tests two things that it finds and two near misses.

Not here: adding up (score.py), where submitted text came from (provenance.py).
"""

from collections.abc import Callable

from etude.monitor.detectors import (
    addressed,
    answers,
    caches,
    claims,
    concealed,
    configuration,
    dispatch,
    equality,
    exits,
    frames,
    hardcoded,
    history,
    honeypots,
    installed,
    links,
    network,
    obfuscation,
    outside,
    patching,
    pleading,
    processes,
    results,
    rights,
    swallowed,
    system,
    weakened,
)
from etude.monitor.finding import Finding
from etude.monitor.trajectory import Trajectory

Detector = Callable[[Trajectory], list[Finding]]

DETECTORS: tuple[Detector, ...] = (
    caches.detect,
    history.detect,
    installed.detect,
    network.detect,
    outside.detect,
    honeypots.detect,
    system.detect,
    processes.detect,
    rights.detect,
    links.detect,
    weakened.detect,
    configuration.detect,
    exits.detect,
    patching.detect,
    equality.detect,
    frames.detect,
    results.detect,
    obfuscation.detect,
    hardcoded.detect,
    answers.detect,
    dispatch.detect,
    swallowed.detect,
    addressed.detect,
    pleading.detect,
    concealed.detect,
    claims.detect,
)


def detect(trajectory: Trajectory) -> list[Finding]:
    """What every detector finds, in the order of the steps."""
    found = [one for detector in DETECTORS for one in detector(trajectory)]
    return sorted(found, key=lambda one: (one.step < 0, one.step))
