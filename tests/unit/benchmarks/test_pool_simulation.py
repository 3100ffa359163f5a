"""With the pool most groups of a synthetic learner teach something to the end; without, few do as it outgrows its tasks."""

from benchmarks.pool_simulation import GROUP, plot, simulate

SMALL = {"steps": 100, "per_step": 4, "count": 80, "gain": 0.06}


def test_with_the_pool_most_groups_stay_informative_where_uniform_draws_fall_off(tmp_path):
    uniform = simulate("uniform", 0, tmp_path, **SMALL)
    pool = simulate("pool", 0, tmp_path, **SMALL)
    assert uniform.share(0.75) < 0.3
    assert pool.share(0.75) > 0.6
    assert pool.share() > 0.6
    assert pool.skill > uniform.skill + 1
    assert pool.tasks > uniform.tasks == 80
    assert GROUP == 8
    assert plot({"uniform": [uniform], "pool": [pool]}).count("<polyline") == 2


def test_a_simulation_is_the_same_again(tmp_path):
    few = {**SMALL, "steps": 12}
    assert simulate("pool", 3, tmp_path / "a", **few) == simulate("pool", 3, tmp_path / "b", **few)
