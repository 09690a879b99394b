"""A notebook whose cells are interrupted, and that loads its model again and again."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

LOAD = """
from mink_local import load_model
model = load_model({path!r}, n_ctx=256, n_threads=1)
"""
ENDLESS = """
import os, signal, threading
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()  # what the button for it does
print("begun")
while True:
    {use}
"""
LITTLE_IS_LEFT = """
import gc, psutil, threading, time
gc.collect()  # the models; what they had ends without it
while len(psutil.Process().children()) > 2 or threading.active_count() > 20:
    time.sleep(0.1)
print("little")
"""
USES = [
    "model.chat('Hi', ignore_eos=True).read()",
    "list(model.generate(['Hi'] * 9, ignore_eos=True))",
    "model.logits('Hi ' * 200)",
    "for piece in model.chat('Hi', ignore_eos=True): reply = piece",
]


@pytest.mark.slow
def test_a_notebook(tiny_path: Path) -> None:
    """Ten reloads without a close, an interrupt after each; what comes next works, and little is left."""
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=120, allow_errors=True)

    def said(source: str) -> str:
        cell = nbformat.v4.new_code_cell(source)
        client.nb.cells.append(cell)
        client.execute_cell(cell, len(client.nb.cells) - 1)
        return "".join(output.get("text", output.get("ename", "")) for output in cell.outputs)

    with client.setup_kernel():
        for i in range(10):
            assert said(LOAD.format(path=str(tiny_path))) == ""
            assert said(ENDLESS.format(use=USES[i % len(USES)])) == "begun\nKeyboardInterrupt"
            assert said("model.chat('Hi', max_tokens=3, ignore_eos=True).read()\nprint('on')") == "on\n"
        assert said(LITTLE_IS_LEFT) == "little\n"
