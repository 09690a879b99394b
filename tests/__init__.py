"""Tests, one folder a room. Imported before llama.cpp, which reads the environment when it is loaded."""

import os

# llama.cpp's threads wait for each other in a loop, which starves whatever else runs on the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
