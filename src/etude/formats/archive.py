"""A tree as one tar file whose bytes depend on its paths, modes and contents only, and back.

One file, since a folder inside another project would meet that project's .gitignore, .gitattributes and .dockerignore.

Not here: what is in which archive (harbor.py).
"""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from etude import tree
from etude.errors import UserError

TIME = 946684800  # 2000-01-01: zip archives, and so wheels, know no year before 1980


def write_tar(folder: Path, file: Path, *, only: Iterable[str] | None = None) -> None:
    """The files of a tree (or `only` those), sorted, owner root, one time, not compressed: zlib's output differs by version."""
    found = tree.files(folder)
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(found if only is None else only):
            data = found[path].read_bytes()
            member = tarfile.TarInfo(path)
            member.size, member.mtime = len(data), TIME
            member.mode = 0o755 if found[path].stat().st_mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(data))


def read_tar(file: Path, folder: Path) -> None:
    """Unpack an archive of regular files into the new folder `folder`. UserError for anything else in it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                if not member.isreg():
                    raise UserError(f"{file} holds {member.name!r}, which is no regular file; export the task again")
                archive.extract(member, folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{file} cannot be unpacked: {str(error) or type(error).__name__}; export the task again") from None
