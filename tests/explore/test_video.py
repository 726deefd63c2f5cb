"""Videos of what can't be played, and videos that are not finished."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from qe.__main__ import main
from qe.config import configure
from qe.explore import video
from qe.runs.session import NETWORK, run
from qe.runs.status import checksums


@pytest.fixture
def made(tmp_path):
    config = configure("smoke", suite="deepsea", game="N4", frames=100, keep_network=True)
    return run(config, tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("empty", "does not fit its run"),
        ("torn", "does not fit its run"),
        ("shape", "does not fit its run"),
        ("missing", "does not fit its run"),
        ("nan", "says what is not a number"),
    ],
)
def test_a_network_that_does_not_fit_gets_a_sentence(made, damage, sentence, tmp_path, capsys):
    path = made / NETWORK
    weights = load_file(path)
    name = min(weights)
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "torn":
            path.write_bytes(path.read_bytes()[:-9])
        case "shape":
            save_file(weights | {name: torch.zeros(3)}, path)
        case "missing":
            save_file({key: value for key, value in weights.items() if key != name}, path)
        case "nan":
            save_file({key: torch.full_like(w, torch.nan) for key, w in weights.items()}, path)
    summary = json.loads((made / "run.json").read_text())
    summary["files"] |= checksums(made, [NETWORK])
    (made / "run.json").write_text(json.dumps(summary))
    assert main(["watch", str(made), "--out", str(tmp_path / "game.mp4")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("qe: ") and sentence in said
    assert not (tmp_path / "game.mp4").exists()


@pytest.mark.parametrize("name", ["game.mp4", "game.gif"])
def test_a_video_that_is_interrupted_leaves_the_one_before(made, name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text("before")

    def interrupted(scene):
        scene.show(0)
        yield scene.image()
        raise KeyboardInterrupt

    monkeypatch.setattr(video, "frames", interrupted)
    with pytest.raises(KeyboardInterrupt):
        video.watch(made, path)
    assert path.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "run"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fps", "100000000000"], "fps must be at most 60"),
        (["--out", "run/x/../../run.mp4/a.gif"], "There is no finished run"),
        (["--out", "."], "out must end with"),
    ],
)
def test_words_that_are_wrong_get_a_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["watch", "nowhere", *words]) == 2
    assert sentence in capsys.readouterr().err
