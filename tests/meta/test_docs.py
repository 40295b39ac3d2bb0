"""Documentation runs: python blocks are executed page by page, console blocks command by command.

A page's blocks share one namespace and one scratch folder that holds ``mnist.onnx``, ``digit.npy`` and
``app.py`` style files the page itself writes. Fences marked ``text`` or any other language are only prose.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path) -> list[tuple[str, str]]:
    """Runnable fences of a page, in order."""
    return [(kind, text) for kind, text in FENCE.findall(page.read_text()) if kind in ("python", "console")]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import numpy as np

    shutil.copy(ROOT / "examples" / "mnist" / "mnist.onnx", tmp_path)
    with np.load(ROOT / "examples" / "mnist" / "digits.npz") as data:
        np.save(tmp_path / "digit.npy", data["images"][:1].astype(np.float32) / 255)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_console(text: str, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    for command in commands:
        if shlex.split(command)[0] in ("make", "pip", "git", "npm", "apt-get"):
            continue  # set-up commands are exercised by .ci/run itself
        result = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"$ {command}\n{result.stdout}\n{result.stderr}"


@pytest.mark.compiler
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_docs_blocks_run(page: Path, scratch: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for kind, text in blocks(page):
        if kind == "console":
            run_console(text, scratch)
        else:
            exec(compile(text, f"{page.name}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_relative_links_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
