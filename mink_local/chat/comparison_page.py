"""A comparison as one HTML page, which needs nothing else and fetches nothing."""

from html import escape

from mink_local.chat.comparison import ComparedAnswer, MethodComparison, shared, why_it_leaves
from mink_local.chat.screen import counted
from mink_local.cli import printable

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --edge: #8885; --dim: #666; --mark: #ffd75f; }}
@media (prefers-color-scheme: dark) {{ :root {{ --dim: #aaa; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem; }}
blockquote {{ margin: 1rem 0; padding-left: 1rem; border-left: 4px solid var(--edge); }}
.grid {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ border: 1px solid var(--edge); padding: .6rem; text-align: left; vertical-align: top; }}
th {{ white-space: nowrap; }}
td {{ min-width: 16rem; max-width: 28rem; }}
blockquote, .text {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.common {{ color: var(--dim); }}
mark {{ background: var(--mark); color: #000; outline: 1px solid; }}
.why, .figures {{ font-size: .85rem; }}
td p {{ margin: 0 0 .4rem; }}
.figures {{ color: var(--dim); }}
</style>
<h1>{title}</h1>
<blockquote>{message}</blockquote>
<p>{about}</p>
<div class="grid"><table>
{rows}
</table></div>
</html>
"""


def page(comparison: MethodComparison) -> str:
    """Return the page: a row for each temperature, a column for each method."""
    rows = comparison.rows
    head = "".join(f'<th scope="col">{_html(cell.label)}</th>' for cell in rows[0])
    body = [f"<tr><th></th>{head}</tr>"]
    for row in rows:
        cells = "".join(_cell(comparison, cell, row[0]) for cell in row)
        body.append(f'<tr><th scope="row">T={row[0].temperature:g}</th>{cells}</tr>')
    about = (
        f"{comparison.how.model}, seed {comparison.seed}. All answers share their random numbers: at one "
        "temperature they differ only if one method keeps a token that another cuts. What an answer has in "
        "common with the first of its row is grey, and its first other token is marked. T first: the method "
        "sees the distribution at the temperature, as in its paper; T last: at 1, as in llama.cpp."
    )
    return _PAGE.format(
        title="One message, several samplers",
        message=_html(comparison.message),
        about=_html(about),
        rows="\n".join(body),
    )


def _cell(comparison: MethodComparison, cell: ComparedAnswer, first: ComparedAnswer) -> str:
    answer = cell.answer
    if answer is None:
        return "<td></td>"
    at = 0 if cell is first else shared(first, cell)
    common = "".join(cell.texts[:at])
    reason = "" if cell is first else why_it_leaves(first, cell, first.label)
    marked = cell.texts[at] if reason and at < len(cell.texts) else ""
    rest = answer.text[len(common) + len(marked) :]
    figures = (
        f"{comparison.number(cell)}: {counted(answer.n_tokens, 'token')}, "
        f"{max(cell.k, default=0):,} candidates at most"
    )
    return (
        f'<td><p class="figures">{figures}</p>'
        + (f'<p class="why">{_html(reason)}</p>' if reason else "")
        + f'<div class="text"><span class="common">{_html(common)}</span>'
        + (f"<mark>{_html(marked)}</mark>" if marked else "")
        + f"{_html(rest)}</div></td>"
    )


def _html(text: str) -> str:
    return escape(printable(text))
