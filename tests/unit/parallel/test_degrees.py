import pytest

from etude.errors import UserError
from etude.parallel.degrees import Degrees


def test_the_shard_degrees_take_what_the_others_leave() -> None:
    assert Degrees.fit(8, cp=2, ep=8) == Degrees(shard=4, cp=2, ep=8)
    assert Degrees.fit(64, replicate=4, cp=2, expert_replicate=2, ep=8) == Degrees(
        replicate=4, shard=8, cp=2, expert_replicate=2, efsdp=4, ep=8
    )
    assert Degrees.fit(1) == Degrees()


def test_world_and_batch_are_products() -> None:
    degrees = Degrees(replicate=2, shard=3, cp=4, efsdp=24)
    assert (degrees.world, degrees.batch) == (24, 6)


@pytest.mark.parametrize(
    ("degrees", "problem"),
    [
        ({"shard": 4, "cp": 2, "ep": 4}, "dense replicate 1 x shard 4 x cp 2 = 8, expert expert_replicate 1 x efsdp 1 x ep 4 = 4"),
        ({"shard": 0, "ep": 1}, "degree shard is 0; it must be a whole number of 1 or more"),
        ({"ep": 2.0, "shard": 2}, "degree ep is 2.0"),
    ],
)
def test_degrees_that_make_no_two_meshes_are_refused(degrees: dict[str, int], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Degrees(**degrees)


@pytest.mark.parametrize(
    ("degrees", "problem"),
    [
        ({"cp": 3}, "replicate x cp = 1 x 3 = 3 does not divide the 8 ranks"),
        ({"expert_replicate": 2, "ep": 8}, "expert_replicate x ep = 2 x 8 = 16 does not divide the 8 ranks"),
        ({"ep": 0}, "expert_replicate x ep = 1 x 0 = 0 does not divide"),
    ],
)
def test_degrees_that_do_not_divide_the_world_are_refused(degrees: dict[str, int], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        Degrees.fit(8, **degrees)


def test_another_world_is_refused_with_all_degrees() -> None:
    Degrees(shard=4, ep=4).check(4)
    with pytest.raises(UserError, match=r"have 4 ranks \(dense replicate 1 x shard 4 x cp 1 = 4, .* x ep 4 = 4\) and the world has 8"):
        Degrees(shard=4, ep=4).check(8)


@pytest.mark.parametrize(("num_experts", "ep", "efsdp", "dim"), [(8, 8, 1, 0), (8, 2, 4, 0), (8, 2, 2, 0), (8, 4, 4, 1), (6, 2, 2, 1)])
def test_experts_stay_whole_where_they_can(num_experts: int, ep: int, efsdp: int, dim: int) -> None:
    assert Degrees.fit(ep * efsdp, ep=ep).expert_shard_dim(num_experts) == dim


def test_ep_must_divide_the_experts() -> None:
    with pytest.raises(UserError, match="ep = 4 does not divide the model's 6 experts"):
        Degrees.fit(4, ep=4).expert_shard_dim(6)
