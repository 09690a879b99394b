"""Names, paths, and `models.txt`."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.files import write_atomic
from mink_local.models import catalog


def test_default_model_is_the_file_in_its_package() -> None:
    file = catalog.resolve(catalog.DEFAULT_MODEL)
    assert file.name == "smollm2-135m"
    assert file.path.read_bytes()[:4] == b"GGUF"
    assert file.sha256 == catalog.read_catalog()["smollm2-135m"][0].sha256


def test_a_path_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my model.v2.gguf"
    path.touch()
    assert catalog.resolve(str(path)) == catalog.ModelFile("my model.v2", path)
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve("my model.v2.gguf").path == path
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert catalog.resolve("~/my model.v2.gguf").path == path


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("parrot", "'parrot'.* smollm2-135m"),
        ("", "''|folder"),
        ("parrot.gguf", "parrot.gguf"),
        ("no/such/file", "no/such/file"),
        ("~no-such-user/file", "~no-such-user/file"),
        ("long" * 999, "'longlong"),  # longer than a file name may be
        ("/", "/ is a folder"),
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


def test_a_line_without_quantizations(models: Path) -> None:
    models.write_text(f"# a line\n\n a | package:p_q | f.gguf | - | 0.1 | {'A' * 64} | MIT | b # and more\n")
    entry = catalog.CatalogEntry("a", "package:p_q", "f.gguf", "main", 100_000_000, "a" * 64, "MIT", "b")
    assert catalog.read_catalog() == {"a": (entry,)}
    with pytest.raises(ModelNotFoundError, match="p-q"):  # the package is not installed
        catalog.resolve("a")


def test_a_line_with_quantizations(models: Path) -> None:
    """Sizes and hashes go by order, and what is missing at the end is not known."""
    models.write_text(f"a | hf:o/r | m-{{Q4_K_M, Q8_0}}*.gguf | v1 | 4.92, 8.5 | {'0' * 64} | MIT |\n")
    q4 = catalog.CatalogEntry(
        "a:Q4_K_M", "hf:o/r", "m-Q4_K_M*.gguf", "v1", 4_920_000_000, "0" * 64, "MIT", ""
    )
    q8 = catalog.CatalogEntry("a:Q8_0", "hf:o/r", "m-Q8_0*.gguf", "v1", 8_500_000_000, None, "MIT", "")
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
        ("a | b", "8 columns .* 2"),
        ("a b | file | f | - | - | - | - | -", "'a b'"),
        (" | file | f | - | - | - | - | -", "''"),
        ("a | ftp://x | f | - | - | - | - | -", "'ftp://x'"),
        ("a | hf:x | f | - | - | - | - | -", "'hf:x'"),
        ("a | file | f | - | big | - | - | -", "'big'"),
        ("a | file | f | - | nan | - | - | -", "'nan'"),
        ("a | file | f | - | 1000000 | - | - | -", "'1000000'"),
        ("a | file | f | - | 1, 2 | - | - | -", "'1, 2'"),
        ("a | file | f | - | - | abc | - | -", "SHA-256 'abc'"),
        ("a | file | f | - | - | -, - | - | -", "SHA-256 '-, -'"),
    ],
)
def test_lines_that_do_not_parse(models: Path, line: str, wrong: str) -> None:
    models.write_text(f"\n{line}\n")
    with pytest.raises(CatalogError, match=f"line 2: .*{wrong}"):
        catalog.read_catalog()
    models.write_bytes(b"\xff\xfe")
    with pytest.raises(CatalogError, match=r"models\.txt"):
        catalog.read_catalog()


FILES = {"models.txt", ".models.txt.lock"}


def test_the_users_own_models(models: Path, tmp_path: Path) -> None:
    """They come last, and replace what has the same name."""
    models.write_text("a | file | /a.gguf | - | - | - | - | -\nb | file | /b.gguf | - | - | - | - | -\n")
    file = tmp_path / "mine.gguf"
    file.touch()
    catalog.add(["b", "file", str(file), "", "1.5", "", "MIT", "my own"])
    catalog.add(["c", "hf:o/r", "Q8_0", "main", "-", "-", "-", "-"])
    catalog.add(["c", "hf:o/r", "Q6_K", "main", "-", "-", "-", "-"])
    assert list(catalog.read_catalog()) == ["a", "b", "c"]
    assert catalog.resolve("b").path == file
    assert catalog.find("c") == catalog.CatalogEntry("c", "hf:o/r", "Q6_K", "main", None, None, "", "")
    assert {path.name for path in catalog.user_catalog_path().parent.iterdir()} == FILES
    file.unlink()
    with pytest.raises(ModelNotFoundError, match=f"b: .*{file}"):
        catalog.resolve("b")


def test_adding_keeps_what_a_person_wrote(models: Path) -> None:
    path = catalog.user_catalog_path()
    path.parent.mkdir(parents=True)
    mine = "# my models\na | file | /a.gguf | - | - | - | - | -  # the first\n"
    path.write_text(mine)
    catalog.add(["b", "file", "/b.gguf", "-", "-", "-", "-", "-"])
    assert path.read_text() == mine + "b | file | /b.gguf | - | - | - | - | -\n"
    assert not models.exists()


@pytest.mark.parametrize(
    ("name", "note", "wrong"),
    [("a", "x | y", r"x \| y"), ("a", "x # y", "x # y"), ("a", "x\ny", "x.*y"), ("a b", "-", "'a b'")],
)
def test_what_a_line_cannot_hold(models: Path, name: str, note: str, wrong: str) -> None:
    with pytest.raises(CatalogError, match=wrong):
        catalog.add([name, "file", "/a.gguf", "-", "-", "-", "-", note])
    assert not catalog.user_catalog_path().exists()
    models.parent.joinpath("config").write_text("in the way")
    with pytest.raises(CatalogError, match=r"models\.txt"):
        catalog.add(["a", "file", "/a.gguf", "-", "-", "-", "-", "-"])
    assert not models.exists()


def test_models_added_at_once_are_all_kept(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_slowly(path: Path, data: str) -> None:
        time.sleep(0.05)
        write_atomic(path, data)

    monkeypatch.setattr(catalog, "write_atomic", write_slowly)
    names = ["a", "b", "c", "d"]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: catalog.add([name, "file", f"/{name}", "", "", "", "", ""]), names))
    assert sorted(catalog.read_catalog()) == names
    assert not models.exists()


@pytest.mark.usefixtures("home")
def test_every_line_of_the_catalogue_is_whole() -> None:
    """All of models.txt can be pulled: each file has a size, and each name one entry."""
    entries = [entry for entries in catalog.read_catalog().values() for entry in entries]
    assert len({entry.name for entry in entries}) == len(entries) > 40
    for entry in entries:
        assert entry.size
        assert entry.licence
        assert entry.file.endswith(".gguf")
        assert (entry.name.partition(":")[2] or "Q4_1") in entry.file
