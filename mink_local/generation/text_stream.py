"""Text from the bytes of tokens."""

import codecs
from collections.abc import Iterable, Sequence

from mink_local.llama.weights import Weights


class TextStream:
    """Decodes the bytes of tokens to text, up to the first of some stop strings.

    A character is returned as soon as it is complete; bytes that are not UTF-8 become U+FFFD. Text that may
    be the start of a stop string is held back. `stopped_by` is the one that has ended the text.
    The text may begin inside a character, whose first bytes are at the end of `before`.
    """

    def __init__(self, stop: Sequence[str] = (), before: bytes = b"") -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(before)
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, data: bytes, final: bool = False) -> str:
        """Return the text that is certain after `data`."""
        if self.stopped_by is not None:
            return ""
        self._held += self._decoder.decode(data, final)
        found = [string for string in self._stop if string in self._held]
        if found:
            self.stopped_by = min(found, key=self._held.index)
            end = self._held.index(self.stopped_by)
        elif final:
            end = len(self._held)
        else:
            end = len(self._held) - started_length(self._held, self._stop)
        text, self._held = self._held[:end], self._held[end:]
        return text

    def close(self) -> str:
        """Return the text that was held back, at the end of the bytes."""
        return self.push(b"", final=True)


def visible(data: bytes) -> str:
    """Return the text of a token's bytes, with `<0xE7>` for a byte that is only part of a character."""
    parts, start = [], 0
    while start < len(data):
        try:
            parts.append(data[start:].decode())
            break
        except UnicodeDecodeError as error:
            parts.append(data[start : start + error.start].decode())
            parts += [f"<0x{byte:02X}>" for byte in data[start + error.start : start + error.end]]
            start += error.end
    return "".join(parts)


def token_name(weights: Weights, token: int) -> str:
    """Return the `visible` text of a token, or the vocabulary's name for one without text."""
    return visible(weights.piece(token)) or weights.token_text(token)


def started_length(text: str, strings: Iterable[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of `strings`."""
    longest = 0
    for string in strings:
        lengths = range(min(len(text), len(string) - 1), longest, -1)
        longest = next((n for n in lengths if text.endswith(string[:n])), longest)
    return longest
