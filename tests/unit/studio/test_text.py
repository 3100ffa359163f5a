"""studio/text.py: data never becomes markup, and nothing in it stays hidden."""

import pytest

from etude.studio.text import plain, visible


def test_markup_is_escaped() -> None:
    assert visible("<script>alert('x')</script> & \"y\"") == "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;y&#34;"


@pytest.mark.parametrize(
    ("char", "shown"), [("\x1b", "␛"), ("\0", "␀"), ("\r", "␍"), ("\x7f", "␡"), ("\x9b", "U+009B"), ("\u202e", "U+202E")]
)
def test_control_and_bidirectional_characters_are_written_out(char: str, shown: str) -> None:
    assert visible(f"a{char}b") == f'a<span class="ctl" title="U+{ord(char):04X}">{shown}</span>b'


@pytest.mark.parametrize("char", ["\u200b", "\u2066", "\u2028", "\ue000", "\U000e0041", "\u3164", "\ufeff"])
def test_characters_that_show_nothing_are_written_out(char: str) -> None:
    assert char not in visible(char)
    assert f"U+{ord(char):04X}" in visible(char)


def test_half_a_surrogate_pair_can_be_written_to_a_file() -> None:
    assert visible("\ud800").encode("utf-8")


def test_newlines_tabs_and_letters_of_any_script_stay() -> None:
    assert visible("a\r\n\tü 漢字 عربى 😀") == "a\n\tü 漢字 عربى 😀"


def test_an_attribute_gets_one_line_without_markup() -> None:
    assert plain('a"b\x1b\nc <i>') == "a&#34;b␛ c &lt;i&gt;"
