"""/compare: what is compared, what is shown, what is taken into the conversation, and the page."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mink_local.chat.compare import complete, parsed
from mink_local.chat.screen import Screen
from mink_local.cli import printable
from mink_local.samplers import MinK, MinP, Mirostat, Order, TopK, TopNSigma, TopP
from tests.chat.conftest import Typist
from tests.support.terminal import Terminal

pytestmark = pytest.mark.usefixtures("own_files")

Begin = Callable[..., Typist]
LAST: Order = "temperature-last"
FIRST: Order = "temperature-first"


def test_what_is_compared() -> None:
    """Without methods the usual ones, in llama.cpp's order and in that of the papers, and one's own."""
    usual = [MinK(), MinP(order=LAST), MinP(), TopP(order=LAST), TopP(), TopNSigma()]
    assert parsed("", 2.0, MinK()).samplers == usual
    assert parsed("", 2.0, MinK(tau=1)).samplers == [MinK(tau=1), *usual[1:]]
    assert parsed("", 2.0, TopK(7)).samplers == [MinK(), TopK(7), *usual[1:]]
    assert parsed("", 2.0, MinP()).samplers == [MinK(), MinP(), MinP(order=LAST), *usual[3:]]
    assert parsed("", 2.0, Mirostat()).samplers == usual
    wanted = parsed("T=1,5 min-k min-p:p=0.2 top-k:k=3  Two  words\nand a line --html a b.html", 2.0, MinK())
    assert wanted.temperatures == [1.0, 5.0]
    assert wanted.samplers == [MinK(), MinP(0.2, LAST), MinP(0.2), TopK(3)]
    assert wanted.text == "Two  words\nand a line"
    assert wanted.page == "a b.html"
    assert parsed(f"top-p:order={FIRST}", 2.0, MinK()).samplers == [TopP()]
    assert parsed("-- greedy people", 2.0, MinK()).text == "greedy people"
    assert parsed("T=2 --flag is a word", 2.0, MinK()).text == "--flag is a word"
    assert parsed("Hi", 2.0, MinK()).temperatures == [2.0]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("Hi", "at temperature 0 all methods are one"),
        ("T=0 Hi", "'0' is no temperature above 0"),
        ("T=1,hot Hi", "'hot' is no temperature above 0"),
        ("T=1 min-p:q=1 Hi", "min-p has no option 'q'"),
        ("T=1 mirostat Hi", "mirostat samples by itself"),
        ("T=1 Hi --html", "--html needs a file"),
    ],
)
def test_what_cannot_be_compared(argument: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parsed(argument, 0.0, MinK())


def test_a_comparison_changes_nothing(typist: Begin) -> None:
    typed = typist("--temp", "5", "--tau", "2", "-n", "6", "--seed", "1")
    assert "there is no message yet" in typed.say("/compare")
    shown = typed.say("/compare Name a colour.")
    methods = ("min-k:tau=2", "min-p:p=0.1 (T last)", "min-p:p=0.1 (T first)", "top-p:p=0.9 (T last)",
               "top-p:p=0.9 (T first)", "top-n-sigma:n=1")  # fmt: skip
    for number, method in enumerate(methods, start=1):
        assert re.search(rf"^{number}  {re.escape(method)}, temperature 5$", shown, re.M)
    assert "seed 1" in shown
    assert re.search(r"3  .*\nleaves 1 at token \d+: .*, rank [\d,]+; 1 had cut at \d+\n", shown)
    assert typed.chat.session.branch == []
    assert typed.say("/compare Name a colour.") == shown


def test_equal_texts_are_shown_once(typist: Begin) -> None:
    shown = typist("--temp", "1").say("/compare greedy top-k:k=1 -- Say hello.")
    assert shown.count("Hello") == 1
    assert "2  top-k:k=1, temperature 1\nthe same text as 1\n" in shown


def test_a_grid_of_temperatures(typist: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = typist("-n", "4", "--seed", "1")
    shown = typed.say("/compare T=1,2,5 min-k top-n-sigma Name a colour.")
    assert re.findall(r"^(\d)  (\S+), temperature (\d)$", shown, re.M) == [
        ("1", "min-k:tau=3", "1"), ("2", "top-n-sigma:n=1", "1"), ("3", "min-k:tau=3", "2"),
        ("4", "top-n-sigma:n=1", "2"), ("5", "min-k:tau=3", "5"), ("6", "top-n-sigma:n=1", "5"),
    ]  # fmt: skip
    assert re.search(r"median k +T=1 +T=2 +T=5 *\nmin-k:tau=3 +1: \d+ +3: \d+ +5: \d+", shown)
    monkeypatch.setenv("COLUMNS", "40")
    typed.chat.screen = Screen()
    narrow = typed.say("/compare T=1,2,5 min-k min-p Name a colour.")
    assert "median k" not in narrow
    assert "9  min-p:p=0.1 (T first), temperature 5" in narrow


def test_an_answer_is_taken(typist: Begin) -> None:
    typed = typist("--temp", "5", "-n", "6", "--seed", "1")
    session = typed.chat.session
    assert "nothing has been compared yet" in typed.say("/compare take 1")
    typed.say("/compare Name a colour.")
    assert "the comparison has 6 answers" in typed.say("/compare take 7")
    assert "answer 3 is part of the conversation" in typed.say("/compare take 3")
    user, answer = session.branch
    assert answer.how
    assert answer.outcome
    assert (user.content, answer.how.sampler, answer.how.temperature) == (
        "Name a colour.", "min-p:p=0.1,order=temperature-first", 5.0,
    )  # fmt: skip
    assert len(answer.outcome.tokens) == 6 <= len(answer.outcome.k)
    assert max(answer.outcome.k) > 100
    typed.say("/compare take 1")
    assert [message.id for message in session.branch[:1]] == [user.id]
    assert re.search(r"  1  .*\n\* 2  ", typed.say("/pick"))
    explained = typed.say("/explain 1")
    assert "token 1 of 6" in explained
    assert "The sampler kept" not in explained  # another number than now
    assert "6 tokens" in typed.say("And another.")
    assert len(session.branch) == 4


def test_the_last_message_is_answered_again(typist: Begin) -> None:
    typed = typist("--temp", "5", "-n", "4", "--seed", "1")
    session = typed.chat.session
    typed.say("Name a colour.", "And another.")
    before = session.branch
    assert session.conversation
    typed.say("/compare min-k top-k", "A third.", "/compare take 2")
    assert session.branch[:3] == before[:3]
    how = session.branch[3].how
    assert how
    assert how.sampler == "top-k:k=20"
    assert len(session.alternatives()) == 2
    session.store.add(session.conversation, session.branch[-1].id, "user", "Typed in another window.")
    assert "continued in another window" in typed.say("/compare take 1")
    assert "is part of the conversation" in typed.say("/compare take 1")
    typed.say("/clear", "Hello")
    assert "belongs to another conversation" in typed.say("/compare take 1")


def test_a_prompt_that_does_not_fit(typist: Begin) -> None:
    typed = typist("--temp", "5")
    assert "and the context holds 1024" in typed.say("/compare " + "word " * 1200)
    assert "Hello" in typed.say("/temp 0", "Say hello.")


class Page(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page(typist: Begin, tmp_path: Path) -> None:
    """It holds every answer, escaped, and names no other address."""
    typed = typist("--temp", "5", "-n", "6", "--seed", "1")
    path = tmp_path / "a page.html"
    assert f"(written to {path})" in typed.say(
        f"/compare T=1,5 min-k min-p Say <script>alert(1)</script> & {{0}}. --html {path}"
    )
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "img"} & set(page.tags)
    assert not {"src", "href"} & set(page.attributes)
    assert "Say <script>alert(1)</script> & {0}." in page.text
    assert page.tags.count("tr") == 3
    assert page.tags.count("td") == 6
    comparison = typed.chat.comparison
    assert comparison
    for cell in comparison.cells:
        assert cell.answer
        assert printable(cell.answer.text) in page.text
    again = tmp_path / "again.html"
    typed.say(f"/compare --html {again}")
    assert again.read_text(encoding="utf-8") == text
    assert "No such file" in typed.say(f"/compare --html {tmp_path}/no/page.html")


@pytest.mark.terminal
@pytest.mark.posix
def test_ctrl_c(opened: Callable[..., Terminal]) -> None:
    """What came until then is shown, and can be taken."""
    terminal = opened("--temp", "5", "--seed", "1")
    terminal.send("/compare T=1,5 Tell me a long story about a dog.\r")
    terminal.until(lambda: re.search(r"^12  top-n-sigma:n=1, T=5 +\w", terminal.text, re.M) is not None)
    shown = terminal.until_prompt(lambda: terminal.send("\x03"))
    assert "interrupted" in shown
    assert "12  top-n-sigma:n=1, temperature 5" in terminal.text
    assert "is part of the conversation" in terminal.say("/compare take 1")


def test_completion(typist: Begin) -> None:
    typed = typist("--temp", "5", "-n", "1")

    def texts(argument: str) -> list[str]:
        return [choice.text for choice in complete(typed.chat, argument)]

    assert texts("T") == ["T="]
    assert texts("T=1 top-") == ["top-k", "top-p", "top-n-sigma"]
    typed.say("/compare min-k top-k Hello")
    assert texts("take ") == ["1", "2"]
