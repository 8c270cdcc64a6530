"""Probability, differential equations, privacy, second derivatives, symmetries: packages for the sciences."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.unchanged.program import STEPS, Group, fit, learn, mean_square

GROUP = Group("sciences")


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 8), torch.randint(0, 4, (16,))


# -- probability ---------------------------------------------------------------------------------------------


@GROUP.program("gpytorch", name="gpytorch-exact")
def _exact() -> object:
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x = torch.linspace(0, 1, 20)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(x, y := torch.sin(6 * x), likelihood)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return fit(model, lambda: -evidence(model(x), y))


@GROUP.program("gpytorch", name="gpytorch-variational")
def _variational() -> object:
    import gpytorch
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.randn(6, 2)
            super().__init__(VariationalStrategy(self, points, CholeskyVariationalDistribution(6)))
            self.mean, self.kernel = gpytorch.means.ZeroMean(), gpytorch.kernels.MaternKernel()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = nn.ModuleDict({"process": Process(), "likelihood": gpytorch.likelihoods.GaussianLikelihood()})
    bound = gpytorch.mlls.VariationalELBO(model["likelihood"], model["process"], 64)
    return fit(model, lambda: -bound(model["process"](x := torch.randn(16, 2)), x.sum(1)))


@GROUP.program("botorch", name="botorch", steps=0)
def _botorch() -> object:
    """Its loops are scipy's: nothing here takes a step of torch.optim."""
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = torch.rand(8, 2, dtype=torch.float64)
    model = SingleTaskGP(x, y := x.sin().sum(1, keepdim=True))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 8}})
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    return model, optimize_acqf(LogExpectedImprovement(model, y.max()), bounds, q=1, num_restarts=2, raw_samples=8)


@GROUP.program("pyro", name="pyro-svi")
def _pyro() -> object:
    import pyro
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    def model(x: Tensor, y: Tensor | None = None) -> None:
        weight = pyro.sample("weight", pyro.distributions.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", pyro.distributions.Normal(x @ weight, 0.5), obs=y)

    guide = AutoNormal(model)
    inference = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    losses = [inference.step(x := torch.randn(16, 3), x.sum(1)) for _ in range(STEPS)]
    return guide, losses, dict(pyro.get_param_store().items())


def _zuko(kind: str, options: dict[str, Any]) -> object:
    import zuko

    flow = getattr(zuko.flows, kind)(**options)
    return fit(flow, lambda: -flow().log_prob(torch.randn(16, 3)).mean())


for kind in ("MAF", "NSF", "NICE", "NAF", "CNF"):
    options = {"features": 3, "hidden_features": (8,)} | ({} if kind == "CNF" else {"transforms": 2})
    GROUP.add(f"zuko-{kind}", partial(_zuko, kind, options), "zuko")


@GROUP.program("nflows.flows")
def nflows() -> object:
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.transforms import CompositeTransform, MaskedAffineAutoregressiveTransform, RandomPermutation

    parts = [part for _ in range(2) for part in (RandomPermutation(3), MaskedAffineAutoregressiveTransform(3, 8))]
    model = Flow(CompositeTransform(parts), StandardNormal([3]))
    return fit(model, lambda: -model.log_prob(torch.randn(16, 3)).mean())


# -- differential equations ----------------------------------------------------------------------------------


class _Field(nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.spread = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), nn.Linear(4, 4)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(y)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(y)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return self.spread(y).sigmoid()


@GROUP.program("torchdiffeq", name="torchdiffeq-odeint")
def _ode() -> object:
    from torchdiffeq import odeint

    field, times = _Field(), torch.linspace(0, 1, 4)
    return fit(field, lambda: mean_square(odeint(field, torch.randn(4, 4), times, method="dopri5")))


@GROUP.program("torchdiffeq", name="torchdiffeq-adjoint")
def _adjoint() -> object:
    """Its backward pass solves another equation, with gradients taken inside of it."""
    from torchdiffeq import odeint_adjoint

    field, times = _Field(), torch.linspace(0, 1, 4)
    return fit(field, lambda: mean_square(odeint_adjoint(field, torch.randn(4, 4), times, rtol=1e-3, atol=1e-4)))


def _sde(name: str) -> object:
    import torchsde

    field, times = _Field(), torch.linspace(0, 1, 3)

    def loss() -> Tensor:
        motion = torchsde.BrownianInterval(0.0, 1.0, (4, 4), entropy=5, levy_area_approximation="space-time")
        return mean_square(getattr(torchsde, name)(field, torch.randn(4, 4), times, bm=motion, dt=0.25))

    return fit(field, loss)


GROUP.add("torchsde", partial(_sde, "sdeint"), "torchsde")
GROUP.add("torchsde-adjoint", partial(_sde, "sdeint_adjoint"), "torchsde")


@GROUP.program("torchcde")
def torchcde() -> object:
    import torchcde as package

    class Controlled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 12)

        def forward(self, t: Tensor, z: Tensor) -> Tensor:
            return self.inner(z).tanh().view(*z.shape, 3)

    model = Controlled()

    def loss() -> Tensor:
        path = package.CubicSpline(package.hermite_cubic_coefficients_with_backward_differences(torch.randn(4, 5, 3)))
        return mean_square(package.cdeint(path, model, torch.randn(4, 4), path.interval, method="rk4", adjoint=False))

    return fit(model, loss)


# -- derivatives of other kinds ------------------------------------------------------------------------------


def _private(options: dict[str, Any]) -> object:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model, engine = _network(), PrivacyEngine()
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,))), 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    private: Any = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        poisson_sampling=False, **options,
    )  # fmt: skip
    model, optimizer, *own, loader = private
    criterion = own[0] if own else F.cross_entropy
    for _epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return model._module, optimizer.state_dict(), engine.get_epsilon(1e-5)


GROUP.add("opacus", partial(_private, {}), "opacus")
GROUP.add("opacus-functorch", partial(_private, {"grad_sample_mode": "functorch"}), "opacus")
GROUP.add(
    "opacus-ghost-clipping",
    partial(_private, {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}),
    "opacus",
)


@GROUP.program("higher")
def higher() -> object:
    import higher as package

    model = _network()
    inner, outer = torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        outer.zero_grad()
        with package.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, stepping):
            for _inner in range(2):
                x, y = _batch()
                stepping.step(F.cross_entropy(fast(x), y))
            x, y = _batch()
            F.cross_entropy(fast(x), y).backward()
        outer.step()
    return model, outer


@GROUP.program("backpack", name="backpack")
def _backpack() -> object:
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad, DiagGGNExact, Variance

    model, criterion = extend(_network()), extend(nn.CrossEntropyLoss())
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, y = _batch()
        with backpack(BatchGrad(), Variance(), DiagGGNExact()):
            criterion(model(x), y).backward()
        seen.append([(p.grad_batch.sum(), p.variance.sum(), p.diag_ggn_exact.sum()) for p in model.parameters()])
        optimizer.step()
    return model, optimizer, seen


@GROUP.program("curvlinops", name="curvlinops")
def _curvature() -> object:
    from curvlinops import GGNLinearOperator

    model, seen = _network(), []

    def loss() -> Tensor:
        data, criterion = [_batch()], nn.CrossEntropyLoss()
        weights = dict(model.named_parameters())
        try:
            operator = GGNLinearOperator(model, criterion, weights, data, check_deterministic=False)
        except (TypeError, AttributeError, ValueError):
            operator = GGNLinearOperator(model, criterion, list(weights.values()), data, check_deterministic=False)
        seen.append(operator @ torch.ones(operator.shape[1]))
        return criterion(model(data[0][0]), data[0][1])

    return fit(model, loss), seen


# -- symmetries and operators --------------------------------------------------------------------------------


@GROUP.program("e3nn.o3", name="e3nn")
def _equivariant() -> object:
    from e3nn import nn as gates
    from e3nn import o3

    model = nn.Sequential(o3.Linear("4x0e+2x1o", "4x0e+2x1o"), gates.NormActivation("4x0e+2x1o", torch.tanh))
    product = o3.FullyConnectedTensorProduct("4x0e+2x1o", "1x1o", "4x0e+1x1o")
    both = nn.ModuleList([model, product])
    return fit(both, lambda: mean_square(product(model(torch.randn(6, 10)), torch.randn(6, 3))))


def _operator(kind: str) -> object:
    """Weights in the frequency domain are complex."""
    from neuralop.models import FNO, TFNO

    model = {"FNO": FNO, "TFNO": TFNO}[kind](
        n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2
    )
    return learn(model, (2, 1, 8, 8))


GROUP.add("neuraloperator-FNO", partial(_operator, "FNO"), "neuralop.models")
GROUP.add("neuraloperator-TFNO", partial(_operator, "TFNO"), "neuralop.models")


@GROUP.program("torchao.quantization.qat", name="torchao-quantisation-aware")
def _quantisation() -> object:
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
    quantize_(model, QATConfig(weight_config=weights, step="prepare"))
    return learn(model, (16, 32))


@GROUP.program("monai.networks.nets", name="monai-unet")
def _monai() -> object:
    from monai.networks.nets import UNet

    return learn(UNet(3, 1, 2, (4, 8), (2,), num_res_units=1, dropout=0.1), (1, 1, 8, 8, 8))


@GROUP.program("monai.networks.nets", name="monai-swin-unetr")
def _swin_unetr() -> object:
    from monai.networks.nets import SwinUNETR

    return learn(SwinUNETR(1, 2, feature_size=12, use_checkpoint=True, spatial_dims=2), (1, 1, 64, 64))


@GROUP.program("learn2learn", name="learn2learn-maml")
def _learn2learn() -> object:
    from learn2learn.algorithms import MAML

    model = MAML(_network(), lr=0.1)

    def loss() -> Tensor:
        learner = model.clone()
        for part in range(2):
            x, y = _batch()
            value = F.cross_entropy(learner(x), y)
            if not part:
                learner.adapt(value)
        return value

    return fit(model, loss)


@GROUP.program("torchaudio.models", name="torchaudio-conformer")
def _conformer() -> object:
    from torchaudio.models import Conformer

    model = Conformer(16, 2, 32, 2, 3)
    return learn(model, (2, 10, 16), lengths=lambda: torch.tensor([10, 7]))
