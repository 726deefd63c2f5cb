"""Looking inside an ensemble: the recorded game, its picture, the explorer, the video."""

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from qe import TERMINAL
from qe.__main__ import main
from qe.agent import Agent, streams
from qe.config import ConfigError, configure
from qe.explore import recording as episode
from qe.explore.scene import Knobs, Scene, plot_flips, plot_temperatures
from qe.explore.video import watch
from qe.explore.viewer import Explorer, explore
from qe.runs.session import run
from qe.selectors import ALGORITHMS, infogain, ucb

GAMES = {"atari": "Breakout", "minatar": "SpaceInvaders", "deepsea": "N5"}


@pytest.fixture(scope="module", params=GAMES)
def trained(request, tmp_path_factory):
    config = configure("smoke", suite=request.param, game=GAMES[request.param], algorithm="ucb",
                       keep_network=True, K=4)  # fmt: skip
    return run(config, tmp_path_factory.mktemp("run") / "run", progress=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    config = configure("smoke", suite="minatar", game="Asterix", keep_network=True)
    return episode.record(run(config, tmp_path_factory.mktemp("run") / "run"), max_steps=60)


def test_a_recorded_game_is_what_the_network_says(trained):
    config, network = episode.load(trained)
    game = episode.record(trained, seed=3, max_steps=12)
    T, K, A = game.q.shape
    assert 1 <= T <= 12 and K == 4 and len(game.names) == A
    assert len(game.actions) == len(game.rewards) == len(game.pictures) == T
    assert game.pictures.dtype == np.uint8 and game.pictures.shape[3] == 3
    again = episode.play(config, network, seed=3, max_steps=12)
    assert np.array_equal(game.q, again.q) and np.array_equal(game.pictures, again.pictures)
    greedy = ucb(game.q, config.lam)
    assert (greedy == game.actions).mean() > 0.6  # but for one action in a hundred


def test_a_game_goes_on_after_a_lost_life(trained):
    config, network = episode.load(trained)
    if config.suite != "atari":
        pytest.skip("only Atari has lives")
    long = config.model_copy(update={"max_frames": None, "eval_max_frames": 4000})
    whole = episode.play(long, network, max_steps=10_000)
    assert whole.q.shape[0] > 100  # five lives of Breakout, each as long as nobody hits the ball


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_chooses_as_in_training(recording, algorithm):
    values = {"lam": 0.7} if algorithm.startswith("ucb") else {}
    config = configure(suite="minatar", game="Asterix", algorithm=algorithm, **values)
    agent = Agent(config, lambda frames: recording.q, recording.q.shape[2], streams([0]))
    agent.head = 0 if algorithm == "double_dqn" else 3
    thoughts = agent.think(np.zeros(0, np.uint8))
    chosen = episode.choices(recording.q, lam=0.7, head=3)[algorithm]
    assert chosen.tolist() == [thought.choice for thought in thoughts]


def test_deepseas_map_is_the_runs_in_the_explorer(tmp_path):
    values = {"seed": 4, "prior_scale": 3.0, "keep_network": True}
    config = configure(suite="deepsea", game="N6", algorithm="bootstrapped_dqn", **values)
    made = run(config, tmp_path / "run", progress=False)
    found = [episode.record(made, seed=i).rewards.sum() for i in range(8)]
    assert max(found) == pytest.approx(0.99)  # a map of its own would hide the treasure again


def test_strips_say_what_the_selectors_say(recording):
    found = episode.strips(recording, 0.1, 0.5)
    for t in (0, 17, 59):
        q = recording.q[t].astype(float)
        assert found.spread[t] == pytest.approx(q[:, recording.actions[t]].std())
        votes = np.bincount(q.argmax(1), minlength=q.shape[1])
        assert found.agreement[t] == pytest.approx(votes.max() / q.shape[0])
        assert found.bonus[t] == pytest.approx(float(infogain(q, 0.5)))
        taken = {int(a[t]) for a in episode.choices(recording.q, 0.1).values()}
        assert found.opinions[t] == len(taken)
    disputed = episode.most_disputed(found, count=3, apart=10)
    assert disputed == sorted(disputed) and np.diff(disputed).min() >= 10
    assert found.opinions.max() in found.opinions[disputed]


def test_departures_count_the_states_where_ucb_differs():
    sure = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]  # all for the first
    split = [[1.0, 0.0], [1.0, 0.0], [0.0, 9.0]]  # the vote for the first, the mean for the second
    bold = [[2.0, 0.0], [2.0, 0.0], [2.0, 5.0]]  # both for the first; the second is less certain
    table = episode.departures(np.array([sure, split, bold, bold]), [0.0, 1.0])
    assert table.loc[0.0].tolist() == [0.25, 0.0]
    assert table.loc[1.0].tolist() == [0.75, 0.5]


@given(st.integers(0, 10_000), st.integers(1, 10), st.integers(1, 6))
def test_ucb_flips_where_it_is_said_to(seed, K, A):
    q = np.random.default_rng(seed).normal(size=(K, A))
    corners = episode.flips(q, largest=5.0)
    starts = [lam for lam, _ in corners]
    assert starts == sorted(starts) and starts[0] == 0
    for lam in np.linspace(0.003, 4.99, 40):
        if min(abs(lam - start) for start in starts) > 1e-6:
            action = next(a for start, a in reversed(corners) if start <= lam)
            assert int(ucb(q, float(lam))) == action


def test_the_picture_follows_state_and_knobs(recording):
    scene = Scene(recording)
    first = scene.image()
    assert first.shape == (540, 960, 3)
    scene.show(5)
    fifth = scene.image()
    assert not np.array_equal(first, fifth)
    for knobs in (Knobs(lam=4.0), Knobs(temperature=0.01), Knobs(rho=3.0), Knobs(head=2)):
        scene.turn(knobs)
        assert scene.t == 5 and not np.array_equal(fifth, scene.image())
    scene.turn(Scene(recording).knobs)
    assert np.array_equal(fifth, scene.image())
    for artist in scene.figure.findobj():  # drawn whole, it is the same
        artist.set_animated(False)
    scene.canvas.draw()
    whole = np.asarray(scene.canvas.buffer_rgba())[..., :3].astype(int)
    assert (np.abs(whole - fifth).max(-1) > 60).mean() < 0.001
    assert recording.things == ("player", "enemy", "trail", "gold")
    for wrong in (-1, 60):
        with pytest.raises(ConfigError, match="step must be from 0 to 59"):
            scene.show(wrong)
    with pytest.raises(ConfigError, match="head must be from 0 to 9, not 10"):
        scene.turn(Knobs(head=10))
    assert isinstance(plot_flips(recording, scene.disputed), Figure)
    assert isinstance(plot_temperatures(recording, scene.disputed), Figure)


def test_sliders_and_buttons_change_the_picture(recording, monkeypatch):
    monkeypatch.delenv(TERMINAL, raising=False)
    explorer = explore(recording)
    assert isinstance(explorer, Explorer)
    shown = [bytes(explorer.picture.value)]
    for slider, value in (("step", 7), ("lam", 2.0), ("temperature", 0.01), ("rho", 3.0)):
        getattr(explorer, slider).value = value
        shown.append(bytes(explorer.picture.value))
    assert len(set(shown)) == 5
    for widget in (explorer.step, explorer.lam, explorer.temperature, explorer.head):
        assert widget.tooltip
    before = explorer.still().data
    explorer._ipython_display_()
    explorer.step.value = 9
    assert "data:image/png" in before and explorer.still().data != before
    button = explorer.jumps.children[-1]
    button.click()
    assert explorer.step.value == explorer.scene.t == explorer.scene.disputed[-1]
    monkeypatch.setenv(TERMINAL, "1")
    assert isinstance(explore(recording), Scene)  # nobody to move a slider


def test_a_wrong_name_of_an_ensemble_is_refused():
    assert episode.find("explorer_minatar SpaceInvaders ucb").is_dir()
    with pytest.raises(ConfigError, match="did you mean 'explorer_atari RoadRunner ucb'"):
        episode.find("explorer_atari Roadrunner ucb")


def test_videos_have_a_picture_for_every_step(trained, tmp_path):
    steps = len(episode.record(trained, max_steps=6).actions)
    path = watch(trained, tmp_path / "deep" / "game.mp4", max_steps=6)
    with av.open(str(path)) as file:
        pictures = [f.to_ndarray(format="rgb24") for f in file.decode(video=0)]
    assert len(pictures) == steps and pictures[0].shape == (540, 960, 3)
    expected = Scene(episode.record(trained, max_steps=6)).image().astype(int)
    assert np.abs(pictures[0].astype(int) - expected).mean() < 3
    with Image.open(watch(trained, tmp_path / "game.gif", max_steps=6)) as gif:
        assert gif.size == (960, 540) and gif.n_frames >= 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "There is no finished run in nowhere."),
        (["RUN", "--out", "game.avi"], "out must end with .mp4 or .gif, not 'game.avi'."),
        (["RUN", "--fps", "0"], "fps must be at least 1, not 0."),
        (["RUN", "--steps", "-2"], "steps must be at least 1, not -2."),
        (["RUN", "--seed", "-2"], "seed must be at least 0, not -2."),
        (["bare"], "bare has no network.safetensors: train with --keep_network true"),
    ],
)
def test_what_cannot_be_watched_is_refused(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = configure("smoke", suite="deepsea", game="N3", frames=100)
    run(config, "bare", progress=False)
    words = ["bare" if w == "RUN" else w for w in words]
    before = sorted(tmp_path.rglob("*"))
    assert main(["watch", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
