"""Compare expressions with math-verify, in the child process that `equivalence` asks."""

from collections.abc import Callable

from mink_local.sandbox import serve


def _begin(_: object) -> Callable[[tuple[str, str]], bool]:
    import math_verify

    def equivalent(expressions: tuple[str, str]) -> bool:
        gold, answer = (math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in expressions)
        return bool(math_verify.verify(gold, answer, timeout_seconds=None))

    return equivalent


if __name__ == "__main__":
    serve(_begin)
