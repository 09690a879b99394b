"""The torture: every kind of faults does a case, and deaths, hangs and losses are seen, kept and repeated."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.faults.__main__ import cli
from scripts.faults.kind import Kind
from scripts.faults.kinds import KINDS
from scripts.faults.torture import torture
from tests.support.going_wrong import begin

pytestmark = pytest.mark.posix


HOSTILE = Kind("hostile", 6, begin, seconds=1.0)


def test_what_goes_wrong_is_seen_kept_and_done_once(tmp_path: Path) -> None:
    said: list[str] = []
    findings = torture([HOSTILE], tmp_path, 1.0, say=said.append)
    assert {ended.case: ended.fault for ended in findings} == {
        "hostile-0-0": "death", "hostile-0-1": "hang", "hostile-0-2": "loss", "hostile-0-3": "death",
    }  # fmt: skip
    assert "ZeroDivisionError" in findings[-1].text
    assert sorted(path.name for path in (tmp_path / "cases").iterdir()) == [
        f"hostile-0-{n}" for n in range(4)
    ]
    assert len(said) == 5
    with (tmp_path / "hostile.jsonl").open("a") as stream:
        stream.write('{"case": "hostile-0-5"')  # a kill left half a line
    assert torture([HOSTILE], tmp_path, 1.0, say=said.append) == findings
    assert said[-1] == "hostile: 0 cases of 1 to do, 6 are done"
    (row,) = json.loads((tmp_path / "torture.json").read_text())["kinds"]
    assert [row[name] for name in ("faults", "deaths", "hangs", "losses")] == [6, 2, 1, 1]
    report = (tmp_path / "torture.md").read_text()
    assert "`scripts/torture repeat hostile-0-2`: loss" in report


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_kind(kind: Kind, tmp_path: Path) -> None:
    assert torture([kind], tmp_path, 2 * kind.per_case / kind.count, seed=7) == []
    assert len((tmp_path / f"{kind.name}.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_case_is_repeated_by_its_name(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["repeat", "texts-0-0", "--out", str(tmp_path)])
    assert done.output.startswith("texts-0-0: template refused, ")
    assert CliRunner().invoke(cli, ["repeat", "parrots-0-0"]).exit_code == 2
