"""Other people's training loops: lightning, accelerate, transformers, peft, ignite, skorch, fastai, and others."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.unchanged.program import STEPS, Group, fit

GROUP = Group("trainers")


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def _data() -> TensorDataset:
    return TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))


# -- lightning, accelerate -----------------------------------------------------------------------------------


def _lightning(options: dict[str, Any], manual: bool = False) -> object:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.automatic_optimization = _network(), not manual

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = F.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss)
            if manual:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    module = Module()
    quiet: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_steps=STEPS, **quiet, **options)
    trainer.fit(module, DataLoader(_data(), 16, shuffle=True))
    return module, trainer.optimizers, {name: float(value) for name, value in trainer.callback_metrics.items()}


for name, options in {
    "": {}, "-clipping-and-accumulating": {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2},
    "-in-bfloat16": {"precision": "bf16-mixed"}, "-deterministic": {"deterministic": True, "detect_anomaly": True},
}.items():  # fmt: skip
    GROUP.add(f"lightning{name}", partial(_lightning, options), "lightning")
GROUP.add("lightning-manual", partial(_lightning, {}, manual=True), "lightning")


def _accelerate(**options: Any) -> object:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **options)
    model = _network()
    ready: Any = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3), DataLoader(_data(), 8))
    model, optimizer, loader = ready
    for _epoch in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return model, optimizer.state_dict()


GROUP.add("accelerate", _accelerate, "accelerate")
GROUP.add("accelerate-accumulating", partial(_accelerate, gradient_accumulation_steps=2), "accelerate")
GROUP.add("accelerate-in-bfloat16", partial(_accelerate, mixed_precision="bf16"), "accelerate")


# -- transformers, peft, trl ---------------------------------------------------------------------------------


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.unchanged.tiny_transformers import tiny

    return LlamaForCausalLM(tiny(LlamaConfig))


def _tokens(model: Any) -> Tensor:
    tokens = torch.randint(3, 99, (2, 12))
    return model(input_ids=tokens, labels=tokens).loss


def _trainer(**options: Any) -> object:
    from transformers import Trainer, TrainingArguments

    model = _llama()
    rows = [{"input_ids": (tokens := torch.randint(3, 99, (12,))), "labels": tokens} for _ in range(64)]
    arguments = TrainingArguments(
        "out", max_steps=STEPS, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", logging_steps=1000, **options,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows)  # pyright: ignore
    trainer.train()
    return model, trainer.optimizer


for name, options in {
    "": {}, "-accumulating": {"gradient_accumulation_steps": 2}, "-checkpointing": {"gradient_checkpointing": True},
    "-adafactor": {"optim": "adafactor"}, "-in-bfloat16": {"bf16": True}, "-neftune": {"neftune_noise_alpha": 0.1},
}.items():  # fmt: skip
    GROUP.add(f"transformers-trainer{name}", partial(_trainer, **options), "transformers", "accelerate", prepare=_llama)


@GROUP.program("transformers", name="generation-between-steps", steps=STEPS)
def _generation() -> object:
    model, said = _llama(), []

    def loss() -> Tensor:
        model.eval()
        said.append(model.generate(torch.tensor([[5, 6]]), do_sample=True, max_new_tokens=4, pad_token_id=0))
        model.train()
        return _tokens(model)

    return fit(model, loss), said


def _peft(kind: str, options: dict[str, Any]) -> object:
    import peft

    model = peft.get_peft_model(_llama(), getattr(peft, kind)(task_type="CAUSAL_LM", **options))
    return fit(model, lambda: _tokens(model))


_PROJECTIONS = ["q_proj", "v_proj"]
for name, (kind, options) in {
    "lora": ("LoraConfig", {"r": 4, "lora_dropout": 0.1, "target_modules": _PROJECTIONS}),
    "dora": ("LoraConfig", {"r": 4, "use_dora": True, "target_modules": _PROJECTIONS}),
    "rslora": ("LoraConfig", {"r": 4, "use_rslora": True, "target_modules": "all-linear"}),
    "pissa": ("LoraConfig", {"r": 4, "init_lora_weights": "pissa", "target_modules": _PROJECTIONS}),
    "loha": ("LoHaConfig", {"r": 4, "target_modules": _PROJECTIONS}),
    "lokr": ("LoKrConfig", {"r": 4, "target_modules": _PROJECTIONS}),
    "ia3": ("IA3Config", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "adalora": ("AdaLoraConfig", {"init_r": 4, "target_r": 2, "total_step": 20, "target_modules": _PROJECTIONS}),
    "oft": ("OFTConfig", {"oft_block_size": 4, "target_modules": ["q_proj"]}),
    "boft": ("BOFTConfig", {"boft_block_size": 4, "target_modules": ["q_proj"]}),
    "vera": ("VeraConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "fourierft": ("FourierFTConfig", {"n_frequency": 10, "target_modules": ["q_proj"]}),
    "hra": ("HRAConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "vblora": ("VBLoRAConfig", {"r": 2, "num_vectors": 8, "vector_length": 8, "target_modules": ["q_proj"]}),
    "layer-norm": ("LNTuningConfig", {"target_modules": ["input_layernorm"]}),
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 4}),
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 4}),
    "p": ("PromptEncoderConfig", {"num_virtual_tokens": 4, "encoder_hidden_size": 8}),
}.items():
    GROUP.add(f"peft-{name}", partial(_peft, kind, options), "peft", prepare=_llama)


# -- others --------------------------------------------------------------------------------------------------


@GROUP.program("ignite.engine")
def ignite() -> object:
    from ignite.engine import Events, create_supervised_trainer
    from ignite.metrics import RunningAverage

    model = _network()
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1), []
    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.metrics["loss"]))
    trainer.run(DataLoader(_data(), 16, shuffle=True), max_epochs=2)
    return model, optimizer, seen


@GROUP.program("skorch")
def skorch() -> object:
    from skorch import NeuralNetClassifier

    data = _data()
    network = NeuralNetClassifier(
        _network(), criterion=nn.CrossEntropyLoss, max_epochs=2, lr=0.1, batch_size=16, train_split=None, verbose=0
    )
    network.fit(data.tensors[0].numpy(), data.tensors[1].numpy())
    return network.module_, network.optimizer_, network.history[:, "train_loss"]


@GROUP.program("fastai.learner", steps=0)
def fastai() -> object:
    """Its optimizers are classes of its own, not torch's: their steps are not seen."""
    from fastai.callback.schedule import fit_one_cycle  # noqa: F401
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader as Loader
    from fastai.learner import Learner

    loaders = DataLoaders(Loader(_data(), bs=16, shuffle=True), Loader(_data(), bs=16))
    learner: Any = Learner(loaders, _network(), loss_func=F.cross_entropy, cbs=[])
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(2, 1e-2)
    return learner.model, learner.opt.state_dict()


@GROUP.program("stable_baselines3", name="stable-baselines3-ppo", steps=4)
def _ppo() -> object:
    from stable_baselines3 import PPO

    agent = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=8, n_epochs=2, seed=3, device="cpu")
    agent.learn(32)
    return agent.policy, agent.policy.optimizer


@GROUP.program("stable_baselines3", name="stable-baselines3-dqn", steps=4)
def _dqn() -> object:
    from stable_baselines3 import DQN

    agent = DQN("MlpPolicy", "CartPole-v1", learning_starts=8, train_freq=2, batch_size=8, seed=3, device="cpu")
    agent.learn(32)
    return agent.q_net, agent.q_net_target, agent.policy.optimizer


@GROUP.program("stable_baselines3", name="stable-baselines3-sac", steps=4)
def _sac() -> object:
    from stable_baselines3 import SAC

    agent = SAC("MlpPolicy", "Pendulum-v1", learning_starts=8, batch_size=8, seed=3, device="cpu")
    agent.learn(20)
    return agent.actor, agent.critic, agent.critic_target, agent.actor.optimizer, agent.log_ent_coef


@GROUP.program("torchrl.objectives", "tensordict.nn", name="torchrl-dqn")
def _torchrl() -> object:
    from tensordict import TensorDict
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    actor = QValueActor(nn.Linear(4, 2), in_keys=["observation"], action_space="one-hot")
    objective = DQNLoss(actor, action_space="one-hot", delay_value=True)
    target = SoftUpdate(objective, eps=0.9)

    def loss() -> Tensor:
        rows = {
            "observation": torch.randn(8, 4), "action": F.one_hot(torch.randint(0, 2, (8,)), 2),
            "next": {"observation": torch.randn(8, 4), "reward": torch.randn(8, 1),
                     "done": torch.zeros(8, 1, dtype=torch.bool), "terminated": torch.zeros(8, 1, dtype=torch.bool)},
        }  # fmt: skip
        target.step()
        return objective(TensorDict(rows, [8]))["loss"]

    return fit(actor, loss), objective


@GROUP.program("pytorch_tabnet.tab_network", name="tabnet", steps=4)
def _tabnet() -> object:
    from pytorch_tabnet.tab_model import TabNetClassifier

    data = _data()
    model = TabNetClassifier(n_d=4, n_a=4, n_steps=2, verbose=0, device_name="cpu")
    model.fit(data.tensors[0].numpy(), data.tensors[1].numpy(), max_epochs=3, batch_size=32, virtual_batch_size=16)
    return model.network, model.history["loss"]


@GROUP.program("torchmetrics.classification", name="torchmetrics")
def _metrics() -> object:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

    model = nn.ModuleDict({"network": _network()})
    model["metrics"] = MetricCollection([MulticlassAccuracy(4), MulticlassF1Score(4), MulticlassAUROC(4)])

    def loss() -> Tensor:
        x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
        logits = model["network"](x)
        model["metrics"](logits, y)
        return F.cross_entropy(logits, y)

    return fit(model, loss, torch.optim.SGD(model["network"].parameters(), 0.1)), dict(model["metrics"].compute())


@GROUP.program("pytorch_metric_learning.losses", name="metric-learning")
def _metric_learning() -> object:
    from pytorch_metric_learning import losses, miners

    model, mine = _network(), miners.TripletMarginMiner()
    proxies = losses.ProxyAnchorLoss(4, 4)

    def loss() -> Tensor:
        embedded, y = model(torch.randn(16, 8)), torch.randint(0, 4, (16,))
        return losses.TripletMarginLoss()(embedded, y, mine(embedded, y)) + proxies(embedded, y)

    return fit(model, loss, torch.optim.Adam([*model.parameters(), *proxies.parameters()], 1e-3)), proxies


@GROUP.program("captum.attr", name="captum-between-steps")
def _attributions() -> object:
    from captum.attr import DeepLift, IntegratedGradients, Saliency

    model, seen = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), []

    def loss() -> Tensor:
        x = torch.randn(4, 8, requires_grad=True)
        for method in (Saliency(model), IntegratedGradients(model), DeepLift(model)):
            seen.append(method.attribute(x, target=1))
        return F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 4, (16,)))

    return fit(model, loss), seen
