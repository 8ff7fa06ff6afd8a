"""Tuning without a device: what is tried, what it is tried on, who wins, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from triton.runtime.errors import OutOfResources

from autogen import autogen_loss, explain
from autogen.errors import CompileError, ScheduleError
from autogen.runtime.launch import Launch, Launcher
from autogen.settings.options import PLAIN, Options
from autogen.tiling.tiler import MOST_TILES, WARPS, Config
from autogen.tuning import Tuner, bucket_of, profile, store
from autogen.tuning.candidates import STEPS, candidates
from autogen.tuning.skeleton import Skeleton
from tests.unit.pipeline import floats
from tests.unit.test_tiling import EDGES, LOSSES, tiled
from tests.unit.tuned import CPU, LABELS, NEWEST, T, X, dice, folder, images, launcher_of

__all__ = ["folder"]  # a fixture


class TestCandidates:
    SIZES = st.one_of(st.integers(1, 70), st.integers(1, 2**17), st.sampled_from(EDGES))

    @pytest.mark.parametrize("name", LOSSES)
    @given(SIZES, SIZES)
    def test_default_comes_first_and_all_cover_all_elements(self, name: str, n: int, c: int) -> None:
        tiler, sizes = tiled(name).tiler, {**tiled(name).sizes, "N": n, "C": c}
        found = candidates(tiler, sizes, NEWEST)
        assert found[0] == tiler.default(sizes)
        assert len(set(found)) == len(found) <= 2 * len(STEPS)
        rows, columns = (c, n) if name == "adjacent rows" else (n, c)
        for config in found:
            tiling = tiler.cut(config, sizes)
            tiles = dict(tiling.tiles)
            assert tiling.num_warps == config.num_warps and tiling.variant.looped == config.looped
            most = tiling.programs * (MOST_TILES if tiling.variant.strided else 1)
            if name == "flat":
                assert most * tiles["BLOCK"] >= n * c
                continue
            assert most * tiles["ROWS"] >= rows
            if name == "tiled":
                assert most >= -(-rows // tiles["ROWS"]) * -(-columns // tiles["COLS"])
            elif not config.looped:
                assert tiles["COLS"] >= columns

    @pytest.mark.parametrize("name", LOSSES)
    @given(SIZES, SIZES)
    def test_are_what_triton_takes_and_registers_hold(self, name: str, n: int, c: int) -> None:
        tiler, sizes = tiled(name).tiler, {**tiled(name).sizes, "N": n, "C": c}
        for config in candidates(tiler, sizes, NEWEST)[1:]:
            held = 1
            for _, size in config.tiles:
                assert size > 0 and size & (size - 1) == 0
                held *= size
            assert config.num_warps in WARPS
            assert 1 <= held // (32 * config.num_warps) <= 16  # doubles

    def test_a_shared_bucket_has_the_same_candidates(self) -> None:
        tiler, sizes = tiled("rows").tiler, tiled("rows").sizes
        one, other = ({**sizes, "N": n, "C": c} for n, c in [(1000, 1008), (1024, 528)])
        assert bucket_of(tiler, one) == bucket_of(tiler, other)
        assert candidates(tiler, one, NEWEST) == candidates(tiler, other, NEWEST)

    def test_long_rows_are_tried_whole_and_short_ones_in_steps(self) -> None:
        launcher, sizes = launcher_of(nn.CrossEntropyLoss(), X, LABELS)
        for columns in (16384, 32768):
            found = candidates(launcher.tiler, {**sizes, "C": columns}, NEWEST)
            assert {config.looped for config in found} == {True, False}
        assert not any(config.looped for config in candidates(launcher.tiler, {**sizes, "C": 1000}, NEWEST))

    @pytest.mark.parametrize("name", LOSSES)
    def test_old_devices_are_spared_large_programs(self, name: str) -> None:
        tiler, sizes = tiled(name).tiler, {**tiled(name).sizes, "N": 2**12, "C": 2**10}
        default = tiler.default(sizes)
        places = [dict(config.tiles) for config in candidates(tiler, sizes, (7, 5))]
        largest = max(torch.tensor(list(tiles.values())).prod().item() for tiles in places)
        assert largest <= 2 * torch.tensor([size for _, size in default.tiles]).prod().item()
        assert set(candidates(tiler, sizes, (7, 5))) < set(candidates(tiler, sizes, (8, 0)))

    def test_one_program_has_nothing_but_warps_to_choose(self) -> None:
        launcher, sizes = launcher_of(dice, *images(2, 3, 8, 8))
        assert launcher.kernel.one_block
        found = candidates(launcher.tiler, sizes, NEWEST)
        assert len(found) > 1 and all(config.tiles == () for config in found)


Answers = dict[Config, Any]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], tuple[Launcher, dict[str, int], tuple[Config, ...]]]:
    """A flat kernel, its sizes and candidates; timing and compiling answer as they are told to, 1 ms by default."""
    launcher, sizes = launcher_of(nn.MSELoss(), floats(100, 100, dtype=torch.float32), torch.rand(100, 100))
    configs = candidates(launcher.tiler, sizes, NEWEST)

    def made(answers: Answers) -> tuple[Launcher, dict[str, int], tuple[Config, ...]]:
        def config_of(launch: Launch) -> Config:
            return next((c for c in configs if launcher.tiler.cut(c, sizes) == launch.tiling), configs[0])

        def compiled(launch: Launch) -> int:
            answer = answers.get(config_of(launch), 1.0)
            if isinstance(answer, Exception):
                raise answer
            return answer if isinstance(answer, int) else 0

        def timed(launch: Launch, tensors: Sequence[torch.Tensor]) -> float:
            answer = answers.get(config_of(launch), 1.0)
            assert not isinstance(answer, int), "what spills is not timed"
            return answer.pop(0) if isinstance(answer, list) else answer

        monkeypatch.setattr(Launch, "compile", compiled)
        monkeypatch.setattr(profile, "milliseconds", timed)
        return launcher, sizes, configs

    return made


class TestSelection:
    @pytest.fixture
    def configs(self, bench: Any) -> tuple[Config, ...]:
        return bench({})[2]

    @staticmethod
    def winner(bench: Any, answers: Answers) -> store.Tuned:
        launcher, sizes, configs = bench(answers)
        return profile.fastest(launcher, configs, sizes, CPU)

    def test_the_fastest(self, bench: Any, configs: tuple[Config, ...]) -> None:
        assert self.winner(bench, {configs[3]: 0.5, configs[4]: 0.8}) == store.Tuned(configs[3], 2.0)

    def test_the_default_unless_another_is_faster_by_a_margin(self, bench: Any, configs: tuple[Config, ...]) -> None:
        assert self.winner(bench, {}).config == configs[0]
        assert self.winner(bench, {configs[2]: 0.98}).config == configs[0]
        assert self.winner(bench, {configs[2]: 0.96}).config == configs[2]

    def test_the_default_unless_another_is_faster_again(self, bench: Any, configs: tuple[Config, ...]) -> None:
        assert self.winner(bench, {configs[0]: [2.0, 1.0]}).config == configs[0]
        assert self.winner(bench, {configs[2]: [0.5, 1.1]}).config == configs[0]

    @pytest.mark.parametrize(
        "refusal", [OutOfResources(2, 1, "shared memory"), CompileError("k", cause=ValueError()), 8]
    )
    def test_what_does_not_go_is_skipped(self, bench: Any, configs: tuple[Config, ...], refusal: Any) -> None:
        assert self.winner(bench, {configs[1]: refusal, configs[2]: 0.5}).config == configs[2]
        assert self.winner(bench, {configs[0]: refusal, configs[2]: 0.99}).config == configs[2]
        with pytest.raises(ScheduleError):
            self.winner(bench, dict.fromkeys(configs, refusal))

    def test_a_defect_is_no_refusal(self, bench: Any, configs: tuple[Config, ...]) -> None:
        with pytest.raises(ZeroDivisionError):
            self.winner(bench, {configs[1]: ZeroDivisionError()})

    def test_the_streams_of_random_numbers_stay(self, bench: Any) -> None:
        before = torch.get_rng_state()
        self.winner(bench, {})
        assert torch.equal(torch.get_rng_state(), before)

    def test_indices_stay_within_what_they_index(self) -> None:
        launcher, sizes = launcher_of(nn.CrossEntropyLoss(), X, LABELS)
        skeleton = Skeleton.of(launcher.kernel)
        ours = Launcher(skeleton.kernel, skeleton.provenance)
        tensors = profile._tensors(ours, ours.tiler.default(skeleton.sizes(sizes)), skeleton.sizes(sizes), CPU)
        (labels,) = (each for each in tensors.values() if each.dtype == torch.int64)
        assert labels.min() >= 0 and labels.max() < 40 and len(labels.unique()) > 1


class TestTuner:
    @pytest.fixture(autouse=True)
    def _timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(profile, "can_time", lambda device: True)

    def test_buckets(self) -> None:
        tiler, sizes = tiled("rows").tiler, tiled("rows").sizes
        buckets = {n: bucket_of(tiler, {**sizes, "N": n, "C": 64}) for n in (520, 1000, 1024, 1025)}
        assert buckets[520] == buckets[1000] == buckets[1024] != buckets[1025]
        assert bucket_of(tiler, {**sizes, "C": 1000}) != bucket_of(tiler, {**sizes, "C": 1008})
        assert bucket_of(tiler, {**sizes, "N": 2**26, "C": 16}) != bucket_of(tiler, {**sizes, "N": 2**26, "C": 32})

    def test_a_bucket_is_profiled_once_and_kept(self, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        launcher, sizes, configs = bench({})
        monkeypatch.setattr(profile, "fastest", lambda *_: store.Tuned(configs[2], 1.5))
        tuner = Tuner(launcher, "profile", CPU)
        assert tuner.known(sizes) is None
        assert tuner.choose(sizes) == tuner.known(sizes) == configs[2]
        monkeypatch.setattr(profile, "fastest", None)
        monkeypatch.setattr(profile, "can_time", lambda device: False)
        for again in (tuner, Tuner(launcher, "profile", CPU)):
            assert again.choose(sizes) == again.known(sizes) == configs[2]
        ((key, tuned),) = store.entries()
        assert tuned.speedup == 1.5 and key.device == "cpu" and key.dtypes == ("float32",)
        assert "autogen-loss" in key.versions and "triton" in key.versions

    def test_a_winner_that_does_not_fit_the_loss_itself_gives_way(
        self, bench: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher, sizes, configs = bench({})
        bench({configs[2]: 4})
        monkeypatch.setattr(profile, "fastest", lambda *_: store.Tuned(configs[2], 1.5))
        assert Tuner(launcher, "profile", CPU).choose(sizes) == configs[0]

    def test_an_entry_that_does_not_go_with_the_kernel_is_a_miss(
        self, bench: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher, sizes, _ = bench({})
        monkeypatch.setattr(profile, "fastest", lambda *_: store.Tuned(Config((("BLOCK", 2**20),), 4)))
        Tuner(launcher, "profile", CPU).choose(sizes)
        assert list(store.entries()) and Tuner(launcher, "profile", CPU).known(sizes) is None

    def test_first_valid_times_nothing(self, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(profile, "fastest", None)
        launcher, sizes, configs = bench({})
        assert Tuner(launcher, "first_valid", CPU).choose(sizes) == configs[0]
        bench({configs[0]: 4, configs[1]: OutOfResources(2, 1, "threads")})
        assert Tuner(launcher, "first_valid", CPU).choose(sizes) == configs[2]
        bench(dict.fromkeys(configs, 4))
        assert Tuner(launcher, "first_valid", CPU).choose(sizes) == configs[0]
        assert not list(store.entries())

    def test_a_defect_of_the_skeleton_leaves_the_default(self, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        launcher, sizes, configs = bench({})

        def fail(kernel: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Skeleton, "of", fail)
        assert Tuner(launcher, "profile", CPU).choose(sizes) == configs[0]

    def test_nothing_is_timed_that_has_no_elements(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(profile, "fastest", None)
        launcher, sizes = launcher_of(nn.MSELoss(reduction="none"), X, T)
        empty = {**sizes, "N": 0}
        assert Tuner(launcher, "profile", CPU).choose(empty) == launcher.tiler.default(empty)
        assert not list(store.entries())


class TestOptions:
    def test_what_there_is(self) -> None:
        assert PLAIN.tuning is None and Options(tune=False).tuning is None
        for tune in (True, 1, "profile"):
            assert Options(tune=tune).tuning == "profile"  # type: ignore[arg-type]
        assert Options(tune="first_valid").tuning == "first_valid"
        with pytest.raises(ValueError, match="'always'"):
            autogen_loss(nn.MSELoss(), tune="always")  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        ("value", "tuning"), [("1", "profile"), ("first_valid", "first_valid"), ("0", None), ("", None)]
    )
    def test_the_environment_speaks_for_losses_that_say_nothing(
        self, value: str, tuning: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AUTOGEN_TUNE", value)
        assert Options().tuning == tuning
        assert Options(tune=False).tuning is None and Options(tune=True).tuning == "profile"

    @pytest.mark.skipif("not __import__('autogen.runtime.availability').runtime.availability.has_interpreter()")
    def test_explain_says_what_is_tuned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, t = floats(100, 100, dtype=torch.float32), torch.rand(100, 100)
        loss = autogen_loss(nn.MSELoss(), tune=True)
        before = explain(loss, x, t)
        assert before.forward is not None and before.forward.configs == ("BLOCK 1024, 4 warps (default)",)
        assert "\n    BLOCK 1024, 4 warps (default)\n" in str(before)
        launcher, sizes = launcher_of(nn.MSELoss(), x, t)
        winner = candidates(launcher.tiler, sizes, NEWEST)[3]
        store.write(
            Tuner(launcher, "profile", CPU)._key(Skeleton.of(launcher.kernel), bucket_of(launcher.tiler, sizes)),
            store.Tuned(winner),
        )
        monkeypatch.setattr(profile, "fastest", None)
        after = explain(autogen_loss(nn.MSELoss(), tune=True), x, t)
        assert after.forward is not None and after.forward.configs == (f"{winner} (tuned)",)
        assert explain(autogen_loss(nn.MSELoss()), x, t).forward.configs == before.forward.configs  # type: ignore[union-attr]
