"""What people see of a pool."""

import json

import pytest
from rich.console import Console

from etude.config import Config, PoolConfig, to_toml
from etude.errors import UserError
from etude.pool.entry import Entry
from etude.pool.pool import Pool
from etude.pool.show import look_at, show_pool


def fill(url: str, settings: PoolConfig = PoolConfig(), run: str = "main") -> None:
    with Pool(url, settings, run=run) as pool:
        pool.register([Entry(id=f"t{k}", kind="feature_deletion", repo="toolz\x1b[31m", band="SML"[k % 3]) for k in range(6)])
        pool.record("t0", 0, [True] * 8)
        pool.record("t1", 0, [True, False] * 4)
        pool.record("t2", 0, [False] * 8)
        pool.record("t2", 1, [True] * 8)
        pool.hold("t3", "gold fails")
        pool.wish(step=1, can=("lower_level",), target=9)


def text_of(shown: object) -> str:
    console = Console(width=160, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(shown)
    return console.export_text()


def test_the_page_has_states_rates_arms_wishes_and_alarms_and_no_control_characters(tmp_path):
    fill(str(tmp_path / "pool.sqlite"))
    text = text_of(show_pool(str(tmp_path / "pool.sqlite")))
    for part in (
        "main, before step 3: 6 tasks",
        "tasks by pass rate",
        "arms, best first",
        "harder: lower_level",
        "solved 0%, then 100%",
        "gold fails",
    ):
        assert part in text
    assert "\x1b" not in text


def test_programs_get_the_same_as_json(tmp_path):
    fill(str(tmp_path / "pool.sqlite"))
    found = json.loads(show_pool(str(tmp_path / "pool.sqlite"), as_json=True))["main"]
    assert found["states"] == {"fresh": 2, "active": 1, "retired": 1, "unsolved": 0, "quarantined": 2}
    assert [alarm["task"] for alarm in found["alarms"]] == ["t2"]
    assert found["wishes"] == {"open": 1}


def test_a_run_folder_shows_its_own_run_with_its_own_settings(tmp_path):
    settings = PoolConfig(max_draws=0, url=str(tmp_path / "shared.sqlite"))
    (tmp_path / "config.toml").write_text(to_toml(Config(pool=settings)))
    (tmp_path / "pool.json").write_text('{"run": "mine"}')
    fill(settings.url, settings, run="mine")
    fill(settings.url, settings, run="other")
    (shown,) = look_at(str(tmp_path))
    assert (shown.run, shown.view.settings) == ("mine", settings)
    assert [one.run for one in look_at(settings.url)] == ["mine", "other"]


def test_what_holds_no_pool_is_named(tmp_path):
    with pytest.raises(UserError, match="no run folder"):
        show_pool(str(tmp_path))
    (tmp_path / "config.toml").write_text(to_toml(Config()))
    with pytest.raises(UserError, match="as soon as `etude train` has begun"):
        show_pool(str(tmp_path))
    with Pool(str(tmp_path / "empty")):
        pass
    assert "no run has used" in str(show_pool(str(tmp_path / "empty")))
