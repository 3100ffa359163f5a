"""What a cut takes along, and where it stops and stubs instead."""

import pytest

from etude.synth.cut import CutError


def test_a_removed_function_takes_exports_reexports_and_wrappers_along(repository):
    repo = repository(
        {
            "pkg/__init__.py": "from .core import *\nfrom .more import gone, other\n",
            "pkg/core.py": (
                "import heapq\nimport sys\n\n__all__ = ('kept', 'gone')\n\n\n"
                "def kept():\n    return sys\n\n\ndef gone():\n    return heapq\n"
            ),
            "pkg/more.py": (
                "import pkg\nfrom pkg.core import gone, kept\n\nother = pkg.core.gone()\ngone.__doc__ = 'x'\nlast = [kept, other]\n"
            ),
        }
    )
    assert repo.files_after("gone") == {
        "pkg/__init__.py": "from .core import *\n",
        "pkg/core.py": "import sys\n\n__all__ = ('kept',)\n\n\ndef kept():\n    return sys\n",
        "pkg/more.py": "from pkg.core import kept\n\nlast = [kept]\n",
    }


def test_a_name_that_another_binding_still_gives_is_not_dead(repository):
    repo = repository(
        {
            "pkg/__init__.py": "from .a import *\nfrom .b import *\n",
            "pkg/a.py": "def gone():\n    return 1\n\n\ndef kept():\n    return 2\n",
            "pkg/b.py": "def gone():\n    return 3\n\n\nx = 4\n",
            "pkg/c.py": "from pkg import gone\ny = gone()\n",
        }
    )
    assert list(repo.files_after(("gone", 0))) == ["pkg/a.py"]


def test_what_a_surviving_body_uses_is_stubbed_and_the_place_is_named(repository):
    repo = repository({"pkg.py": "def gone():\n    return 1\n\n\ndef helper():\n    return 2\n\n\ndef kept():\n    return helper()\n"})
    cut = repo.cut("gone", "helper")
    assert [d.qualname for d in cut.removed] == ["gone"]
    assert [d.qualname for d in cut.stubbed] == ["helper"]
    assert cut.blockers == ("pkg.py:9",)
    assert repo.files_after("gone", "helper") == {
        "pkg.py": "def helper():\n    raise NotImplementedError\n\n\ndef kept():\n    return helper()\n"
    }


def test_nothing_left_to_remove_is_an_error_with_the_place(repository):
    repo = repository(
        {"pkg.py": "def gone():\n    return 1\n\n\nclass Kept:\n    x = staticmethod(lambda: gone())\n    def f(self): return gone()\n"}
    )
    with pytest.raises(CutError, match=r"needed at pkg\.py:7"):
        repo.cut("gone")


@pytest.mark.parametrize(
    "user",
    [
        "@gone\ndef user(): pass\n",
        "class user(gone): pass\n",
        "def user(x=gone): pass\n",
        "def user():\n    import pkg.core\n    return pkg.core.gone\n",
        "def user():\n    from pkg.core import gone as g\n    return g\n",
        "def user():\n    return [gone for x in 'ab']\n",
        "if gone:\n    user = 1\n",
        "async def user():\n    return await gone\n",
    ],
)
def test_every_kind_of_use_is_seen(repository, user):
    repo = repository({"pkg/core.py": "def gone(f=None):\n    return 1\n", "pkg/use.py": f"from pkg.core import gone\n\n\n{user}"})
    with pytest.raises(CutError, match=r"needed at pkg/use\.py"):
        repo.cut("gone")


@pytest.mark.parametrize(
    "user",
    [
        "def user(gone): return gone\n",
        "def user():\n    gone = 1\n    return gone\n",
        "def user():\n    for gone in 'ab': pass\n    return [gone for gone in 'ab']\n",
        "def user(x):\n    return x.gone\n",
        "def user():\n    from elsewhere import gone\n    return gone\n",
        "def user():\n    def gone(): return 2\n    return gone()\n",
        "class User:\n    def gone(self): return 2\n    def other(self): return self.gone()\n",
        "def user():\n    return 'gone'\n",
    ],
)
def test_a_local_name_is_no_use(repository, user):
    repo = repository({"pkg.py": f"def gone():\n    return 1\n\n\n{user}"})
    assert repo.files_after(("gone", 0)) == {"pkg.py": user}


def test_the_setter_goes_without_the_getter_but_not_the_other_way_round(repository):
    text = (
        "class A:\n    @property\n    def x(self):\n        return self._x\n\n"
        "    @x.setter\n    def x(self, value):\n        self._x = value\n\n    y = 1\n"
    )
    repo = repository({"pkg.py": text})
    assert repo.files_after(("A.x", 1)) == {"pkg.py": "class A:\n    @property\n    def x(self):\n        return self._x\n\n    y = 1\n"}
    with pytest.raises(CutError, match="needed at"):
        repo.cut(("A.x", 0))
    assert repo.files_after(("A.x", 0), ("A.x", 1)) == {"pkg.py": "class A:\n    y = 1\n"}


def test_overloads_go_with_their_implementation(repository):
    text = (
        "from typing import overload\n\n\n@overload\ndef gone(x: int) -> int: ...\n@overload\ndef gone(x: str) -> str: ...\n"
        "def gone(x):\n    return x\n\n\ny = 1\n"
    )
    assert repository({"pkg.py": text}).files_after(("gone", 2)) == {"pkg.py": "y = 1\n"}


def test_one_implementation_of_a_singledispatch_goes_alone(repository):
    text = (
        "from functools import singledispatch\n\n\n@singledispatch\ndef show(x):\n    return 1\n\n\n"
        "@show.register\ndef _(x: int):\n    return 2\n\n\n@show.register\ndef _(x: str):\n    return 3\n"
    )
    repo = repository({"pkg.py": text})
    assert repo.files_after(("_", 1)) == {"pkg.py": text[: text.index("\n\n@show.register\ndef _(x: str)")]}
    with pytest.raises(CutError):
        repo.cut("show")


def test_the_other_branch_of_an_if_goes_along(repository):
    text = "import sys\n\nif sys.version_info > (3,):\n    def gone(): return 1\nelse:\n    def gone(): return 2\n\nx = sys.path\n"
    assert repository({"pkg.py": text}).files_after(("gone", 0)) == {
        "pkg.py": "import sys\n\nif sys.version_info > (3,):\n    pass\nelse:\n    pass\n\nx = sys.path\n"
    }


def test_a_name_bound_again_by_its_own_wrapper_is_dead(repository):
    text = "def wrap(f): return f\n\n\ndef gone():\n    return 1\n\n\ngone = wrap(gone)\nx = 1\n"
    assert repository({"pkg.py": text}).files_after("gone") == {"pkg.py": "def wrap(f): return f\n\n\nx = 1\n"}


def test_special_methods_of_a_class_with_bases_are_stubbed(repository):
    head = "from collections.abc import Sized\n\n\nclass A(Sized):\n    def __len__(self):\n"
    text = head + "        return 1\n\n    def gone(self):\n        return 2\n"
    repo = repository({"pkg.py": text})
    assert repo.files_after("A.__len__", "A.gone") == {
        "pkg.py": "from collections.abc import Sized\n\n\nclass A(Sized):\n    def __len__(self):\n        raise NotImplementedError\n"
    }


def test_special_methods_of_a_plain_class_are_removed(repository):
    repo = repository({"pkg.py": "class A(object):\n    def __len__(self):\n        return 1\n\n    x = 1\n"})
    assert repo.files_after("A.__len__") == {"pkg.py": "class A(object):\n    x = 1\n"}


def test_a_method_used_through_self_is_stubbed_and_an_alias_in_the_class_goes(repository):
    text = "class A:\n    def gone(self):\n        return 1\n\n    alias = gone\n\n    def kept(self):\n        return self.alias\n"
    with pytest.raises(CutError, match=r"pkg\.py:7"):
        repository({"pkg.py": text}).cut("A.gone")
    alone = text.replace("self.alias", "2")
    assert repository({"pkg.py": alone}).files_after("A.gone") == {"pkg.py": "class A:\n    def kept(self):\n        return 2\n"}


def test_a_class_goes_with_everything_in_it(repository):
    repo = repository({"pkg.py": "import re\n\n\nclass Gone:\n    def f(self):\n        return re\n\n\nREGISTRY = {'a': Gone, 'b': 1}\n"})
    assert repo.files_after("Gone", "Gone.f") == {"pkg.py": "REGISTRY = {'b': 1}\n"}


def test_a_class_that_must_stay_has_its_methods_stubbed(repository):
    text = "class Gone:\n    def f(self):\n        return 1\n\n    def g(self): pass\n\n\n"
    user = "def kept(): return Gone()\n"
    repo = repository({"pkg.py": text + "def other(): return 2\n\n\n" + user})
    assert repo.files_after("Gone", "other") == {"pkg.py": text.replace("return 1", "raise NotImplementedError") + user}


def test_a_module_left_without_content_goes_whole(repository):
    repo = repository(
        {
            "pkg/__init__.py": "from . import gone_module, kept\nfrom .gone_module import *\n",
            "pkg/gone_module.py": '"""Doc."""\n\nimport re\n\n__all__ = ["gone"]\n\n\ndef gone():\n    return re\n',
            "pkg/kept.py": "import pkg.gone_module\nx = 1\n",
        }
    )
    assert repo.files_after("gone") == {
        "pkg/__init__.py": "from . import kept\n",
        "pkg/gone_module.py": None,
        "pkg/kept.py": "x = 1\n",
    }


def test_a_module_that_others_need_stays_empty(repository):
    repo = repository(
        {
            "pkg/__init__.py": "",
            "pkg/mod.py": "def gone():\n    return 1\n",
            "pkg/use.py": "from pkg import mod\n\n\ndef kept():\n    return mod\n",
        }
    )
    assert repo.files_after("gone") == {"pkg/mod.py": ""}


def test_imports_that_others_take_from_the_module_stay(repository):
    text = "import heapq\nimport re\nfrom os import path\n\n\ndef gone():\n    return heapq, re, path\n\n\nx = 1\n"
    repo = repository({"pkg/mod.py": text, "pkg/a.py": "from pkg.mod import re\n", "pkg/b.py": "import pkg.mod as m\ny = m.path\n"})
    assert repo.files_after("gone") == {"pkg/mod.py": "import re\nfrom os import path\n\n\nx = 1\n"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("__all__ = ['gone', 'x']\n", "__all__ = ['x']\n"),
        ("__all__ = ['x']\n__all__ += ['gone']\n", "__all__ = ['x']\n"),
        ("__all__ = ['x']\n__all__ += ('gone', 'y')\n", "__all__ = ['x']\n__all__ += ('y',)\n"),
        ("__all__ = ['x']\n__all__.append('gone')\n", "__all__ = ['x']\n"),
        ("__all__ = ['x']\n__all__.extend(['gone', 'y'])\n", "__all__ = ['x']\n__all__.extend(['y'])\n"),
        ("__all__: list[str] = ['gone']\n", "__all__: list[str] = []\n"),
        ("__all__ = ['x'] + ['gone']\n", "__all__ = ['x'] + []\n"),
    ],
)
def test_every_form_of_all(repository, before, after):
    rest = "x = y = 1\n\n\ndef gone():\n    return 1\n"
    assert repository({"pkg.py": before + rest}).files_after("gone") == {"pkg.py": after + "x = y = 1\n"}


def test_a_deleted_name_is_no_longer_deleted(repository):
    assert repository({"pkg.py": "def gone(): return 1\nx = y = 1\ndel gone, y\n"}).files_after("gone") == {"pkg.py": "x = y = 1\ndel y\n"}


def test_a_stub_file_loses_its_part(repository):
    repo = repository(
        {
            "pkg/__init__.py": "from .mod import gone as gone, kept as kept\n",
            "pkg/__init__.pyi": "from .mod import gone as gone, kept as kept\n",
            "pkg/mod.py": (
                "class A:\n    def gone_too(self): return 1\n    def kept(self): return 2\n\n\ndef gone(): return 1\ndef kept(): return 2\n"
            ),
            "pkg/mod.pyi": (
                "class A:\n    def gone_too(self) -> int: ...\n    def kept(self) -> int: ...\n\n"
                "def gone() -> int: ...\ndef kept() -> int: ...\n"
            ),
        }
    )
    changed = repo.files_after("gone", "A.gone_too")
    assert changed["pkg/__init__.pyi"] == "from .mod import kept as kept\n"
    assert changed["pkg/mod.pyi"] == "class A:\n    def kept(self) -> int: ...\n\ndef kept() -> int: ...\n"


def test_stub_mode_changes_bodies_only(repository):
    repo = repository({"pkg.py": "import re\n__all__ = ['gone']\n\n\ndef gone():\n    return re\n"})
    assert repo.files_after("gone", mode="stub") == {
        "pkg.py": "import re\n__all__ = ['gone']\n\n\ndef gone():\n    raise NotImplementedError\n"
    }


def test_a_trivial_body_gives_no_stub(repository):
    repo = repository({"pkg.py": "def gone():\n    'Doc.'\n    ...\n\n\ndef other():\n    raise NotImplementedError('x')\n"})
    with pytest.raises(CutError, match="no body"):
        repo.cut("gone", "other", mode="stub")


def test_src_layout_and_relative_imports_are_followed(repository):
    repo = repository(
        {
            "src/pkg/__init__.py": "from .sub.deep import gone\n",
            "src/pkg/sub/__init__.py": "",
            "src/pkg/sub/deep.py": "def gone():\n    return 1\n\n\nx = 1\n",
            "src/pkg/sub/user.py": "from ..sub import deep\nfrom .. import gone as g\n\ny = g()\nz = deep.gone\nw = deep.x\n",
        },
        roots=("src",),
    )
    assert repo.files_after("gone") == {
        "src/pkg/__init__.py": "",
        "src/pkg/sub/deep.py": "x = 1\n",
        "src/pkg/sub/user.py": "from ..sub import deep\n\nw = deep.x\n",
    }


def test_a_function_named_like_its_module_hides_the_module(repository):
    repo = repository(
        {
            "app.py": "from pkg import gone, other\n\nx = gone()\ny = other\n",
            "pkg/__init__.py": "from .gone import gone\nfrom . import other\n",
            "pkg/gone.py": "def gone():\n    return 1\n\n\nx = 1\n",
            "pkg/other.py": "def other():\n    return 1\n",
        }
    )
    assert repo.files_after("gone") == {
        "app.py": "from pkg import other\n\ny = other\n",
        "pkg/__init__.py": "from . import other\n",
        "pkg/gone.py": "x = 1\n",
    }


# -- tests


PACKAGE = "def gone():\n    return 1\n\n\ndef kept():\n    return 2\n"


def test_tests_that_use_what_is_gone_go_with_their_helpers_and_imports(repository):
    repo = repository(
        {
            "pkg.py": PACKAGE,
            "test_pkg.py": (
                "import os\nimport re\nfrom pkg import gone, kept\n\nDATA = [re]\n\n\ndef helper():\n    return DATA\n\n\n"
                "def test_gone():\n    assert gone() == helper()\n\n\ndef test_kept():\n    assert kept() == os\n"
            ),
        }
    )
    assert repo.tests_after("gone") == {"test_pkg.py": "import os\nfrom pkg import kept\n\n\ndef test_kept():\n    assert kept() == os\n"}


def test_a_fixture_that_uses_it_takes_the_tests_that_ask_for_it_by_name(repository):
    repo = repository(
        {
            "pkg.py": PACKAGE,
            "tests/conftest.py": (
                "import pytest\nfrom pkg import gone\n\n\n@pytest.fixture\ndef thing():\n    return gone()\n\n\n"
                "@pytest.fixture\ndef other():\n    return 1\n"
            ),
            "tests/test_a.py": "def test_a(thing):\n    assert thing\n\n\ndef test_b(other):\n    assert other\n",
        }
    )
    assert repo.tests_after("gone") == {
        "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef other():\n    return 1\n",
        "tests/test_a.py": "def test_b(other):\n    assert other\n",
    }


def test_a_class_left_without_tests_goes_and_a_file_without_tests_goes(repository):
    repo = repository(
        {
            "pkg.py": PACKAGE,
            "test_a.py": (
                "import pkg\n\n\nclass TestGone:\n    x = 1\n\n    def test_a(self):\n        assert pkg.gone()\n\n\n"
                "class TestKept:\n    def test_a(self): pass\n"
            ),
            "test_b.py": "import pkg\n\n\ndef test_b():\n    assert pkg.gone()\n",
        }
    )
    assert repo.tests_after("gone") == {"test_a.py": "class TestKept:\n    def test_a(self): pass\n", "test_b.py": None}


def test_a_test_file_that_another_imports_from_is_only_emptied(repository):
    repo = repository(
        {
            "pkg.py": PACKAGE,
            "test_a.py": "import pkg\n\nLIMIT = 3\n\n\ndef test_a():\n    assert pkg.gone() < LIMIT\n",
            "test_b.py": "from test_a import LIMIT\n\n\ndef test_b():\n    assert LIMIT\n",
        }
    )
    assert repo.tests_after("gone") == {"test_a.py": "LIMIT = 3\n"}


def test_stub_mode_takes_the_measured_tests_and_what_calls_them(repository):
    repo = repository(
        {
            "pkg.py": PACKAGE,
            "test_a.py": (
                "from pkg import gone\n\n\ndef test_gone(x=1):\n    assert gone()\n\n\n"
                "def test_again():\n    test_gone(2)\n\n\ndef test_kept(): pass\n"
            ),
        }
    )
    assert repo.tests_after("gone", mode="stub", feature=["test_gone"]) == {"test_a.py": "def test_kept(): pass\n"}


def test_a_header_that_cannot_go_is_an_error(repository):
    repo = repository({"pkg.py": PACKAGE, "test_a.py": "import pkg\n\nif pkg.gone():\n    def test_a(): pass\n"})
    with pytest.raises(CutError, match=r"cannot be reduced: needed at test_a\.py:3"):
        repo.tests_after("gone")


def test_of_a_table_in_a_table_only_the_entry_goes_and_the_inner_table_with_its_last(repository):
    text = (
        "def one(): pass\ndef two(): pass\ndef three(): pass\n\nREADERS = {\n    'body': {'length': one, 'chunks': two},\n"
        "    'done': [three],\n    'idle': None,\n}\nROWS = {'rows': [('one', one), ('none', None)]}\n"
    )
    repo = repository({"pkg.py": text})
    assert "'body': {'chunks': two}," in repo.files_after("one")["pkg.py"]
    assert "ROWS = {'rows': [('none', None)]}" in repo.files_after("one")["pkg.py"]
    assert "READERS = {\n    'idle': None,\n}" in repo.files_after("one", "two", "three")["pkg.py"]


@pytest.mark.parametrize(
    ("base", "method"),
    [("Base", "work"), ("Middle", "work"), ("other.Far", "work"), ("MutableSet", "discard"), ("collections.abc.Sequence[int]", "index_of")],
)
def test_what_an_abstract_base_demands_is_stubbed(repository, base, method):
    abstract = "class {}:\n    @abc.abstractmethod\n    def work(self): ...\n\n    def play(self): ...\n\n\n"
    text = (
        "import abc\nimport collections.abc\nfrom collections.abc import MutableSet\n\nimport other\n\n\n"
        + abstract.format("Base")
        + f"class Middle(Base):\n    pass\n\n\nclass Real({base}):\n    def {method}(self): return 1\n\n    def play(self): return 2\n"
    )
    repo = repository({"pkg.py": text, "other.py": "import abc\n\n\n" + abstract.format("Far")})
    cut = repo.cut(f"Real.{method}", "Real.play")
    demanded = [] if method == "index_of" else [f"Real.{method}"]
    assert [d.qualname for d in cut.stubbed] == demanded
    assert [d.qualname for d in cut.removed] == [name for name in (f"Real.{method}", "Real.play") if name not in demanded]


def test_a_test_that_another_of_its_name_hid_goes_with_it(repository):
    repo = repository(
        {
            "pkg.py": "def gone():\n    return 1\n\n\ndef kept():\n    return 2\n",
            "tests/test_pkg.py": (
                "from pkg import gone, kept\n\n\ndef test_same():\n    assert kept() == 2\n\n\n"
                "def test_same():\n    assert gone() == 1\n\n\ndef test_kept():\n    assert kept() == 2\n"
            ),
        }
    )
    expected = "from pkg import kept\n\n\ndef test_kept():\n    assert kept() == 2\n"
    assert repo.tests_after("gone") == {"tests/test_pkg.py": expected}
