"""How many ways each axis of the two meshes is cut: plain numbers, so that a planner needs no torch.

    Degrees(shard=4, cp=2, ep=8)            # 8 ranks: dense 1 x 4 x 2, experts 1 x 1 x 8
    Degrees.fit(8, cp=2, ep=8)              # the same: shard and efsdp take what is left

Every rank is in both views of the world, the last axis varying fastest:

    dense   (replicate, shard, cp)            all parameters but the experts; replicate x shard ranks read different sequences,
                                              the cp ranks of one sequence read different tokens of it
    expert  (expert_replicate, efsdp, ep)     ep: whole experts on different ranks; efsdp: FSDP of an EP group's experts

Both products equal the world's size and nothing else ties them: the replicate degrees are independent, CP may be below or above EP.

Not here: process groups (mesh.py), what a layout costs.
"""

from dataclasses import dataclass

from etude.errors import UserError

DENSE = ("replicate", "shard", "cp")
EXPERT = ("expert_replicate", "efsdp", "ep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    replicate: int = 1
    """copies of the dense parameters, gradients all-reduced between them"""
    shard: int = 1
    """FSDP ranks of the dense parameters that read different sequences; together with cp they hold one copy"""
    cp: int = 1
    """context parallel ranks: each holds 1/cp of a sequence's tokens"""
    expert_replicate: int = 1
    """copies of the experts"""
    efsdp: int = 1
    """FSDP ranks of the experts of one place in the EP group"""
    ep: int = 1
    """expert parallel ranks: each owns num_experts / ep experts"""

    def __post_init__(self) -> None:
        for name in (*DENSE, *EXPERT):
            degree = getattr(self, name)
            if not isinstance(degree, int) or degree < 1:
                raise UserError(f"degree {name} is {degree!r}; it must be a whole number of 1 or more")
        if self.world != self.expert_replicate * self.efsdp * self.ep:
            raise UserError(
                f"the meshes differ in size: dense {self.describe(DENSE)}, expert {self.describe(EXPERT)}; make the products equal"
            )

    @classmethod
    def fit(cls, world: int, *, replicate: int = 1, cp: int = 1, expert_replicate: int = 1, ep: int = 1) -> "Degrees":
        """The degrees of a world of this size; `shard` and `efsdp` take what the others leave. UserError where they do not divide it."""
        for names, used in (("replicate x cp", replicate * cp), ("expert_replicate x ep", expert_replicate * ep)):
            if used < 1 or world % used:
                values = f"{replicate} x {cp}" if names.startswith("replicate") else f"{expert_replicate} x {ep}"
                raise UserError(f"{names} = {values} = {used} does not divide the {world} ranks of the world; choose divisors of {world}")
        return cls(
            replicate=replicate, shard=world // (replicate * cp), cp=cp,
            expert_replicate=expert_replicate, efsdp=world // (expert_replicate * ep), ep=ep,
        )  # fmt: skip

    @property
    def world(self) -> int:
        return self.replicate * self.shard * self.cp

    @property
    def batch(self) -> int:
        """How many ranks (groups of cp ranks) read different sequences."""
        return self.replicate * self.shard

    def check(self, world: int) -> None:
        """UserError unless this is a layout of `world` ranks."""
        if self.world != world:
            raise UserError(
                f"the meshes have {self.world} ranks (dense {self.describe(DENSE)}, expert {self.describe(EXPERT)}) and the world has "
                f"{world}; change a degree, or start {self.world} processes"
            )

    def describe(self, axes: tuple[str, ...]) -> str:
        """ "replicate 1 x shard 4 x cp 2 = 8"."""
        product = 1
        for axis in axes:
            product *= getattr(self, axis)
        return " x ".join(f"{axis} {getattr(self, axis)}" for axis in axes) + f" = {product}"

    def expert_shard_dim(self, num_experts: int) -> int:
        """The dim on which FSDP cuts the stacked experts [num_experts / ep, rows, columns] of one EP rank.

        0 (whole experts, so that an optimizer of whole matrices needs no communication) where efsdp divides num_experts / ep, else 1.
        UserError where ep does not divide num_experts.
        """
        if num_experts % self.ep:
            raise UserError(f"ep = {self.ep} does not divide the model's {num_experts} experts; choose a divisor of {num_experts}")
        return 0 if num_experts // self.ep % self.efsdp == 0 else 1
