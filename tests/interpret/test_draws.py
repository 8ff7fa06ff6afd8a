"""Losses that draw random numbers: the same ones as in torch, wherever it draws them from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._functorch.config
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain, policy
from tests.interpret.launches import Launches

X = torch.arange(1.0, 13.0)

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: X.view(4, 3),
    "transposed": lambda: X.view(3, 4).t(),
    "strided": lambda: torch.arange(24.0).view(4, 6)[:, ::2],
    "expanded": lambda: X[:3].expand(4, 3),
}

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout of what is computed": lambda x: F.dropout(x * 2 + 1, 0.5),
    "dropout of what is turned": lambda x: F.dropout((x * 2).view(2, 2, 3).permute(2, 0, 1), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5),
    "rrelu": lambda x: F.rrelu(x - 6, training=True),
    "bernoulli": lambda x: torch.bernoulli((x / 10).sigmoid()) * x,
    "bernoulli of an expanded tensor": lambda x: torch.bernoulli((x[:, :1] / 10).sigmoid().expand_as(x)) * x,
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_((x / 10).sigmoid()) * x,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "normal_": lambda x: torch.empty_like(x).normal_() * x,
    "normal_ of other moments": lambda x: torch.empty_like(x).normal_(1, 2) * x,
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 2) * x,
    "exponential_": lambda x: (x + 1).exponential_(2.0) * x,
    "bernoulli_ of a number": lambda x: torch.empty_like(x).bernoulli_(0.3) * x,
    "normal": lambda x: torch.normal(x, x.abs() + 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_element_has_the_draw_that_torch_gives_it(name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return DRAWS[name](x).square().sum()

    decorated = autogen_loss(loss)
    for layout in ("dense", "transposed", "dense", "transposed", "transposed", "strided", "expanded"):
        found = []
        for each in (decorated, loss):
            x = LAYOUTS[layout]().detach().requires_grad_()
            torch.manual_seed(3)
            with policy("mandatory"):
                value = each(x)
            (gradient,) = torch.autograd.grad(value, x, retain_graph=True)
            (again,) = torch.autograd.grad(value, x, create_graph=True)
            found.append([value, gradient, again, torch.get_rng_state()])
        torch.testing.assert_close(*found)


def test_a_trace_draws_nothing_where_fake_tensors_are_to_have_values() -> None:
    found = []
    with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
        for loss in (autogen_loss(DRAWS["dropout"]), DRAWS["dropout"]):
            torch.manual_seed(3)
            found.append((loss(X), torch.get_rng_state()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["uniform_", "exponential_", "bernoulli_ of a number", "normal_ of other moments"])
def test_what_a_draw_overwrites_is_not_written(name: str) -> None:
    report = explain(autogen_loss(lambda x: DRAWS[name](x).square().sum()), X.view(4, 3))
    assert report.forward is not None and report.forward.launches == 1
    assert report.forward.torch_steps[0].startswith(name.split()[0].rstrip("_"))


def elbo(x: Tensor, y: Tensor) -> Tensor:
    posterior = D.Normal(x, (y / 2).exp())
    likelihood = D.Bernoulli(logits=posterior.rsample()).log_prob((x > 0).to(x.dtype))
    return D.kl_divergence(posterior, D.Normal(0.0, 1.0)).mean() - likelihood.mean()


def actor(x: Tensor, y: Tensor) -> Tensor:
    policy_of_actor = D.TransformedDistribution(D.Normal(x, y.exp()), [D.TanhTransform(cache_size=1)])
    action = policy_of_actor.rsample()
    return (0.2 * policy_of_actor.log_prob(action) - action * y).sum(-1)


def reinforce(x: Tensor, y: Tensor) -> Tensor:
    policy_of_actor = D.Categorical(logits=x)
    return -(policy_of_actor.log_prob(policy_of_actor.sample()) * y[:, 0]).mean()


def mixture(x: Tensor, y: Tensor) -> Tensor:
    components = D.Independent(D.Laplace(x, y.exp()), 1)
    return components.log_prob(components.rsample()).mean() - components.entropy().sum()


def counts(x: Tensor, y: Tensor) -> Tensor:
    return D.Gamma(x.exp(), y.exp()).rsample().log().mean() + D.Dirichlet(x.exp()).rsample().square().sum()


def trials(x: Tensor, y: Tensor) -> Tensor:
    drawn = torch.binomial(torch.full_like(x, 5.0), x.detach().sigmoid())
    return (x * drawn + y * D.StudentT(y.exp() + 2).rsample()).sum()


@pytest.fixture
def checked() -> Iterator[None]:
    """While distributions check what they are given, which `torch.compile` turns off for the whole process."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (elbo, (1, 1)),
        (actor, (1, 1)),
        (reinforce, (2, 1)),
        (mixture, (1, 1)),
        (counts, (2, 2)),
        (trials, (2, 1)),
    ],
)
def test_distributions_that_check_what_is_drawn(
    loss: Callable[[Tensor, Tensor], Tensor], expected: tuple[int, int], launches: Launches
) -> None:
    decorated, x, y = autogen_loss(loss), (X.view(4, 3) / 12).requires_grad_(), X.view(4, 3).cos().requires_grad_()
    for k in range(4):
        found = []
        for each in (decorated, loss):
            torch.manual_seed(k)
            launches.take()
            value = each(x, y)
            forward = launches.take()
            found.append([value, *torch.autograd.grad(value.sum(), [x, y]), torch.get_rng_state()])
            assert (forward, launches.take()) == (expected if each is decorated else (0, 0))
        torch.testing.assert_close(*found)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("reduction", [Tensor.mean, lambda value: value], ids=["mean", "none"])
def test_a_check_of_what_is_drawn_that_fails(reduction: Callable[[Tensor], Tensor]) -> None:
    def loss(x: Tensor) -> Tensor:
        uniform = D.Uniform(x, x + 1)
        return reduction(x * uniform.log_prob(2 * uniform.rsample()))

    decorated, x = autogen_loss(loss, policy="mandatory"), X.clone().requires_grad_()
    with pytest.raises(ValueError, match="within the support"):
        loss(x)
    for _ in range(3):
        assert decorated(x).isnan().all()


@pytest.mark.usefixtures("checked")
def test_a_check_of_what_is_given_is_torchs() -> None:
    def loss(x: Tensor, scale: Tensor) -> Tensor:
        return (x * D.Normal(x, scale).rsample()).sum()

    decorated = autogen_loss(loss)
    for _ in range(3):
        found = []
        for each in (decorated, loss):
            torch.manual_seed(0)
            found.append(each(X, X))
            with pytest.raises(ValueError, match="to satisfy the constraint GreaterThan"):
                each(X, -X)
        torch.testing.assert_close(*found)


@pytest.mark.usefixtures("checked")
def test_checks_that_are_turned_off() -> None:
    def loss(x: Tensor) -> Tensor:
        uniform = D.Uniform(x, x + 1)
        return x * uniform.log_prob(2 * uniform.rsample())

    decorated = autogen_loss(loss, policy="mandatory")
    for is_checked in (True, False, True):
        D.Distribution.set_default_validate_args(is_checked)
        for k in range(3):
            torch.manual_seed(k)
            found = decorated(X)
            torch.manual_seed(k)
            assert found.isnan().all() if is_checked else found.equal(loss(X))


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return (x * torch.randn(12)).sum()


def seeded_for_a_while(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = torch.randn(12)
    return (x * noise).sum()


def seeded_afterwards(x: Tensor) -> Tensor:
    value = (x * torch.randn(12)).sum()
    torch.manual_seed(4)
    return value


def of_its_own(x: Tensor) -> Tensor:
    return (x * torch.randn(12, generator=torch.Generator().manual_seed(0))).sum()


@pytest.mark.parametrize("loss", [seeded, seeded_for_a_while, seeded_afterwards, of_its_own])
def test_losses_that_seed_are_torchs(loss: Callable[[Tensor], Tensor]) -> None:
    decorated = autogen_loss(loss)
    found = []
    for each in (decorated, loss):
        torch.manual_seed(1)
        found.append([*(each(X) for _ in range(4)), torch.rand(1)])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    report = explain(decorated, X)
    assert report.path == "eager" and ("random stream" in report.reason or "generator" in report.reason)


def test_what_another_thread_draws_is_no_seed() -> None:
    """Nor is it drawn twice."""
    drawn: list[Tensor] = []
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.wait(1e-3):
            drawn.append(torch.rand(3))

    torch.manual_seed(5)
    other = threading.Thread(target=draw)
    other.start()
    paths = []
    try:
        while len(drawn) <= 2 or not paths:
            paths.append(explain(autogen_loss(lambda x: (x * torch.rand_like(x)).sum()), X).path)
    finally:
        is_over.set()
        other.join()
    assert set(paths) == {"partial"}
    assert len({tuple(each.tolist()) for each in drawn}) == len(drawn)
