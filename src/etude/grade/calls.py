"""Inside the sandbox: note the calls of functions while tests run, and make such calls again. Two scripts, read as text by generated.py.

Standard library only. A call travels as JSON: numbers, strings, true, false, null as they are, everything else as [kind, ...]:

    ["list" | "tuple" | "set" | "frozenset" | "iter", [...]]  ["dict", [[key, value], ...]]  ["bytes", hex]  ["int" | "float", text]
    ["ref", module, name]     a function or class of builtins, operator or math

What cannot be written so is no call to compare: plain types only, and no code of the repository has a say in how its values are written.

Not here: which calls (generated.py).
"""

ENCODE = r"""
import itertools, json, math

MODULES = ("builtins", "operator", "_operator", "math")
MAX_DEPTH, MAX_ITEMS, MAX_CHARS, MAX_BITS = 6, 200, 2000, 4000

def encode(value, lenient=False, depth=0):
    kind = type(value)
    if depth > MAX_DEPTH:
        raise TypeError("too deep")
    if value is None or kind is bool:
        return value
    for plain in (int, float, str, bytes, list, tuple, dict, set, frozenset):
        if kind is plain or (lenient and isinstance(value, plain)):
            kind = plain
            break
    below = lambda each: encode(each, lenient, depth + 1)
    if kind is int:
        value = int.__index__(value) if lenient else value
        if value.bit_length() > MAX_BITS:
            raise TypeError("too large")
        return value if abs(value) < 2**53 else ["int", str(value)]
    if kind is float:
        value = float.__add__(value, 0.0)
        return value if math.isfinite(value) else ["float", repr(value)]
    if kind is str:
        if str.__len__(value) > MAX_CHARS:
            raise TypeError("too long")
        return str.__str__(value)
    if kind is bytes:
        return ["bytes", bytes.hex(value)]
    if kind in (list, tuple, set, frozenset):
        items = [below(each) for each in itertools.islice(kind.__iter__(value), MAX_ITEMS + 1)]
        if len(items) > MAX_ITEMS:
            raise TypeError("too many")
        return [kind.__name__, sorted(items, key=json.dumps) if kind in (set, frozenset) else items]
    if kind is dict:
        if dict.__len__(value) > MAX_ITEMS:
            raise TypeError("too many")
        return ["dict", [[below(key), below(each)] for key, each in dict.items(value)]]
    if getattr(value, "__module__", None) in MODULES and isinstance(getattr(value, "__name__", None), str) and callable(value):
        return ["ref", value.__module__.lstrip("_"), value.__name__]
    if lenient and hasattr(kind, "__next__"):
        return ["iter", [below(each) for each in itertools.islice(value, MAX_ITEMS)]]
    if lenient and (kind is range or kind.__module__ in ("builtins", "collections")) and hasattr(kind, "__iter__"):
        return ["iter", [below(each) for each in itertools.islice(iter(value), MAX_ITEMS)]]
    raise TypeError("not plain")
"""

RECORD = (
    ENCODE
    + r"""
import functools, os, types

def note(scope, module, names, place, most):
    def wrap(name, function):
        seen = set()
        @functools.wraps(function)
        def noted(*args, **kwargs):
            if len(seen) < most:
                try:
                    line = json.dumps([module, name, [encode(each) for each in args], {key: encode(each) for key, each in kwargs.items()}])
                except Exception:
                    line = ""
                if line and len(line) < 3000 and line not in seen:
                    seen.add(line)
                    try:
                        fd = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                        os.write(fd, line.encode() + b"\n")
                        os.close(fd)
                    except OSError:
                        pass
            return function(*args, **kwargs)
        return noted
    for name in names:
        if type(scope.get(name)) is types.FunctionType:
            scope[name] = wrap(name, scope[name])
"""
)

CALL = (
    ENCODE
    + r"""
import importlib, os, signal, sys
request = json.loads(sys.stdin.read())
out = os.fdopen(os.dup(1), "w")
null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)
sys.path[:0] = [*(os.path.normpath(os.path.join(os.getcwd(), root)) for root in request["roots"]), request["env"]]

PLAIN_NOT = ("too deep", "too large", "too long", "too many", "not plain")

class Slow(BaseException):
    pass

def stop(*_):
    raise Slow

def decode(each):
    if not isinstance(each, list):
        return each
    kind, *rest = each
    if kind == "ref":
        return getattr(importlib.import_module(rest[0]), rest[1])
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind in ("int", "float"):
        return {"int": int, "float": float}[kind](rest[0])
    if kind == "dict":
        return {decode(key): decode(value) for key, value in rest[0]}
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "iter": iter}[kind](map(decode, rest[0]))

def call(module, name, args, kwargs):
    try:
        given, named = [decode(each) for each in args], {key: decode(each) for key, each in kwargs.items()}
    except Exception:
        return ["opaque"]
    try:
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        try:
            try:
                function = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                return ["missing"]
            got = function(*given, **named)
            try:
                return ["value", encode(got, True)]
            except TypeError as error:
                return ["opaque"] if error.args[:1] and error.args[0] in PLAIN_NOT else ["raises"]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except Slow:
        return ["slow"]
    except BaseException:
        return ["raises"]

signal.signal(signal.SIGPROF, stop)
for each in request["calls"]:
    out.write(json.dumps(call(*each)) + "\n")
    out.flush()
os._exit(0)
"""
)
