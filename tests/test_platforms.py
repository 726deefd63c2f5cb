"""What only Linux has is done without elsewhere: each test takes it away."""

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from qe.config import configure
from qe.runs import estimate, provenance, session, signals
from qe.runs.session import run


def start(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_windows_users_are_sent_to_wsl():
    done = start("import sys; sys.platform = 'win32'; import qe")
    assert done.returncode == 1 and "WSL" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_glibc_memory_is_kept_as_the_system_has_it():
    done = start("import ctypes; ctypes.CDLL = lambda _: object(); import qe; print('imported')")
    assert done.stdout == "imported\n" and not done.stderr


def test_without_posix_fallocate_a_run_is_the_same(tmp_path, monkeypatch):
    config = configure("smoke", suite="deepsea", game="N3", frames=100)
    usual = run(config, tmp_path / "usual", progress=False)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    without = run(config, tmp_path / "without", progress=False)
    for log in ("episodes.csv", "diagnostics.csv"):
        assert (without / log).read_bytes() == (usual / log).read_bytes()


def test_without_prctl_a_missing_parent_is_still_noticed(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)
    signals.die_with_parent()
    with pytest.raises(ValueError, match="has ended"):
        signals.die_with_parent(parent=2**22 + 1)


def test_without_affinity_the_cores_are_counted(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    config = configure("smoke", suite="deepsea", game="N3")
    assert 1 <= estimate.choose_workers([config]) <= (os.cpu_count() or 1)


def test_without_proc_the_processor_has_a_name(monkeypatch):
    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert provenance.machine()["cpu"]


def test_macos_counts_memory_in_bytes(monkeypatch):
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "darwin")
    assert kilobytes <= session.peak_memory() < 2 * kilobytes
