"""llama.cpp's records of candidates: written and read by token id."""

import numpy as np
import pytest

from mink_local.llama.token_data import TOKEN_DATA, fill_token_data, read_token_data, write_token_data

INF = float("inf")
NAN = float("nan")
LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize("k", [1, 2, 100, 155, 156, 157, 4999, 5000])
def test_candidates_are_written_by_token_id(k: int) -> None:
    random = np.random.default_rng(k)
    row = random.normal(0, 3, 5000).astype(np.float32)
    row[:50] = INF
    chosen = random.permutation(5000)[:k].astype(np.int32)
    ids = np.full(5000, -1, np.int32)
    ids[:k] = chosen
    records = np.empty(5000, TOKEN_DATA)
    write_token_data(row, ids, k, records)
    assert records["id"][:k].tolist() == sorted(chosen.tolist())
    expected = np.minimum(row[records["id"][:k]], LARGEST)
    assert records["logit"][:k].tolist() == expected.tolist()


def test_a_whole_row_is_written_and_read() -> None:
    row = np.array([1.5, -INF, INF, -2.0], np.float32)
    records, back = np.empty(4, TOKEN_DATA), np.empty(5, np.float32)
    assert not fill_token_data(row, records)
    assert records.tolist() == [(0, 1.5, 0.0), (1, -INF, 0.0), (2, float(LARGEST), 0.0), (3, -2.0, 0.0)]
    assert read_token_data(records[::-1].copy(), back)
    assert back.tolist() == [1.5, -INF, float(LARGEST), -2.0, -INF]
    row[1] = NAN
    assert fill_token_data(row, records)
    for token in (-1, 5):
        records["id"][2] = token
        assert not read_token_data(records, back)
