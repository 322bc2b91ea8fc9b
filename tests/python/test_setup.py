"""The set-up that tools/demo.sh and tests/run.sh share."""

import os
import pty
import subprocess

import pytest

from virtual_device import ROOT


@pytest.mark.parametrize("terminal", [False, True])
def test_pip_shows_its_progress_on_a_terminal_alone(tmp_path, terminal):
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(f"#!/bin/sh\necho \"$@\" > {asked}\n")
    python.chmod(0o755)
    command = f"set -euo pipefail; source {ROOT}/tools/setup.sh; PYTHON={python}; pip_install --no-deps torch"
    reader, writer = pty.openpty() if terminal else os.pipe()
    try:
        subprocess.run(["bash", "-c", command], stdout=writer, check=True)
    finally:
        os.close(reader)
        os.close(writer)
    quiet = "" if terminal else "-q "
    assert asked.read_text() == f"-m pip install {quiet}--disable-pip-version-check --no-deps torch\n"
