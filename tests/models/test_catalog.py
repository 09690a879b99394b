"""Names, paths, and `models.txt`."""

import dataclasses
import io
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.files import write_atomic
from mink_local.models import catalog
from mink_local.models.catalog import CatalogEntry, edited, parse_line
from tests.support.effort import examples


def test_a_path_is_a_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "my model.v2.gguf"
    path.touch()
    monkeypatch.chdir(home)
    for name in (str(path), path.name, f"~/{path.name}"):
        assert catalog.resolve(name) == catalog.ModelFile("my model.v2", path)


@pytest.mark.posix
@pytest.mark.parametrize("odd", ["\udcff", "\n", "\x1b", "\u202e", "\x9b"])
def test_a_name_can_be_written_down_whatever_the_path_is(home: Path, odd: str) -> None:
    """Records, answers and settings are UTF-8, and names in them have no line breaks."""
    path = home / f"m{odd}x.gguf"
    path.touch()
    assert catalog.resolve(str(path)) == catalog.ModelFile("m\ufffdx", path)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("parrot", "'parrot'.*mink-models list"),
        ("smolm2", "'smolm2'.* smollm2-135m"),
        ("qwen3-4b-instrukt", "'qwen3-4b-instrukt'.* qwen3-4b-instruct"),
        ("", "no model is named"),
        ("Qwen/Qwen3-0.6B-GGUF", "mink-models pull hf:Qwen/Qwen3-0.6B-GGUF"),
        ("parrot.gguf", "parrot.gguf"),
        ("no/such/file", "no/such/file"),
        ("~no-such-user/file", "~no-such-user/file"),
        ("long" * 999, "'longlong"),  # longer than a file name may be
        ("/", "/ is a folder"),
        (os.devnull, f"{os.devnull} is not"),
    ],
)
def test_no_such_model(name: str, complaint: str) -> None:
    with pytest.raises(ModelNotFoundError, match=complaint):
        catalog.resolve(name)


@pytest.fixture
def models(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models.txt, not yet written, in place of the real one, and no other; and empty stores."""
    path = home / "models.txt"
    monkeypatch.setattr(catalog, "_catalog_path", lambda: path)
    return path


@pytest.fixture
def own(models: Path) -> Path:
    """The user's own models.txt, not yet written, and no other."""
    assert not models.exists()
    path = catalog.user_catalog_path()
    path.parent.mkdir(parents=True)
    return path


def test_a_model_without_quantizations(models: Path) -> None:
    models.write_text(f"# mine\n\n  a\tpackage:p_q  f.gguf 0.1 {'A' * 64} MIT  b | c\n")
    entry = CatalogEntry("a", "package:p_q", "f.gguf", 100_000_000, "a" * 64, "MIT", "b | c")
    assert catalog.read_catalog() == {"a": (entry,)}
    with pytest.raises(ModelNotFoundError, match="p-q"):  # the package is not installed
        catalog.resolve("a")


def test_a_model_with_quantizations(models: Path) -> None:
    """A line each, the default first; what is unknown is a dash or left out."""
    models.write_text("a:Q4_K_M hf:o/r@v1 m-Q4_K_M*.gguf 4.92 - Llama%203\na:Q8_0 hf:o/r m-Q8_0*.gguf\n")
    q4 = CatalogEntry("a:Q4_K_M", "hf:o/r@v1", "m-Q4_K_M*.gguf", 4_920_000_000, None, "Llama 3")
    q8 = CatalogEntry("a:Q8_0", "hf:o/r", "m-Q8_0*.gguf")
    assert catalog.read_catalog() == {"a": (q4, q8)}
    assert catalog.find("a") == q4
    assert catalog.find("a:q8_0") == q8
    assert catalog.find("b") is None
    with pytest.raises(ModelNotFoundError, match=r"Q2.* a:Q4_K_M, a:Q8_0"):
        catalog.find("a:Q2")
    with pytest.raises(ModelNotFoundError, match="mink-models pull a:Q8_0"):
        catalog.resolve("a:q8_0")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("a", "source"),
        ("a%20b file:/x", "'a b'"),
        ("a:b:c file:/x", "'a:b:c'"),
        ("- file:/x", "name"),
        ("[[model]]", "name"),
        ("a ftp://x", "'ftp://x'"),
        ("a hf:x", "'hf:x'"),
        ("a file:x.gguf", "'file:x.gguf'"),  # which folder it is in depends on where the program is started
        ("a file:/x - big", "size.*'big'"),
        ("a file:/x - nan", "size.*'nan'"),
        ("a file:/x - -1", "size.*'-1'"),
        ("a file:/x - 1000000", "size.*1000000"),
        ("a file:/x - - abc", "sha256.*'abc'"),
        ("a file:/x - - - - two%0Alines", "note"),
        ("\0a\0\0f", "name"),
        ("\udcff\udcfe", "name"),
    ],
)
def test_a_line_that_is_not_understood_is_named_and_left(
    models: Path, own: Path, line: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    models.write_text("b file:/b\n")
    text = f"# mine\nc file:/c\n{line}\nd file:/d\n"
    own.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert list(catalog.read_catalog()) == ["c", "d", "b"]
    assert list(catalog.read_catalog()) == ["c", "d", "b"]
    (said,) = caplog.messages
    assert re.search(f"{re.escape(str(own))}.* 3: .*{wrong}", said)
    catalog.add(CatalogEntry("e", "file:/e"))
    catalog.remove("c")
    kept = own.read_bytes().decode("utf-8", "surrogateescape")
    assert kept.startswith(text.replace("c file:/c\n", ""))


def test_the_users_own_models(models: Path, own: Path, tmp_path: Path) -> None:
    """They come first, and replace what has the same name and quantization."""
    models.write_text("a file:/a.gguf\nb:Q4 file:/b4.gguf\nb:Q8 file:/b8.gguf\n")
    file = tmp_path / "my own %20 \udcff.gguf"
    Path(file).touch()
    b8 = CatalogEntry(
        "b:Q8", f"file:{file}", size=1_500_000_000, licence="M I T", note='my "own" 50% 🦜 # \\ '
    )
    catalog.add(b8)
    for quantization in ("Q8_0", "Q6_K"):
        catalog.add(CatalogEntry("c", "hf:o/r", quantization))
    assert list(catalog.read_catalog()) == ["b", "c", "a"]
    assert [entry.name for entry in catalog.read_catalog()["b"]] == ["b:Q8", "b:Q4"]
    assert catalog.resolve("b") == catalog.ModelFile("b:Q8", file)
    assert catalog.find("b") == dataclasses.replace(b8, note=b8.note.strip())
    assert catalog.find("c") == CatalogEntry("c", "hf:o/r", "Q6_K")
    assert {path.name for path in own.parent.iterdir()} == {"models.txt", ".models.txt.lock"}
    file.unlink()
    with pytest.raises(ModelNotFoundError, match=f"b:Q8: .*{re.escape(str(tmp_path))}"):
        catalog.resolve("b")


WRITTEN = st.text() | st.sampled_from(
    ["# a", "a file:/a", "b:Q8\thf:o/r  f.gguf 1  ", "a", "[[model]]", "\ufeffa file:/a"]
)
ENDINGS = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])


@given(st.lists(st.tuples(WRITTEN, ENDINGS)), WRITTEN, st.sampled_from("abc"))
@examples(200)
def test_only_the_line_of_a_model_changes(lines: list[tuple[str, str]], last: str, name: str) -> None:
    """Whatever a person wrote, `add` and `rm` leave every other line as it is, byte for byte."""
    text = "".join(map("".join, lines)) + last
    entry = CatalogEntry(name, "file:/new")

    def others(text: str) -> str:
        found = io.StringIO(text, newline="")
        return "".join(line for line in found if getattr(understood(line), "name", "") != name)

    added = catalog.with_entry(text, entry)
    # The last line may have had no ending before another came behind it.
    assert others(added) in (others(text), f"{others(text)}\n", f"{others(text)}\r\n")
    assert entry in [understood(line) for line in io.StringIO(added, newline="")]
    assert edited(added, lambda other: None if other.name == name else other) == others(added)


def understood(line: str) -> CatalogEntry | None:
    try:
        return parse_line(line)
    except ValueError:
        return None


FIELD = st.text(st.characters(exclude_categories=["Cc"]), min_size=1).filter(lambda text: text != "-")
PATH = st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")).filter(lambda text: text != "-")


@given(PATH, PATH, FIELD, FIELD, st.integers(0, 10**6))
@examples(200)
def test_an_entry_is_read_as_it_was_written(path: str, file: str, licence: str, note: str, size: int) -> None:
    entry = CatalogEntry("a:Q8", f"file:/{path}", file, size * 10**6 or None, "0" * 64, licence, note)
    assert parse_line(f"{entry}\r\n") == dataclasses.replace(entry, note=note.strip())


@pytest.mark.parametrize(
    ("name", "note", "wrong"), [("a", "x\ny", r"x\\ny"), ("a", "\x7f", "note"), ("a b", "", "'a b'")]
)
def test_what_a_catalogue_cannot_hold(models: Path, name: str, note: str, wrong: str) -> None:
    with pytest.raises(CatalogError, match=wrong):
        catalog.add(CatalogEntry(name, "file:/a.gguf", note=note))
    assert not catalog.user_catalog_path().exists()
    in_the_way = catalog.user_catalog_path().parent
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_text("in the way")
    with pytest.raises(CatalogError, match=r"models\.txt"):
        catalog.add(CatalogEntry("a", "file:/a.gguf"))
    assert not models.exists()


def test_models_added_at_once_are_all_kept(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_slowly(path: Path, data: bytes) -> None:
        time.sleep(0.05)
        write_atomic(path, data)

    monkeypatch.setattr(catalog, "write_atomic", write_slowly)
    names = ["a", "b", "c", "d"]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: catalog.add(CatalogEntry(name, f"file:/{name}")), names))
    assert sorted(catalog.read_catalog()) == names
    assert not models.exists()


@pytest.mark.usefixtures("home")
def test_every_model_of_the_catalogue_is_whole() -> None:
    """All of models.txt can be pulled, and its lines are written as `mink-models add` writes them."""
    entries = [entry for entries in catalog.read_catalog().values() for entry in entries]
    lines = [line for line in catalog._catalog_path().read_text().splitlines() if line[:1] not in ("", "#")]
    assert lines == list(map(str, entries))
    assert len(entries) > 40
    for entry in entries:
        assert entry.size
        assert entry.licence
        assert entry.file.endswith(".gguf")
        assert (entry.name.partition(":")[2] or "Q4_1") in entry.file
