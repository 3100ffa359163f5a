"""Java's class files (JVM specification, chapter 4): what is told by their bytes, whatever their names.

    class_values   bytes of a class file -> its names, strings and numbers, and one word for every method that it holds the code of
    method_words   Java source and some of its lines -> the same words for the methods that these lines are of

A method's name alone tells little, as many classes have one of that name; so its word stands for the top-level class, the name, and that
there is code, which is more than a few bytes that end in a throw. Methods of nested classes and lambdas count as the top-level class's.

Not here: where class files are looked for (unpack.py).
"""

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping

STUB_BYTES = 20  # of code that ends in a throw: a body that only says "not implemented"
ATHROW = 0xBF
SYNTHETIC = 0x1000
CONSTRUCTOR = "<init>"
LAMBDA = re.compile(r"lambda\$(.+)\$\d+$")
DULL = re.compile(r"/\*.*?\*/|//[^\n]*|\"\"\".*?\"\"\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.DOTALL)
PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.MULTILINE)
TYPE = re.compile(r"\b(?:class|interface|enum|record)\s+([A-Za-z_$][\w$]*)")
HEADER = re.compile(r"(?<![\w$.])([A-Za-z_$][\w$]*)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*(?:throws\s+[\w.,\s]+)?\{")
NO_METHOD = frozenset({"if", "for", "while", "switch", "catch", "synchronized", "try", "do", "else", "return"})


def class_values(data: bytes) -> Iterator[bytes]:
    """ValueError where it is not what it seems, after what could be read has come out."""
    names: dict[int, bytes] = {}
    classes: dict[int, int] = {}  # index of a class -> index of its name
    try:
        count, at, index = struct.unpack_from(">H", data, 8)[0], 10, 1
        while index < count:
            tag = data[at]
            if tag == 1:
                size = struct.unpack_from(">H", data, at + 1)[0]
                if at + 3 + size > len(data):
                    raise IndexError
                names[index] = data[at + 3 : at + 3 + size].replace(b"\xc0\x80", b"\0")
                yield names[index]
                at += 3 + size
            elif tag in (3, 4, 5, 6):
                form = {3: ">i", 4: ">f", 5: ">q", 6: ">d"}[tag]
                yield repr(struct.unpack_from(form, data, at + 1)[0]).encode()
                at += 1 + struct.calcsize(form)
                index += tag in (5, 6)  # these take two places
            elif tag in (7, 8, 16, 19, 20):
                classes |= {index: struct.unpack_from(">H", data, at + 1)[0]} if tag == 7 else {}
                at += 3
            elif tag in (9, 10, 11, 12, 17, 18):
                at += 5
            elif tag == 15:
                at += 4
            else:
                raise ValueError(f"class file that cannot be read: tag {tag} at byte {at}")
            index += 1
        yield from _methods(data, at, names, classes)
    except (struct.error, IndexError, KeyError):
        raise ValueError("the class file ends too early") from None


def _methods(data: bytes, at: int, names: Mapping[int, bytes], classes: Mapping[int, int]) -> Iterator[bytes]:
    """What stands behind the constants: flags, this class, its interfaces, fields, methods."""
    this, num_interfaces = struct.unpack_from(">2xH2xH", data, at)
    at += 8 + 2 * num_interfaces
    if this == 0:  # nothing but constants
        return
    owner = names[classes[this]].decode("utf-8", "replace").partition("$")[0]
    for is_method in (False, True):
        (count,) = struct.unpack_from(">H", data, at)
        at += 2
        for _ in range(count):
            flags, name_at, num_attributes = struct.unpack_from(">HH2xH", data, at)
            at += 8
            name = names[name_at].decode("utf-8", "replace")
            for _ in range(num_attributes):
                attribute, size = struct.unpack_from(">HI", data, at)
                if at + 6 + size > len(data):
                    raise IndexError
                if is_method and names[attribute] == b"Code" and (word := _of_code(owner, name, flags, data, at + 6)):
                    yield word
                at += 6 + size


def _of_code(owner: str, name: str, flags: int, data: bytes, at: int) -> bytes | None:
    (length,) = struct.unpack_from(">I", data, at + 4)
    if length <= STUB_BYTES and data[at + 7 + length] == ATHROW:
        return None
    inner = LAMBDA.match(name)
    if flags & SYNTHETIC and not inner:  # made by the compiler
        return None
    return _word(owner, inner[1] if inner else name)


def method_words(text: str, lines: set[int]) -> dict[bytes, str]:
    """Word -> "Class.method", of every method that one of these lines (from 1) is of, brackets and empty lines aside."""
    bare = DULL.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    rows = bare.split("\n")
    wanted = {number for number in lines if number <= len(rows) and re.search(r"\w", rows[number - 1])}
    package = PACKAGE.search(bare)
    types = {match.start(): match[1] for match in TYPE.finditer(bare)}
    tops = {start: name for start, name in types.items() if bare.count("{", 0, start) == bare.count("}", 0, start)}
    found: dict[bytes, str] = {}
    for match in HEADER.finditer(bare):
        above = [name for start, name in tops.items() if start < match.start()]
        if match[1] in NO_METHOD or not above or re.search(r"\bnew\s+(?:[\w.<>]+\.)?$", bare[: match.start()]):
            continue
        first, last = (bare.count("\n", 0, offset) + 1 for offset in (match.start(), _closing(bare, match.end() - 1)))
        if not wanted.isdisjoint(range(first, last + 1)):
            name = CONSTRUCTOR if match[1] in types.values() else match[1]
            owner = f"{package[1].replace('.', '/')}/{above[-1]}" if package else above[-1]
            found[_word(owner, name)] = f"{above[-1]}.{match[1]}"
    return found


def _word(owner: str, name: str) -> bytes:
    return b"javamethod" + hashlib.blake2b(f"{owner}#{name}".encode("utf-8", "surrogatepass"), digest_size=12).hexdigest().encode()


def _closing(text: str, at: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    return len(text)
